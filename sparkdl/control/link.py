"""A worker's end of the line to the driver."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from sparkdl.comm import PeerAborted
from sparkdl.comm.transport.auth import Edge, Identity, Refused, dial
from sparkdl.comm.transport.stream import Tls, stream_over
from sparkdl.control.messages import Array, Message, Wire, converse
from sparkdl.errors import TrainingError

__all__ = ["ABORT", "ALIVE", "BEATS", "CONVERSATION_S", "GATHER", "Link"]

ALIVE = "alive"  # what either end says while it has nothing to say
GATHER, ABORT = "gather", "abort"  # a text for all ranks; that a rank has failed
BEATS = 3  # of them within timeout_s, from either end
CONVERSATION_S = 5.0
RETRY_S = 0.3
MAX_ANSWER_BYTES = 1 << 20  # arrays go to the driver, not from it


class Link:
    """Reports of one rank, and the driver's answers. A driver that is silent for `timeout_s` is taken for lost.

    Errors: TrainingError from all methods; PeerAborted where the driver says so.
    """

    def __init__(self, wire: Wire, rank: int, timeout_s: float) -> None:
        self._wire, self._rank, self._timeout_s = wire, rank, timeout_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=f"sparkdl-link-{rank}", daemon=True)
        self._beating.start()

    @classmethod
    def to(
        cls,
        address: tuple[str, int],
        identity: Identity,
        timeout_s: float,
        connect_timeout_s: float,
        tls: Tls | None = None,
    ) -> Link:
        """Connect with the coordinator at address, whose rank is the last of the identity's size.

        Returns once it has spoken: then its answers reach this rank.
        """
        deadline = time.monotonic() + connect_timeout_s
        while True:
            try:
                return cls(_dialed(address, identity, tls), identity.rank, timeout_s)
            except (OSError, Refused) as e:
                if time.monotonic() + RETRY_S >= deadline or isinstance(e, Refused):
                    raise TrainingError(
                        f"rank {identity.rank} cannot reach the driver at {address[0]} port {address[1]}: {e}. "
                        "Executors must be able to connect to spark.driver.host; a firewall may need "
                        "network.port_range."
                    ) from e
                time.sleep(RETRY_S)

    def send(self, kind: str, data: Mapping[str, Any] | None = None, arrays: Mapping[str, Array] | None = None) -> None:
        """Report to the driver."""
        try:
            with self._lock:
                self._wire.send(Message(kind, data or {}, arrays or {}), self._timeout_s)
        except OSError as e:
            raise self._lost(e) from e

    def poll(self) -> Message | None:
        """What the driver has said meanwhile, without waiting for it."""
        while self._wire.pending():
            message = self._next()
            if message.kind != ALIVE:
                return self._checked(message)
        return None

    def receive(self) -> Message:
        """The driver's next word. While it is busy it shows that it is alive; there is no other limit."""
        while (message := self._next()).kind == ALIVE:
            pass
        return self._checked(message)

    def allgather(self, text: str) -> list[str]:
        """The texts of all ranks, by way of the driver. Errors: PeerAborted where a rank has failed meanwhile."""
        self.send(GATHER, {"text": text})
        texts: list[str] = self.receive().data["texts"]
        return texts

    def close(self) -> None:
        """End the connection and the thread that shows the driver that this process is alive."""
        self._closed.set()
        self._wire.shut()
        self._beating.join()
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _beat(self) -> None:
        while not self._closed.wait(self._timeout_s / BEATS):
            try:
                self.send(ALIVE)
            except TrainingError:
                return  # whoever speaks or listens next finds out

    def _checked(self, message: Message) -> Message:
        if message.kind == ABORT:
            raise PeerAborted(message.data["reason"], rank=self._rank, culprit=message.data["culprit"])
        return message

    def _next(self) -> Message:
        try:
            return self._wire.receive(self._timeout_s)
        except OSError as e:
            raise self._lost(e) from e

    def _lost(self, error: OSError) -> TrainingError:
        why = f"it has been silent for {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        return TrainingError(f"rank {self._rank} has lost the driver: {why}")


def _dialed(address: tuple[str, int], identity: Identity, tls: Tls | None) -> Wire:
    stream = stream_over(socket.create_connection(address, CONVERSATION_S), tls, address[0])
    try:
        converse(stream, dial(identity, Edge(identity.size - 1, 0)), CONVERSATION_S)
        wire = Wire(stream, MAX_ANSWER_BYTES)
        wire.receive(CONVERSATION_S)
    except BaseException:
        stream.close()
        raise
    return wire
