"""Some ranks of a circle among themselves."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.comm.transport.base import Array, Op, Pending, Transport

__all__ = ["Among"]


class Among(Transport):
    """The same transport for the ranks `ranks` alone, which count from 0 here, in that order.

    Errors still name the ranks of the whole circle. What ends this transport ends the other.
    """

    def __init__(self, transport: Transport, ranks: Sequence[int]) -> None:
        self._transport, self._ranks = transport, tuple(ranks)
        self._places = {rank: place for place, rank in enumerate(self._ranks)}
        self.rank, self.size = self._places[transport.rank], len(self._ranks)
        self.hosts = tuple(transport.hosts[rank] for rank in self._ranks)
        self.timeout_s = transport.timeout_s

    def isend(self, peer: int, tag: int, buf: Array) -> Pending:
        return self._transport.isend(self._ranks[peer], tag, buf)

    def recv(self, peer: int, tag: int, out: Array) -> None:
        self._transport.recv(self._ranks[peer], tag, out)

    def recv_reduce(self, peer: int, tag: int, out: Array, op: Op) -> None:
        self._transport.recv_reduce(self._ranks[peer], tag, out, op)

    def wait_any(self, peers: Sequence[int], timeout_s: float | None = None) -> int | None:
        found = self._transport.wait_any([self._ranks[peer] for peer in peers], timeout_s)
        return None if found is None else self._places[found]

    def abort(self, reason: str) -> None:
        self._transport.abort(reason)

    def interrupt(self, reason: str) -> None:
        self._transport.interrupt(reason)

    def close(self) -> None:
        self._transport.close()
