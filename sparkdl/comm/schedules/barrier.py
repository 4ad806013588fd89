"""Dissemination barrier (Hensgen, Finkel, Manber, 1988)."""

from __future__ import annotations

from collections.abc import Iterator

from sparkdl.comm.schedules.base import Recv, Send, Step

__all__ = ["dissemination"]


def dissemination(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
    """Nobody leaves before all have come: in round k word comes from 2**k ranks before and goes to 2**k after.

    Element 0 of the vector is sent, element 1 receives; both mean nothing.
    """
    far = 1
    while far < size:
        yield Step((Send((rank + far) % size, 0, 1),), (Recv((rank - far) % size, 1, 2),))
        far <<= 1
