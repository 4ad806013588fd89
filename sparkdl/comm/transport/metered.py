"""Counts what a rank sends."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.comm.transport.base import Array, Op, Pending, Transport

__all__ = ["Metered"]


class Metered(Transport):
    """The same transport, and a count of the messages and bytes that this rank has sent through here."""

    def __init__(self, transport: Transport) -> None:
        self.rank, self.size, self.hosts = transport.rank, transport.size, transport.hosts
        self.timeout_s = transport.timeout_s
        self.sent_messages = self.sent_bytes = 0
        self._transport = transport

    def isend(self, peer: int, tag: int, buf: Array) -> Pending:
        pending = self._transport.isend(peer, tag, buf)
        self.sent_messages += 1
        self.sent_bytes += buf.nbytes
        return pending

    def recv(self, peer: int, tag: int, out: Array) -> None:
        self._transport.recv(peer, tag, out)

    def recv_reduce(self, peer: int, tag: int, out: Array, op: Op) -> None:
        self._transport.recv_reduce(peer, tag, out, op)

    def wait_any(self, peers: Sequence[int], timeout_s: float | None = None) -> int | None:
        return self._transport.wait_any(peers, timeout_s)

    def abort(self, reason: str) -> None:
        self._transport.abort(reason)

    def interrupt(self, reason: str) -> None:
        self._transport.interrupt(reason)

    def close(self) -> None:
        self._transport.close()
