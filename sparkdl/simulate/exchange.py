"""Sums over all workers, as they are or compressed, and the meetings that they make up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.comm.schedules import RingAllgather, cuts
from sparkdl.comm.schedules.base import Recv, Send, Step
from sparkdl.simulate.collective import Collective, Part, Timed
from sparkdl.simulate.setting import Outcome, Setting

__all__ = ["direct", "meetings", "message_bytes", "summing"]

SMALL = 16  # bytes of the shares and wishes that are told before a sum, and of a message's length


def direct(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Chunk r of every rank to rank r, straight, first to the next rank and last to the one before."""
    bounds = cuts(count, size)
    for shift in range(1, size):
        to, source = (rank + shift) % size, (rank - shift) % size
        send = Send(to, bounds[to], bounds[to + 1])
        yield Step((send,), (Recv(source, bounds[rank], bounds[rank + 1], "reduce"),))


def message_bytes(setting: Setting, compressor: Compressor) -> tuple[float, float]:
    """Bytes of a rank's message, and of what does not go through the compressor."""
    size = setting.trainable
    if isinstance(compressor, Uncompressed):
        return setting.nbytes, 0.0
    return compressor.nbytes(size, setting.itemsize, setting.segments), setting.nbytes - size * setting.itemsize


def summing(setting: Setting, algorithm: str, compressor: Compressor) -> list[Part]:
    """What it takes to sum the vector over all ranks, part after part (see `comm.compress.exchange`)."""
    cluster, size = setting.cluster, setting.cluster.workers
    if isinstance(compressor, Uncompressed) or size == 1:
        return [Collective(algorithm, cluster, setting.nbytes)]
    sent, rest = message_bytes(setting, compressor)
    rest_sum = Collective(algorithm, cluster, max(rest, SMALL))
    if compressor.route in ("dense", "reduce"):
        return [Collective(algorithm, cluster, sent), rest_sum]
    if compressor.route == "gather":
        lengths, messages = (_gathering(setting, nbytes) for nbytes in (SMALL / 2, sent))
        return [lengths, messages, rest_sum]
    chunk = compressor.nbytes(math.ceil(setting.trainable / size), setting.itemsize)
    # An element for each chunk: all are as long.
    straight = Timed(direct, cluster, size, 1, chunk, rotational=True)
    return [straight, _gathering(setting, chunk), rest_sum]


def _gathering(setting: Setting, nbytes: float) -> Timed:
    """One message of every rank to all, around a ring."""
    return Timed(RingAllgather(), setting.cluster, setting.cluster.workers, 1, nbytes, rotational=True)


def meetings(setting: Setting, parts: Sequence[Part], period: int) -> Outcome:
    """All workers go through `parts` together after every `period` local steps."""
    size, count = setting.cluster.workers, -(-setting.steps // period)
    clocks, waited = np.zeros(size), 0.0
    for _ in range(count):
        clocks = clocks + setting.draw(period).sum(axis=0)
        waited += float(clocks.max() - clocks.mean())
        for part in parts:
            clocks = part.finish(clocks)
    sent = sum(part.sent_bytes for part in parts) / period if size > 1 else 0.0
    staleness = np.arange(period if size > 1 else 1)  # a lone worker misses nothing
    return Outcome(size * count * period, float(clocks.max()), sent, staleness, waited / (count * period))
