"""Star: everyone sends to rank 0, which adds up and sends back."""

from __future__ import annotations

from collections.abc import Iterator

from sparkdl.comm.schedules.base import Recv, Send, Step

__all__ = ["star"]


def star(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Allreduce through rank 0, in 2 (size - 1) messages; what a driver or a parameter server does."""
    if rank == 0:
        yield Step(recvs=tuple(Recv(peer, 0, count, "reduce") for peer in range(1, size)))
        yield Step(sends=tuple(Send(peer, 0, count) for peer in range(1, size)))
    else:
        yield Step(sends=(Send(0, 0, count),))
        yield Step(recvs=(Recv(0, 0, count),))
