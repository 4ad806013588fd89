"""Binomial trees: ceil(log2 size) rounds, in each of which the set of ranks that are done doubles or halves."""

from __future__ import annotations

from collections.abc import Iterator

from sparkdl.comm.schedules.base import Recv, Send, Step

__all__ = ["tree", "tree_broadcast", "tree_reduce"]


def tree_reduce(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Sum on rank 0. In round k the ranks that are odd multiples of 2**k send to their lower neighbour and leave."""
    bit = 1
    while bit < size:
        if rank & bit:
            yield Step(sends=(Send(rank - bit, 0, count),))
            return
        if rank + bit < size:
            yield Step(recvs=(Recv(rank + bit, 0, count, "reduce"),))
        bit <<= 1


def tree_broadcast(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Rank 0's vector to all: the rounds of `tree_reduce` backwards."""
    # A rank receives from the one without its lowest set bit, then serves the bits below.
    lowest = rank & -rank if rank else 1 << (size - 1).bit_length()
    if rank:
        yield Step(recvs=(Recv(rank - lowest, 0, count),))
    bit = lowest >> 1
    while bit:
        if rank + bit < size:
            yield Step(sends=(Send(rank + bit, 0, count),))
        bit >>= 1


def tree(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Allreduce: up one binomial tree, down the same."""
    yield from tree_reduce(rank, size, count, segment)
    yield from tree_broadcast(rank, size, count, segment)
