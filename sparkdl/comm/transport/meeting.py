"""How a rank comes by its connections: it dials some peers and listens for the others, in one loop without threads.

Of two ranks the higher one dials. Whoever else finds the port, or comes with a wrong secret, an old attempt or as a
rank that is already there, is turned away with a line in the log; the meeting goes on.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import selectors
import socket
import time
from collections.abc import Iterable, Mapping

from sparkdl.comm.transport.addresses import family
from sparkdl.comm.transport.auth import Edge, Identity, Refused, answer, dial
from sparkdl.comm.transport.base import RendezvousError
from sparkdl.comm.transport.doorbell import Doorbell
from sparkdl.comm.transport.options import TransportOptions
from sparkdl.comm.transport.sharing import accept_memory, offer_memory
from sparkdl.comm.transport.shm import ShmChannel
from sparkdl.comm.transport.stream import Stream, stream_over
from sparkdl.comm.transport.talk import Script, Talk

__all__ = ["Meeting"]

log = logging.getLogger(__name__)

CONVERSATION_S = 5.0  # what one connection may take to prove itself
RETRY_S, RETRY_FACTOR, MAX_RETRY_S = 0.2, 1.3, 3.0
MIN_STRANGERS = 256  # connections that have not proved themselves: so many, or four for each awaited one, are borne
MAX_COMPLAINTS = 10  # lines in the log about refused connections; the rest is counted


class Meeting:
    """Connects a rank with the peers in `addresses`; `run` ends with all of them in `streams` and `memory`, or raises.

    Peers in `sharing` are offered memory first, and get data streams only where that fails.
    """

    def __init__(
        self,
        identity: Identity,
        listener: socket.socket,
        addresses: Mapping[int, tuple[str, int]],
        sharing: Iterable[int],
        doorbell: Doorbell,
        options: TransportOptions,
    ) -> None:
        self.streams: dict[Edge, Stream] = {}
        self.memory: dict[int, ShmChannel] = {}
        self._identity, self._listener, self._addresses = identity, listener, addresses
        self._sharing, self._doorbell, self._options = frozenset(sharing), doorbell, options
        self._missing = {Edge(peer, 0) for peer in addresses}
        self._due: dict[Edge, float] = {}  # when to dial, for edges that wait for their next attempt
        self._attempts: dict[Edge, int] = {}
        self._errors: dict[int, str] = {}  # the last one met with each peer
        self._talks: list[Talk] = []  # in order of their beginning
        self._refused = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Meet all peers within connect_timeout_s. RendezvousError names those that are missing, and why."""
        deadline = time.monotonic() + self._options.connect_timeout_s
        for peer in self._addresses:
            if peer not in self._sharing:
                self._need_streams(peer)
        self._due = {edge: 0.0 for edge in sorted(self._missing) if edge.peer < self._identity.rank}
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._missing:
                self._turn(deadline)
        except BaseException:
            self.close()
            raise
        finally:
            for talk in list(self._talks):
                self._drop(talk)
            self._selector.close()
            if self._refused > MAX_COMPLAINTS:
                log.warning("rank %d refused %d connections in all", self._identity.rank, self._refused)

    def close(self) -> None:
        """Close all connections made so far."""
        for stream in self.streams.values():
            stream.close()
        for channel in self.memory.values():
            channel.close()
        self.streams, self.memory = {}, {}

    def _turn(self, deadline: float) -> None:
        now = time.monotonic()
        if now >= deadline:
            raise self._too_late()
        for edge in [edge for edge, at in self._due.items() if at <= now]:
            del self._due[edge]
            self._dial(edge, now)
        for talk in [talk for talk in self._talks if talk.deadline <= now]:
            self._failed(talk, TimeoutError(f"no answer within {CONVERSATION_S:.0f} s"))
        alarms = [deadline, *self._due.values(), *(talk.deadline for talk in self._talks)]
        for key, _ in self._selector.select(max(0.0, min(alarms) - now)):
            if key.data is None:
                self._accept()
            elif key.data in self._talks:
                self._advance(key.data)

    def _need_streams(self, peer: int) -> None:
        edges = [Edge(peer, stream) for stream in range(1, 1 + self._options.streams)]
        self._missing.update(edges)
        if peer < self._identity.rank:
            self._due.update(dict.fromkeys(edges, 0.0))

    def _dial(self, edge: Edge, now: float) -> None:
        address = self._addresses[edge.peer]
        sock = socket.socket(family(address[0]), socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code in (0, errno.EINPROGRESS):  # how it went shows once the socket is writable
            self._begin(sock, self._dialed(edge), now, edge)
        else:
            sock.close()
            self._retry(edge, OSError(code, os.strerror(code)))

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # a connection that ended before it was accepted, or no descriptors left
                self._complain("an unknown address", error)
                return
            strangers = [talk for talk in self._talks if talk.edge is None]
            if len(strangers) >= max(MIN_STRANGERS, 4 * len(self._missing)):  # the oldest goes
                self._failed(strangers[0], Refused("too many connections at once"))
            sock.setblocking(False)
            self._begin(sock, self._answered(), time.monotonic(), None, f"{address[0]} port {address[1]}")

    def _begin(self, sock: socket.socket, script: Script, now: float, edge: Edge | None, name: str = "") -> None:
        stream = stream_over(sock, self._options.tls, None if edge is None else self._addresses[edge.peer][0])
        talk = Talk(stream, script, now + CONVERSATION_S, name, edge)
        self._talks.append(talk)
        self._selector.register(stream, selectors.EVENT_WRITE if edge is not None else selectors.EVENT_READ, talk)

    def _dialed(self, edge: Edge) -> Script:
        yield from dial(self._identity, edge)
        shares = edge.stream == 0 and edge.peer in self._sharing
        return edge, (yield from accept_memory(self._doorbell)) if shares else None

    def _answered(self) -> Script:
        edge = yield from answer(self._identity, self._admit)
        shares = edge.stream == 0 and edge.peer in self._sharing
        return edge, (yield from offer_memory(self._options.ring_bytes, self._doorbell)) if shares else None

    def _admit(self, edge: Edge) -> None:
        if edge.peer < self._identity.rank or edge not in self._missing:
            already = "again: it is connected already" if edge in self.streams else "is not expected"
            raise Refused(f"rank {edge.peer}, stream {edge.stream}, {already}")

    def _advance(self, talk: Talk) -> None:
        try:
            events = talk.advance()
        except (OSError, Refused) as error:
            self._failed(talk, error)
            return
        if events:
            self._selector.modify(talk.stream, events, talk)
        else:
            self._selector.unregister(talk.stream)
            self._talks.remove(talk)
            self._arrived(talk)

    def _arrived(self, talk: Talk) -> None:
        edge, memory = talk.result
        if edge in self.streams:  # two at once have proved to be the same rank
            talk.close()
            if memory is not None:
                memory.close()
            self._complain(talk.name, Refused(f"rank {edge.peer} again"))
            return
        self.streams[edge] = talk.stream
        self._missing.remove(edge)
        if memory is not None:
            self.memory[edge.peer] = memory
        elif edge.stream == 0 and edge.peer in self._sharing:
            log.info("ranks %d and %d share no memory: TCP", self._identity.rank, edge.peer)
            self._need_streams(edge.peer)

    def _failed(self, talk: Talk, error: Exception) -> None:
        self._drop(talk)
        if talk.edge is None:
            self._complain(talk.name, error)
        else:
            self._retry(talk.edge, error)

    def _retry(self, edge: Edge, error: Exception) -> None:
        attempt = self._attempts[edge] = self._attempts.get(edge, 0) + 1
        address, port = self._addresses[edge.peer]
        self._errors[edge.peer] = f"rank {edge.peer} at {address} port {port}: {error}"
        pause = min(RETRY_S * RETRY_FACTOR**attempt, MAX_RETRY_S) * random.uniform(0.75, 1.25)
        self._due[edge] = time.monotonic() + pause

    def _complain(self, name: str, error: Exception) -> None:
        self._refused += 1
        if self._refused <= MAX_COMPLAINTS:
            log.warning("rank %d refused a connection from %s: %s", self._identity.rank, name, error)

    def _drop(self, talk: Talk) -> None:
        self._selector.unregister(talk.stream)
        self._talks.remove(talk)
        talk.close()

    def _too_late(self) -> RendezvousError:
        missing = sorted({edge.peer for edge in self._missing})
        reasons = [self._errors.get(peer, f"rank {peer} has not called") for peer in missing[:3]]
        return RendezvousError(
            f"not connected with ranks {missing} within {self._options.connect_timeout_s:.0f} s ({'; '.join(reasons)})",
            rank=self._identity.rank,
            culprit=missing[0],
        )
