"""Synchronous training among the workers: gradients meet by an allreduce, and every rank makes the same update."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from sparkdl import simulate
from sparkdl.comm import Transport, allreduce
from sparkdl.comm.compress import Compressor, Uncompressed, break_even
from sparkdl.fields import NON_NEGATIVE
from sparkdl.nn import Array
from sparkdl.strategies.buckets import Buckets, Courier, bucket_bounds
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.strategies.peers import PeerStrategy
from sparkdl.strategies.reducing import CompressedSum, check_algorithm, reducer_for
from sparkdl.strategies.sharding import SlicedUpdate
from sparkdl.train import TAIL, Step, StepSums, Task, apply_update

__all__ = ["AllReduce"]

log = logging.getLogger(__name__)

MIB = 1 << 20
BUCKET_BYTES = (0, 1 * MIB, 4 * MIB, 16 * MIB)  # what is tried; 0: no overlap
TRIALS = 4  # steps with each, of which the first does not count
WORTH = 0.97  # times the seconds of a step without overlap that buckets must come down to


@dataclass(frozen=True)
class AllReduce(PeerStrategy):
    """Every step sums the gradients of all workers, straight between them, and each makes the same update.

    The result equals that of tree aggregation and of one worker to rounding. `algorithm` "auto" measures at the start
    and chooses by length among those whose sums have the same bits, which then depend on the number of workers alone;
    "fastest" chooses among all, and two runs may differ in their last bits; any other name is one of
    `comm.ALGORITHMS`.

    bucket_mb: gradients leave in buckets of so many MiB while the backward pass still runs; 0 does without; None tries
    a few sizes in the first steps. shard_optimizer: each worker keeps and updates a slice of the optimizer's state,
    which takes less memory and time, and no overlap. sync_batch_norm: normalise over the whole minibatch, in place of
    each worker's part. compressor: gradients travel as it has them, in one message and without overlap; what it leaves
    out is remembered (see `comm.compress`).
    """

    algorithm: str = "auto"
    bucket_mb: float | None = field(default=None, metadata=NON_NEGATIVE)
    shard_optimizer: bool = False
    sync_batch_norm: bool = False
    compressor: Compressor = field(default_factory=Uncompressed)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm(self.algorithm)
        if self.compressor != Uncompressed() and self.shard_optimizer:
            raise ValueError("shard_optimizer reduces gradients in slices, which compressor does not. Give up one.")

    def check(self, task: Task, workers: int) -> None:
        """Warn of a compressor that moves more bytes than it saves."""
        layout = task.model.layout
        itemsize = np.dtype(task.training.dtype).itemsize
        warning = break_even(self.compressor, layout.num_trainable, itemsize, workers, layout.trainable_segments)[2]
        if warning:
            log.warning("strategy.compressor: %s", warning)

    def steps(self, peer: Peer) -> PeerSteps:
        """As `PeerStrategy.steps`."""
        return _AllReduceSteps(self, peer)

    def simulated(self, workers: int) -> simulate.Mode:
        """As `Strategy.simulated`; an optimizer in slices takes the two halves of a ring."""
        if self.shard_optimizer:
            return simulate.AllReduce("ring")
        bucket_bytes = None if self.bucket_mb is None else self.bucket_mb * MIB
        return simulate.AllReduce(self.algorithm, bucket_bytes, self.compressor)


class _AllReduceSteps(PeerSteps):
    def __init__(self, strategy: AllReduce, peer: Peer) -> None:
        super().__init__(peer)
        layout, dtype = peer.task.model.layout, peer.run.params.dtype
        self._reducer = reducer_for(strategy.algorithm, peer)
        self._vec = self._reducer.zeros(layout.size + TAIL, dtype)
        self._courier = Courier(self.allreduce, peer.comm.interrupt)
        self._sliced: SlicedUpdate | None = None
        self._compressed: CompressedSum | None = None
        self._buckets: Buckets | None = None
        self._trial: _Trial | None = None
        if strategy.sync_batch_norm:
            peer.worker.sync = self._sync
        if strategy.compressor != Uncompressed():
            self._compressed = CompressedSum(strategy.compressor, peer, self._reducer, layout.num_trainable)
        elif strategy.shard_optimizer:
            self._sliced = SlicedUpdate(peer.task, peer.run, peer.comm, self.allreduce)
        else:
            self._plan_buckets(strategy.bucket_mb)

    def allreduce(self, vec: Array) -> None:
        self._reducer.allreduce(vec)

    def step(self, epoch: int, index: int) -> Step:
        peer, vec = self.peer, self._vec
        started = time.perf_counter()
        if self._buckets is not None:
            self._buckets.begin()
        part = peer.worker.gradient(peer.run.params, epoch, index, vec)
        vec[-1] = peer.wish is not None
        wishes, sums, exposed_s = self._reduced()
        ended = time.perf_counter()
        peer.spent_s["data"] += part.data_s
        peer.spent_s["exposed"] += exposed_s
        peer.spent_s["compute"] += ended - started - part.data_s - exposed_s
        if self._trial is not None and self._trial.over(ended - started):
            self._settle()
        peer.stop_if_wished(wishes)
        return Step(sums, part.metrics, part.profile)

    def optimizer_state(self) -> Mapping[str, Array]:
        return super().optimizer_state() if self._sliced is None else self._sliced.optimizer_state()

    def own_state(self) -> Mapping[str, Array]:
        return {} if self._compressed is None else self._compressed.own_state()

    def figures(self) -> dict[str, Any]:
        return super().figures() | ({} if self._compressed is None else self._compressed.figures())

    def close(self, error: BaseException | None = None) -> None:
        self.peer.worker.ready = self.peer.worker.sync = None
        self._courier.close()

    def _reduced(self) -> tuple[float, StepSums, float]:
        """Bring the step vectors together and update; (wishes to stop, sums, seconds spent on other ranks)."""
        peer, vec, started = self.peer, self._vec, time.perf_counter()
        if self._sliced is not None:
            sums = self._sliced.apply(vec)
            return float(vec[-1]), sums, time.perf_counter() - started
        if self._compressed is not None:
            n = peer.task.model.layout.num_trainable
            self._compressed.add_up(vec[:n], peer.run.step)
            self.allreduce(vec[n:])
        elif self._buckets is None:
            self.allreduce(vec)
        else:
            self._buckets.finish()
        exposed_s, wishes = time.perf_counter() - started, float(vec[-1])
        return wishes, apply_update(peer.task, peer.run, vec), exposed_s

    def _sync(self, sums: Array) -> None:
        """Within a pass: in turn with the buckets that are under way."""
        sent: Future[None] = self._courier.send(sums)
        sent.result()

    def _plan_buckets(self, bucket_mb: float | None) -> None:
        if self.peer.comm.size == 1:
            return
        settled = self.peer.run.strategy_state.get("bucket_bytes")
        if bucket_mb is not None:
            self._cut(int(bucket_mb * MIB))
        elif settled is not None:
            self._cut(int(settled))
        else:
            layout, itemsize = self.peer.task.model.layout, self._vec.itemsize
            distinct = {bucket_bounds(layout, itemsize, size): size for size in reversed(BUCKET_BYTES)}
            self._trial = _Trial(sorted(distinct.values()))
            self._cut(self._trial.bucket_bytes)

    def _settle(self) -> None:
        """Go on to the next size to try, or decide, on all ranks alike."""
        trial = self._trial
        assert trial is not None
        if trial.done:
            size = trial.decided(self.peer.comm)
            self.peer.run.strategy_state["bucket_bytes"] = size
            self._trial = None
            self._cut(size)
        else:
            self._cut(trial.bucket_bytes)

    def _cut(self, bucket_bytes: int) -> None:
        bounds = bucket_bounds(self.peer.task.model.layout, self._vec.itemsize, bucket_bytes)
        layout = self.peer.task.model.layout
        self._buckets = Buckets(layout, self._vec, bounds, self._courier) if len(bounds) > 2 else None
        self.peer.worker.ready = None if self._buckets is None else self._buckets.ready


@dataclass
class _Trial:
    """Sizes of buckets tried in turn over the first steps."""

    sizes: list[int]
    seconds: list[list[float]] = field(default_factory=lambda: [[]])

    @property
    def bucket_bytes(self) -> int:
        return self.sizes[len(self.seconds) - 1]

    @property
    def done(self) -> bool:
        return len(self.seconds) > len(self.sizes)

    def over(self, seconds: float) -> bool:
        """Note a step's time; whether it was the last with its size."""
        self.seconds[-1].append(seconds)
        if len(self.seconds[-1]) < TRIALS and len(self.sizes) > 1:
            return False
        self.seconds.append([])
        return True

    def decided(self, comm: Transport) -> int:
        """The size with the shortest steps on the slowest rank; all ranks call it together."""
        times = np.array([median(laps[1:] or laps) for laps in self.seconds[: len(self.sizes)]])
        allreduce(comm, times, "max", "tree")
        times[0] *= WORTH
        return self.sizes[int(np.argmin(times))]
