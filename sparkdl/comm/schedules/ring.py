"""Rings: every rank talks to its two neighbours only, and all links carry the same load all the time.

Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from sparkdl.comm.schedules.base import How, Recv, Send, Step, cuts

__all__ = ["RingAllgather", "RingReduceScatter", "ring", "segmented_ring"]


@dataclass(frozen=True)
class RingReduceScatter:
    """Chunk r of the sum on rank r; the rest is used up. `bounds` (size + 1) cut the vector, else it is cut evenly."""

    bounds: tuple[int, ...] | None = None

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        """The steps of `rank`."""
        bounds = self.bounds or cuts(count, size)
        right, left = (rank + 1) % size, (rank - 1) % size
        # Chunk r - 1 - s leaves right while r - 2 - s arrives from left, so they never alias.
        for s in range(size - 1):
            out, into = (rank - 1 - s) % size, (rank - 2 - s) % size
            send = Send(right, bounds[out], bounds[out + 1])
            yield Step((send,), (Recv(left, bounds[into], bounds[into + 1], "reduce"),))


@dataclass(frozen=True)
class RingAllgather:
    """Chunk r of rank r to all. `bounds` (size + 1) cut the vector, else it is cut evenly."""

    bounds: tuple[int, ...] | None = None

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        """The steps of `rank`."""
        bounds = self.bounds or cuts(count, size)
        right, left = (rank + 1) % size, (rank - 1) % size
        for s in range(size - 1):
            out, into = (rank - s) % size, (rank - 1 - s) % size
            yield Step((Send(right, bounds[out], bounds[out + 1]),), (Recv(left, bounds[into], bounds[into + 1]),))


def ring(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Allreduce: reduce-scatter, then allgather; each rank sends 2 (size - 1) / size of the vector."""
    yield from RingReduceScatter()(rank, size, count, segment)
    yield from RingAllgather()(rank, size, count, segment)


def segmented_ring(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Allreduce: the ring with every chunk cut in two or more segments, so that a rank passes one on while more come.

    Laid end to end, the ring's chunks form one row of items to send and one to receive; item i may leave once the same
    segment has come one turn, two items or more, earlier. All chunks have as many segments: neighbours keep in step.
    """
    bounds = cuts(count, size)
    parts = max(2, -(-count // (size * max(segment, 1))))
    right, left = (rank + 1) % size, (rank - 1) % size
    for s in range(2 * size - 2):
        out, into = (rank - 1 - s) % size, (rank - 2 - s) % size
        rows = (cuts(bounds[c + 1] - bounds[c], parts) for c in (out, into))
        for (a, b), (c, d) in zip(*map(pairwise, rows), strict=True):
            send = Send(right, bounds[out] + a, bounds[out] + b)
            how: How = "reduce" if s < size - 1 else "copy"
            yield Step((send,), (Recv(left, bounds[into] + c, bounds[into] + d, how),))
