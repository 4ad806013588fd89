"""The contract of a transport: messages between ranks, in order, full duplex, with a deadline on everything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from sparkdl.errors import SparkdlError

if TYPE_CHECKING:
    from sparkdl.comm.transport.arena import Arena

__all__ = [
    "Array",
    "CommError",
    "MessageMismatch",
    "Op",
    "OperationTimeout",
    "PeerAborted",
    "PeerLost",
    "Pending",
    "RendezvousError",
    "Transport",
    "combine",
]

Array = np.ndarray[Any, np.dtype[Any]]
Op = Literal["sum", "max"]


class CommError(SparkdlError):
    """Communication that cannot go on. After one the transport is broken, and every later call raises it again.

    `rank` met it while doing `operation` with `peer` for `elapsed_s`; `culprit` is the rank that failed first, as far
    as is known: the one to look at, where `peer` may merely have been the messenger.
    """

    def __init__(
        self,
        reason: str,
        *,
        rank: int,
        peer: int | None = None,
        operation: str = "",
        elapsed_s: float = 0.0,
        culprit: int | None = None,
    ) -> None:
        self.reason, self.rank, self.peer, self.operation = reason, rank, peer, operation
        self.elapsed_s, self.culprit = elapsed_s, peer if culprit is None else culprit
        where = f"rank {rank}" + (f", {operation}" if operation else "")
        super().__init__(f"{where}: {reason}" + (f", after {elapsed_s:.1f} s" if operation else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.reason, self.rank, self.peer, self.operation, self.elapsed_s, self.culprit)


class PeerLost(CommError):
    """The peer's connection closed or was reset, or nothing showed that it lives for `timeout_s`."""


class PeerAborted(CommError):
    """A peer left with a reason: its own failure, or that of the culprit it names."""


class OperationTimeout(CommError):
    """The peer is alive, but the operation did not end within `operation_timeout_s`."""


class MessageMismatch(CommError):
    """The next message from the peer is not the one this rank is waiting for."""


class RendezvousError(CommError):
    """The ranks could not find, reach or authenticate one another."""


def _rebuild(
    kind: type[CommError],
    reason: str,
    rank: int,
    peer: int | None,
    operation: str,
    elapsed_s: float,
    culprit: int | None,
) -> CommError:
    return kind(reason, rank=rank, peer=peer, operation=operation, elapsed_s=elapsed_s, culprit=culprit)


class Pending(Protocol):
    """A send under way; it is complete, and its buffer free again, when `wait` returns."""

    def wait(self) -> None: ...


class Transport(ABC):
    """Messages between `size` ranks; this one is `rank`. One thread at a time may call it, `interrupt` excepted.

    A message is a contiguous one-dimensional array. Those from one peer arrive in the order they were sent and must be
    asked for in that order, with the same tag, dtype and count: anything else is a MessageMismatch that names both
    ranks and both messages. (Matching in order needs no buffer for messages nobody has asked for yet, so that the
    bytes go straight into `out`.)

    `isend` starts a send and returns; whatever the channel does not take at once is pushed on by later `recv`,
    `recv_reduce` and `wait` calls in the caller's thread. Hence two ranks that send each other 64 MiB and then receive
    do not deadlock; two that *wait* for such a send before they receive do, until the deadline.

    After an error the transport is broken, and the contents of `out` are undefined.

    A peer that shows no sign of life for `timeout_s` is lost. One that lives may keep an operation waiting up to
    `operation_timeout_s`.
    """

    rank: int
    size: int
    timeout_s: float
    hosts: tuple[str, ...]  # by rank, the same on all ranks: equal names where memory may be shared
    arena: Arena | None = None  # memory in which the ranks of this host can work together

    @abstractmethod
    def isend(self, peer: int, tag: int, buf: Array) -> Pending:
        """Start to send buf (count,) to peer. Leave buf alone until the returned send is complete."""

    @abstractmethod
    def recv(self, peer: int, tag: int, out: Array) -> None:
        """Fill out (count,) with the next message from peer."""

    @abstractmethod
    def recv_reduce(self, peer: int, tag: int, out: Array, op: Op) -> None:
        """out = op(out, next message from peer), in place, piece by piece as it arrives."""

    @abstractmethod
    def wait_any(self, peers: Sequence[int], timeout_s: float | None = None) -> int | None:
        """Return one of peers from which a message has begun to arrive, looked for in their order; it stays unread.

        None after timeout_s; without, the wait has no end as long as all peers live. Sends go on meanwhile. A peer that
        has left counts as one with news: the next recv tells of it.
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Leave at once, telling all peers why, so that they report this rank and its reason. Closes."""

    @abstractmethod
    def interrupt(self, reason: str) -> None:
        """From any thread: the peers hear why; the operation under way fails, as do all later ones. Closes nothing."""

    @abstractmethod
    def close(self) -> None:
        """Leave in peace and release sockets, threads and memory. May be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abort(f"{type(error).__name__}: {error}")


def combine(out: Array, incoming: Array, op: Op) -> None:
    """out = op(out, incoming), in place. NumPy adds float16 in float32 and rounds once; max keeps NaN.

    Infinities and NaN pass without a warning: whoever owns the numbers decides what they mean.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        (np.add if op == "sum" else np.maximum)(out, incoming, out=out)
