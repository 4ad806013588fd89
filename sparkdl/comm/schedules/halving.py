"""Butterflies: partners at distances that double; log2 size rounds.

Both add every element up in the same order, which depends on the number of ranks alone: whatever is chosen between
them, for whatever length or piece of a vector, the sum has the same bits.

Rabenseifner, "Optimization of collective reduction operations" (ICCS 2004); Thakur, Rabenseifner, Gropp, "Optimization
of collective communication operations in MPICH" (2005), also for the folding of sizes that are no power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkdl.comm.schedules.base import Recv, Schedule, Send, Step, among, cuts

__all__ = ["Folded", "rabenseifner", "recursive_doubling"]


@dataclass(frozen=True)
class Folded:
    """An allreduce for powers of two, made to serve any size.

    With 2**k the largest power within size, each even rank below 2 (size - 2**k) first hands its vector to the odd rank
    after it and is given the result at the end; the 2**k others run the core.
    """

    core: Schedule

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        """The steps of `rank`."""
        folded = 2 * (size - (1 << (size.bit_length() - 1)))
        if rank < folded and rank % 2 == 0:
            yield Step(sends=(Send(rank + 1, 0, count),))
            yield Step(recvs=(Recv(rank + 1, 0, count),))
            return
        if rank < folded:
            yield Step(recvs=(Recv(rank - 1, 0, count, "reduce"),))
        members = [*range(1, folded, 2), *range(folded, size)] if folded else range(size)
        yield from among(members, self.core, rank, count, segment)
        if rank < folded:
            yield Step(sends=(Send(rank - 1, 0, count),))


def _doubling(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    bit = 1
    while bit < size:
        yield Step((Send(rank ^ bit, 0, count),), (Recv(rank ^ bit, 0, count, "merge"),))
        bit <<= 1


def _halving(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    # Nearest partners first, as in _doubling: so every element is added up in the same order there and here, and the
    # longest messages pass between neighbours, which often share a host.
    bounds = cuts(count, size)
    chunks, at, bit = size, 0, 1  # this rank works on chunks [at, at + chunks)
    rounds = []
    while bit < size:
        chunks >>= 1
        keep, give = (at + chunks, at) if rank & bit else (at, at + chunks)
        rounds.append((rank ^ bit, bounds[keep], bounds[keep + chunks], bounds[give], bounds[give + chunks]))
        at, bit = keep, bit << 1
    for peer, a, b, c, d in rounds:
        yield Step((Send(peer, c, d),), (Recv(peer, a, b, "reduce"),))
    for peer, a, b, c, d in reversed(rounds):
        yield Step((Send(peer, a, b),), (Recv(peer, c, d),))


recursive_doubling = Folded(_doubling)
"""Allreduce in which partners exchange whole vectors: the fewest rounds, log2(size) times the bytes."""

rabenseifner = Folded(_halving)
"""Allreduce by recursive halving (a reduce-scatter) and its reverse (an allgather): few rounds, few bytes."""
