"""Pipelined chains: the vector runs along the ranks in segments; each takes one while it passes on the one before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from sparkdl.comm.schedules.base import How, Recv, Send, Step, pieces

__all__ = ["chain", "chain_broadcast", "chain_reduce"]


def _relay(source: int | None, target: int | None, count: int, segment: int, how: How) -> Iterator[Step]:
    """Take each segment from `source` while the one before goes to `target`; an end of the chain lacks one of them."""
    parts = pieces(0, count, segment)
    recvs = [(Recv(source, a, b, how),) for a, b in parts] if source is not None else []
    sends: list[tuple[Send, ...]] = [(Send(target, a, b),) for a, b in parts] if target is not None else []
    if recvs:
        sends.insert(0, ())  # a segment passes on one step after it has come
    for send, recv in zip_longest(sends, recvs, fillvalue=()):
        yield Step(send, recv)


def chain_reduce(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Sum on rank 0, gathered from the last rank down."""
    source, target = (rank + 1 if rank + 1 < size else None), (rank - 1 if rank else None)
    return _relay(source, target, count, segment, "reduce")


def chain_broadcast(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Rank 0's vector to all, passed from rank to rank."""
    source, target = (rank - 1 if rank else None), (rank + 1 if rank + 1 < size else None)
    return _relay(source, target, count, segment, "copy")


def chain(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Allreduce: down the chain summing, up the chain copying."""
    yield from chain_reduce(rank, size, count, segment)
    yield from chain_broadcast(rank, size, count, segment)
