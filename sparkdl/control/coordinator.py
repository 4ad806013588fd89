"""The driver's end: hears what every worker reports, and answers."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from sparkdl.comm.transport.addresses import listen
from sparkdl.comm.transport.auth import Edge, Identity, Refused, answer
from sparkdl.comm.transport.options import TransportOptions
from sparkdl.comm.transport.stream import Stream, stream_over
from sparkdl.control.link import ABORT, ALIVE, BEATS, CONVERSATION_S, GATHER
from sparkdl.control.messages import Message, Wire, WireError, converse

__all__ = ["GONE", "Coordinator", "Report"]

log = logging.getLogger(__name__)

GONE = "gone"  # the kind of a report that a connection has ended
MAX_STRANGERS = 64  # connections at a time that have not proved themselves
MAX_COMPLAINTS = 10
RETRY_S = 0.1


class Report(NamedTuple):
    """What a rank has said."""

    rank: int
    message: Message


class Coordinator:
    """Listens for `size` ranks; their reports come out of `next` in the order of arrival.

    identity is the driver's: the last rank of size + 1. Whoever does not know the secret of this attempt is turned away
    with a line in the log. The ranks' texts to one another (`Link.allgather`) are passed on here. A thread for each
    rank reads what it sends, so that none waits for another; a beat tells all of them that the driver is alive,
    whatever its main thread does. max_bytes bounds the arrays of one report.
    """

    def __init__(self, identity: Identity, options: TransportOptions, max_bytes: int) -> None:
        self.size = identity.rank
        self._identity, self._options, self._max_bytes = identity, options, max_bytes
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._wires: dict[int, tuple[Wire, threading.Lock]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._texts: dict[int, str] = {}
        self._aborted: tuple[int | None, str] | None = None
        self._strangers = threading.Semaphore(MAX_STRANGERS)
        self._streams: set[Stream] = set()
        self._refused = 0
        self._listener = listen(options)
        self._listener.setblocking(True)
        self.port: int = self._listener.getsockname()[1]
        self._threads: set[threading.Thread] = set()
        self._start(self._accept, "accept")
        self._start(self._beat, "beat")

    def next(self, timeout_s: float) -> Report | None:
        """The next report, or None where there is none within the time. A rank that leaves or falls silent is GONE."""
        try:
            return self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def send(self, rank: int, kind: str, data: Mapping[str, Any] | None = None) -> bool:
        """Answer a rank; False where it is not there, or not any more."""
        if rank not in self._wires:
            return False
        wire, lock = self._wires[rank]
        try:
            with lock:
                wire.send(Message(kind, data or {}), self._options.timeout_s)
        except OSError:
            return False
        return True

    def abort(self, culprit: int | None, reason: str) -> None:
        """Tell all ranks that one of them, or the driver (None), has failed: they need not wait for an answer.

        Ranks that connect later hear it too.
        """
        with self._lock:
            self._aborted, present = (culprit, reason), list(self._wires)
        for rank in present:
            self._pass_on(rank, culprit, reason)

    def close(self) -> None:
        """End all connections and threads. May be called more than once."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for stream in self._streams:
                stream.shut()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _start(self, target: Any, name: str, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name=f"sparkdl-coordinator-{name}", daemon=True)
        with self._lock:
            self._threads = {t for t in self._threads if t.is_alive()} | {thread}
            thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError:  # closed, a connection that ended before it was accepted, or no descriptors left
                self._closed.wait(RETRY_S)
                continue
            if not self._strangers.acquire(blocking=False):
                self._complain(address, "too many connections at once")
                sock.close()
                continue
            stream = stream_over(sock, self._options.tls, None)
            with self._lock:
                self._streams.add(stream)
                if self._closed.is_set():
                    stream.shut()
            self._start(self._serve, "rank", stream, address)

    def _serve(self, stream: Stream, address: Any) -> None:
        """Let one connection prove itself, then read its reports until it ends."""
        try:
            rank = self._met(stream, address)
            if rank is not None:
                self._read(rank)
        finally:
            with self._lock:
                self._streams.discard(stream)
            stream.close()

    def _met(self, stream: Stream, address: Any) -> int | None:
        try:
            edge = converse(stream, answer(self._identity, self._admit), CONVERSATION_S)
            self._welcome(edge, Wire(stream, self._max_bytes))
        except (OSError, Refused) as e:
            if not self._closed.is_set():
                self._complain(address, e)
            return None
        finally:
            self._strangers.release()
        return edge.peer

    def _welcome(self, edge: Edge, wire: Wire) -> None:
        """From here on the rank can be answered; the first word tells it so, and nothing comes before that."""
        speaking = threading.Lock()
        with speaking:
            with self._lock:
                self._admit(edge)
                self._wires[edge.peer], aborted = (wire, speaking), self._aborted
            with suppress(OSError):  # its reader tells
                wire.send(Message(ALIVE), CONVERSATION_S)
        if aborted is not None:
            self._pass_on(edge.peer, *aborted)

    def _pass_on(self, rank: int, culprit: int | None, reason: str) -> None:
        if rank != culprit:
            self.send(rank, ABORT, {"culprit": culprit, "reason": reason})

    def _admit(self, edge: Edge) -> None:
        if edge.peer in self._wires or edge.stream:
            raise Refused(f"rank {edge.peer} is connected already")

    def _read(self, rank: int) -> None:
        wire, _ = self._wires[rank]
        try:
            while True:
                message = wire.receive(self._options.timeout_s)
                if message.kind == GATHER:
                    self._gather(rank, message)
                elif message.kind != ALIVE:
                    self._reports.put(Report(rank, message))
        except OSError as e:
            silent = f"no sign of life for {self._options.timeout_s:g} s"
            reason = silent if isinstance(e, TimeoutError) else str(e)
            self._reports.put(Report(rank, Message(GONE, {"reason": reason})))

    def _gather(self, rank: int, message: Message) -> None:
        """Once all ranks have sent their texts, all get all."""
        text = message.data.get("text")
        if not isinstance(text, str):
            raise WireError("a message for all ranks that has no text")
        with self._lock:
            self._texts[rank] = text
            if len(self._texts) < self.size:
                return
            texts, self._texts = [self._texts[r] for r in range(self.size)], {}
        for peer in range(self.size):
            self.send(peer, GATHER, {"texts": texts})

    def _beat(self) -> None:
        while not self._closed.wait(self._options.timeout_s / BEATS):
            for rank in list(self._wires):
                wire, lock = self._wires[rank]
                if lock.acquire(blocking=False):  # whoever holds it is saying something
                    try:
                        wire.send(Message(ALIVE), self._options.timeout_s)
                    except OSError:
                        pass  # its reader tells
                    finally:
                        lock.release()

    def _complain(self, address: Any, why: object) -> None:
        self._refused += 1
        if self._refused <= MAX_COMPLAINTS:
            log.warning("the coordinator refused a connection from %s port %s: %s", address[0], address[1], why)
