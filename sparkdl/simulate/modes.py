"""The synchronous modes of training: what all workers wait for together between local steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.fields import COUNT, NATURAL, NON_NEGATIVE, POSITIVE
from sparkdl.simulate.collective import Collective
from sparkdl.simulate.exchange import SMALL, meetings, summing
from sparkdl.simulate.setting import Mode, Outcome, Setting

__all__ = ["AllReduce", "Averaging", "ThroughDriver"]

MIB = 1 << 20
TRIED = (0, 1 * MIB, 4 * MIB, 16 * MIB)  # bytes of buckets that the strategy tries
TRIAL_STEPS = 3
BACKWARD = 2 / 3  # of a local step: it computes two gradients where the forward pass computes one output
BLOCK_BYTES = 4 * MIB  # of Spark's broadcasts


@dataclass(frozen=True)
class AllReduce(Mode):
    """Gradients are summed after every step; everyone waits for the slowest.

    They leave in buckets of `bucket_bytes` while the backward pass, two thirds of the local step, still runs: 0 sends
    all of them at its end, None takes the best of what the strategy tries. Compressed, they leave at its end.
    """

    algorithm: str = "ring"
    bucket_bytes: float | None = 0.0
    compressor: Compressor = field(default_factory=Uncompressed)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket_bytes is not None and not self.bucket_bytes >= 0:
            raise ValueError(f"AllReduce(bucket_bytes={self.bucket_bytes!r}): it must be a number >= 0, or None.")

    def run(self, setting: Setting) -> Outcome:
        if not isinstance(self.compressor, Uncompressed) or setting.cluster.workers == 1:
            return meetings(setting, summing(setting, self.algorithm, self.compressor), 1)
        if self.bucket_bytes is None:
            return self._best(setting).run(setting)
        buckets = math.ceil(setting.nbytes / self.bucket_bytes) if self.bucket_bytes else 1
        # A bucket ends with a tensor.
        return _overlapped(setting, self.algorithm, min(buckets, len(setting.segments) or buckets))

    def _best(self, setting: Setting) -> AllReduce:
        """With the size of buckets that takes least time; the smallest that differ count."""
        seconds = {}
        for nbytes in TRIED:
            if not nbytes or nbytes < setting.nbytes:
                trial = setting._replace(steps=TRIAL_STEPS, rng=np.random.default_rng(0))
                seconds[nbytes] = replace(self, bucket_bytes=nbytes).run(trial).seconds
        return replace(self, bucket_bytes=min(seconds, key=seconds.__getitem__))


@dataclass(frozen=True)
class Averaging(Mode):
    """Weights are averaged every `period` local steps, after the workers' shares have been told.

    With `slots` the optimizer's are averaged too. Staleness counts the steps since the last meeting.
    """

    period: int = field(default=8, metadata=COUNT)
    algorithm: str = "ring"
    compressor: Compressor = field(default_factory=Uncompressed)
    slots: bool = False

    def run(self, setting: Setting) -> Outcome:
        cluster, nbytes = setting.cluster, setting.nbytes
        shares = Collective(self.algorithm, cluster, SMALL)
        slots = [Collective(self.algorithm, cluster, nbytes)] * (setting.slots if self.slots else 0)
        return meetings(setting, [shares, *summing(setting, self.algorithm, self.compressor), *slots], self.period)


@dataclass(frozen=True)
class ThroughDriver(Mode):
    """Every `period` local steps are one Spark job: weights go out, sums come together in a tree of `depth` levels.

    The weights reach the hosts by a pipeline of blocks of 4 MiB: l (alpha + b beta) + (n - b) beta, l = ceil(log2(1 +
    hosts)), b the shorter of a block and the weights. Each level of the tree is a stage, which takes `stage_s` to start
    and in which a node takes in ceil(P^(1/depth)) vectors in turn, each in alpha + n (beta + 1 / bytes_per_s). Depth 0
    is the best one. With `slots` the optimizer's vectors go both ways as well.
    """

    stage_s: float = field(metadata=NON_NEGATIVE)
    bytes_per_s: float = field(metadata=POSITIVE)
    period: int = field(default=1, metadata=COUNT)
    depth: int = field(default=0, metadata=NATURAL)
    slots: bool = False

    def run(self, setting: Setting) -> Outcome:
        if self.slots:
            setting = setting._replace(nbytes=setting.nbytes + setting.slots * setting.trainable * setting.itemsize)
        size, n, link, period = setting.cluster.workers, setting.nbytes, setting.cluster.link, self.period
        depths = [self.depth] if self.depth else range(1, max(1, (size - 1).bit_length()) + 1)
        depth = min(depths, key=lambda d: self._reduction_s(d, setting))
        rounds = -(-setting.steps // period)
        levels = setting.cluster.hosts[-1].bit_length() + 1
        block = min(n, BLOCK_BYTES)
        out_s = levels * (link.alpha + block * link.beta) + (n - block) * link.beta
        seconds = setting.draw(rounds * period).reshape(rounds, period, size).sum(axis=1)
        slowest = seconds.max(axis=1)
        total = float(slowest.sum()) + rounds * (out_s + self._reduction_s(depth, setting))
        # Up the tree from every node but the driver, and out to every host.
        up = sum(math.ceil(size ** ((depth - level) / depth)) for level in range(depth))
        sent = n * (up + setting.cluster.hosts[-1] + 1) / size / period
        waiting_s = float((slowest - seconds.mean(axis=1)).mean()) / period
        return Outcome(size * rounds * period, total, sent, np.arange(period), waiting_s)

    def _reduction_s(self, depth: int, setting: Setting) -> float:
        link, size = setting.cluster.link, setting.cluster.workers
        fan_in = max(min(2, size), _root(size, depth))
        vector_s = link.alpha + setting.nbytes * (link.beta + 1 / self.bytes_per_s)
        return depth * (self.stage_s + fan_in * vector_s)


def _overlapped(setting: Setting, algorithm: str, buckets: int) -> Outcome:
    """Buckets leave as they fill up in the backward pass, each after the one before it has come back."""
    size, part = setting.cluster.workers, Collective(algorithm, setting.cluster, setting.nbytes / buckets)
    lag = float(part.finish(np.zeros(size)).max()) if buckets > 1 else 0.0
    clocks, waited = np.zeros(size), 0.0
    for seconds in setting.draw(setting.steps):
        busy, ends = 0.0, clocks + seconds
        for left in range(buckets - 1, 0, -1):
            busy = max(busy, float((ends - seconds * BACKWARD * left / buckets).max())) + lag
        waited += float(ends.max() - ends.mean())
        clocks = part.finish(np.maximum(ends, busy))
    sent = buckets * part.sent_bytes
    return Outcome(size * setting.steps, float(clocks.max()), sent, np.zeros(1), waited / setting.steps)


def _root(size: int, depth: int) -> int:
    """The fewest children of a node in a tree of `depth` levels with `size` leaves."""
    return next(k for k in range(1, size + 1) if k**depth >= size)
