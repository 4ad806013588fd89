"""Ranks as threads of one process: a receive copies straight out of the sender's buffer."""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from sparkdl.comm.transport.base import (
    Array,
    CommError,
    MessageMismatch,
    Op,
    OperationTimeout,
    PeerAborted,
    PeerLost,
    Pending,
    Transport,
    combine,
)
from sparkdl.comm.transport.frames import Header, check_buffer, describe
from sparkdl.comm.transport.options import TransportOptions

__all__ = ["InprocTransport", "inproc_group"]

T = TypeVar("T")
NOTHING: Array = np.empty(0, np.uint8)


def inproc_group(size: int, options: TransportOptions | None = None) -> list[Transport]:
    """The transports of `size` ranks, each for one thread. A thread cannot freeze: only operation_timeout_s counts."""
    options = options or TransportOptions()
    group = _Group(size)
    return [InprocTransport(group, rank, options) for rank in range(size)]


class _Message(NamedTuple):
    header: Header
    buf: Array


class _Pair:
    """What goes from one rank to another: messages, and for each a receipt the other way. None wakes whoever waits."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self.receipts: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.sent = self.received = self.receipted = 0


class _Group:
    """The pairs, by sender and receiver, and the first failure."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pairs = {(a, b): _Pair() for a in range(size) for b in range(size)}
        self.news = [threading.Event() for _ in range(size)]  # by receiver
        self.failure: CommError | None = None
        self._lock = threading.Lock()

    def fail(self, error: CommError) -> None:
        with self._lock:
            self.failure = self.failure or error
        for pair in self.pairs.values():
            pair.messages.put(None)
            pair.receipts.put(None)
        for event in self.news:
            event.set()

    def leave(self, rank: int) -> None:
        for peer in range(self.size):
            self.pairs[rank, peer].messages.put(None)
            self.pairs[peer, rank].receipts.put(None)
            self.news[peer].set()


class InprocTransport(Transport):
    """One rank of an `inproc_group`. A send is complete when the receiver has copied it: nothing is buffered."""

    def __init__(self, group: _Group, rank: int, options: TransportOptions) -> None:
        self.rank, self.size, self.timeout_s = rank, group.size, options.timeout_s
        self.hosts = ("",) * group.size
        self._group, self._deadline_s = group, options.operation_timeout_s
        self._broken: CommError | None = None

    def isend(self, peer: int, tag: int, buf: Array) -> Pending:
        self._check("isend", peer, tag, buf)
        pair = self._group.pairs[self.rank, peer]
        message = _Message(Header.of(pair.sent, tag, buf), buf)
        pair.sent += 1
        pair.messages.put(message)
        self._group.news[peer].set()
        return _Send(self, peer, message)

    def recv(self, peer: int, tag: int, out: Array) -> None:
        self._receive("recv", peer, tag, out, lambda buf: np.copyto(out, buf))

    def recv_reduce(self, peer: int, tag: int, out: Array, op: Op) -> None:
        self._receive("recv_reduce", peer, tag, out, lambda buf: combine(out, buf, op))

    def wait_any(self, peers: Sequence[int], timeout_s: float | None = None) -> int | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        news = self._group.news[self.rank]
        while True:
            self._check("wait_any", peers[0], 0, NOTHING)
            news.clear()  # whatever comes after this look sets it again
            found = next((peer for peer in peers if not self._group.pairs[peer, self.rank].messages.empty()), None)
            rest = None if deadline is None else deadline - time.monotonic()
            if found is not None or (rest is not None and rest <= 0):
                return found
            news.wait(rest)

    def abort(self, reason: str) -> None:
        if self._broken is None:
            self._group.fail(CommError(reason, rank=self.rank, culprit=self.rank))
            self.close()

    def interrupt(self, reason: str) -> None:
        self._group.fail(CommError(reason, rank=self.rank, culprit=self.rank))

    def close(self) -> None:
        if self._broken is None:
            self._broken = CommError("the transport is closed", rank=self.rank)
            self._group.leave(self.rank)

    def wait_for(self, peer: int, message: _Message) -> None:
        """Return when peer has copied the message."""
        pair, header = self._group.pairs[self.rank, peer], message.header
        while pair.receipted <= header.sequence:
            self._check("isend", peer, header.tag, message.buf)
            self._take(pair.receipts, "isend", peer, header.tag, message.buf)
            pair.receipted += 1

    def _receive(self, verb: str, peer: int, tag: int, out: Array, use: Callable[[Array], None]) -> None:
        self._check(verb, peer, tag, out)
        pair = self._group.pairs[peer, self.rank]
        expected = Header.of(pair.received, tag, out)
        pair.received += 1
        message = self._take(pair.messages, verb, peer, tag, out)
        if message.header != expected:
            reason = f"rank {self.rank} expects {expected}, rank {peer} sent {message.header}"
            operation = describe(verb, peer, tag, out)
            raise self._broken_by(MessageMismatch(reason, rank=self.rank, peer=peer, operation=operation))
        use(message.buf)
        pair.receipts.put(expected.sequence)

    def _check(self, verb: str, peer: int, tag: int, buf: Array) -> None:
        if self._broken is not None:
            raise copy.copy(self._broken)
        check_buffer(self.rank, self.size, peer, buf, write=verb != "isend")
        if self._group.failure is not None:
            raise self._broken_by(self._aborted(self._group.failure, peer, describe(verb, peer, tag, buf), 0.0))

    def _take(self, source: queue.SimpleQueue[T | None], verb: str, peer: int, tag: int, buf: Array) -> T:
        """The next item; raises when the group has failed, the peer has left, or the deadline has passed."""
        start = time.monotonic()
        kind: type[CommError] = PeerLost
        reason = f"lost rank {peer}: it has closed its transport"
        try:
            item = source.get(timeout=self._deadline_s)
            if item is not None:
                return item
        except queue.Empty:
            kind, reason = OperationTimeout, f"nothing moves, though rank {peer} is alive"
        operation, elapsed_s = describe(verb, peer, tag, buf), time.monotonic() - start
        if self._group.failure is not None:
            raise self._broken_by(self._aborted(self._group.failure, peer, operation, elapsed_s))
        raise self._broken_by(kind(reason, rank=self.rank, peer=peer, operation=operation, elapsed_s=elapsed_s))

    def _aborted(self, first: CommError, peer: int, operation: str, elapsed_s: float) -> PeerAborted:
        reason, culprit = f"rank {first.culprit} failed: {first.reason}", first.culprit
        return PeerAborted(reason, rank=self.rank, peer=peer, operation=operation, elapsed_s=elapsed_s, culprit=culprit)

    def _broken_by(self, error: CommError) -> CommError:
        """Leave because of the error, telling the others; returns it."""
        self._broken = error
        self._group.fail(error)
        return error


class _Send(NamedTuple):
    transport: InprocTransport
    peer: int
    message: _Message

    def wait(self) -> None:
        self.transport.wait_for(self.peer, self.message)
