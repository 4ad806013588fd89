"""The transport between processes: a channel to each peer, shared memory or TCP, driven by the caller's thread."""

from __future__ import annotations

import copy
import math
import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.comm.transport.arena import Arena, Arrival
from sparkdl.comm.transport.base import (
    Array,
    CommError,
    MessageMismatch,
    Op,
    OperationTimeout,
    PeerLost,
    Pending,
    Transport,
)
from sparkdl.comm.transport.channel import Channel, ChannelClosed, Task, Unexpected
from sparkdl.comm.transport.doorbell import Doorbell
from sparkdl.comm.transport.frames import Control, ControlFrame, Header, check_buffer, describe
from sparkdl.comm.transport.monitor import Monitor
from sparkdl.comm.transport.options import TransportOptions
from sparkdl.comm.transport.shm import ShmChannel
from sparkdl.comm.transport.stream import Stream

__all__ = ["Mesh"]

MAX_SLEEP_S = 0.25  # a look at the channels now and then costs nothing, and outlives a lost doorbell ring
NOTHING: Array = np.empty(0, np.uint8)
VERDICT_S = 1.0  # how long the reason for a closed data channel may take to arrive


class Mesh(Transport):
    """Owns its channels, its control connections, their monitor and the doorbell; `connect` makes one.

    spin_s is how long a waiting rank looks again before it sleeps.
    """

    def __init__(
        self,
        rank: int,
        hosts: tuple[str, ...],
        channels: Mapping[int, Channel],
        control: Mapping[int, Stream],
        doorbell: Doorbell,
        options: TransportOptions,
        spin_s: float,
    ) -> None:
        self.rank, self.size, self.hosts, self.timeout_s = rank, len(hosts), hosts, options.timeout_s
        self._operation_timeout_s, self._spin_s = options.operation_timeout_s, spin_s
        self._channels, self._doorbell = dict(channels), doorbell
        self._sent, self._received = [0] * self.size, [0] * self.size
        self._senders: dict[int, Channel] = {}  # peers with sends that are not complete
        self._broken: CommError | None = None
        self._monitor = Monitor(rank, control, options.timeout_s, doorbell.ring)
        self._near = {peer: channel for peer, channel in channels.items() if isinstance(channel, ShmChannel)}
        bells = {peer: channel.wake for peer, channel in self._near.items()}
        self.arena: Arena = Arena(rank, tuple(sorted({rank, *bells})), bells, self._attend, self._mismatch)

    def isend(self, peer: int, tag: int, buf: Array) -> Pending:
        wait = self._begin("isend", peer, tag, buf)
        header = Header.of(self._sent[peer], tag, buf)
        self._sent[peer] += 1
        channel = self._channels[peer]
        try:
            task = channel.send(header, buf)
        except ChannelClosed as error:
            raise self._lost(wait, peer, error) from error
        if not task.done:
            self._senders[peer] = channel
        return _Send(self, task, wait)

    def recv(self, peer: int, tag: int, out: Array) -> None:
        self._receive("recv", peer, tag, out, None)

    def recv_reduce(self, peer: int, tag: int, out: Array, op: Op) -> None:
        self._receive("recv_reduce", peer, tag, out, op)

    def wait_any(self, peers: Sequence[int], timeout_s: float | None = None) -> int | None:
        self._check_whole()
        wait = _Wait("wait_any", peers[0], 0, NOTHING)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._check_health(wait)
            found = next((peer for peer in peers if self._channels[peer].news), None)
            rest = deadline - time.monotonic()
            if found is not None or rest <= 0:
                return found
            if not (self._senders and self._push(wait)):
                self._sleep({channel: True for peer, channel in self._channels.items() if peer in peers}, rest)

    def abort(self, reason: str) -> None:
        self._leave(CommError(reason, rank=self.rank), ControlFrame(Control.ABORT, self.rank, reason))

    def interrupt(self, reason: str) -> None:
        self._monitor.fail(CommError(reason, rank=self.rank, culprit=self.rank), reason)

    def close(self) -> None:
        self._leave(CommError("the transport is closed", rank=self.rank), ControlFrame(Control.BYE))

    def _receive(self, verb: str, peer: int, tag: int, out: Array, op: Op | None) -> None:
        wait = self._begin(verb, peer, tag, out)
        header = Header.of(self._received[peer], tag, out)
        self._received[peer] += 1
        try:
            self.complete(self._channels[peer].expect(header, out, op), wait)
        except Unexpected as error:
            reason = f"rank {self.rank} expects {header}, rank {peer} sent {error}"
            raise self._fail(MessageMismatch, wait, reason) from error

    def _attend(self, arrival: Arrival, tag: int, vec: Array) -> None:
        """Complete an arrival in the arena."""
        self._check_whole()
        arrival.step()
        if not arrival.done:
            wait = _Wait("share", arrival.peer, tag, vec, arrival)
            self._check_health(wait)
            self.complete(arrival, wait)

    def _mismatch(self, peer: int, found: Unexpected, tag: int, vec: Array) -> CommError:
        reason = f"rank {self.rank} expects {self.arena.begun}, rank {peer} sent {found}"
        return self._fail(MessageMismatch, _Wait("share", peer, tag, vec), reason)

    def _begin(self, verb: str, peer: int, tag: int, buf: Array) -> _Wait:
        self._check_whole()
        check_buffer(self.rank, self.size, peer, buf, write=verb != "isend")
        if peer not in self._channels:
            raise ValueError(f"rank {self.rank} is not connected with rank {peer}; name it among connect(peers=...)")
        wait = _Wait(verb, peer, tag, buf)
        self._check_health(wait)
        return wait

    def complete(self, task: Task, wait: _Wait) -> None:
        """Step task, and the sends to all peers, until it is done; sleep while nothing moves."""
        self._check_whole()
        while not task.done:
            try:
                moved = task.step()
                if self._senders:
                    moved |= self._push(wait)
                if moved:
                    wait.idle_since = 0.0
                else:
                    self._idle(task, wait)
            except ChannelClosed as error:
                raise self._lost(wait, wait.peer, error) from error

    def _push(self, wait: _Wait) -> bool:
        moved = False
        for peer, channel in list(self._senders.items()):
            try:
                moved |= channel.push()
            except ChannelClosed as error:
                raise self._lost(wait, peer, error) from error
            if not channel.sending:
                del self._senders[peer]
        return moved

    def _idle(self, task: Task, wait: _Wait) -> None:
        now = time.monotonic()
        wait.start = wait.start or now
        wait.idle_since = wait.idle_since or now
        if now - wait.idle_since < self._spin_s:
            os.sched_yield()  # where ranks outnumber processors, the one waited for may need this one
            return
        self._check_health(wait)
        if self._check_company(task, wait):
            return
        rest = wait.start + self._operation_timeout_s - now
        if rest <= 0:
            raise self._fail(OperationTimeout, wait, f"nothing moves, though rank {wait.peer} is alive")
        awaited = wait.arrival or self._channels[wait.peer]
        self._sleep({awaited: wait.verb != "isend"}, rest)

    def _sleep(self, awaited: Mapping[Arrival | Channel, bool], rest: float) -> None:
        """Until one of them moves, given whether it is to be read from, a send does, or the doorbell rings."""
        poller = select.poll()
        poller.register(self._doorbell, select.POLLIN)
        watched: dict[Arrival | Channel, bool] = dict.fromkeys(self._senders.values(), False)
        watched.update(awaited)
        asleep = [each.watch(poller, reading) for each, reading in watched.items()]
        if all(asleep):
            for descriptor, _ in poller.poll(min(rest, MAX_SLEEP_S) * 1e3):
                if descriptor == self._doorbell.fileno():
                    self._doorbell.silence()

    def _check_company(self, task: Task, wait: _Wait) -> bool:
        """Raise if the rank waited for has left the arena, or is at another operation than this one.

        What it did before shows before that does: so a last step of the task decides. Returns whether that moved.
        """
        if wait.arrival is None:
            if wait.verb == "isend" or not self.arena.has_gone_on(wait.peer):
                return False
            if task.step():
                return True
            reason = f"rank {self.rank} expects a message, rank {wait.peer} is at an operation in shared memory"
            raise self._fail(MessageMismatch, wait, reason)
        if not self._senders:
            self.arena.fall_quiet()
        peer = wait.peer = wait.arrival.peer
        found = self._near[peer].peek()
        if found is None and peer not in self._monitor.left:
            return False
        if task.step():
            return True
        if found is None:
            raise self._lost(wait, peer, ChannelClosed("connection closed by the peer"))
        raise self._mismatch(peer, found, wait.tag, wait.buf)

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise copy.copy(self._broken)

    def _check_health(self, wait: _Wait) -> None:
        found = self._monitor.failure
        if found is not None:
            raise self._fail(type(found), wait, found.reason, found.culprit) from found

    def _lost(self, wait: _Wait, peer: int, error: ChannelClosed) -> CommError:
        found = self._monitor.verdict(peer, VERDICT_S)
        if found is not None:
            return self._fail(type(found), wait, found.reason, found.culprit)
        why = "it has closed its transport" if peer in self._monitor.left else str(error)
        return self._fail(PeerLost, wait, f"lost rank {peer}: {why}", peer)

    def _fail(self, kind: type[CommError], wait: _Wait, reason: str, culprit: int | None = None) -> CommError:
        elapsed_s = time.monotonic() - wait.start if wait.start else 0.0
        operation = describe(wait.verb, wait.peer, wait.tag, wait.buf)
        error = kind(reason, rank=self.rank, peer=wait.peer, operation=operation, elapsed_s=elapsed_s, culprit=culprit)
        self._leave(error, ControlFrame(Control.ABORT, error.culprit if error.culprit is not None else -1, str(error)))
        return error

    def _leave(self, error: CommError, farewell: ControlFrame) -> None:
        if self._broken is None:
            self._broken = copy.copy(error)  # without a traceback, whose frames hold this transport and its memory
            self._monitor.leave(farewell)
            for channel in self._channels.values():
                channel.close()
            self.arena.close()
            self._doorbell.close()


@dataclass(slots=True)
class _Wait:
    """An operation, as errors name it, and since when it waits (0: not yet)."""

    verb: str
    peer: int
    tag: int
    buf: Array
    arrival: Arrival | None = None
    start: float = 0.0
    idle_since: float = 0.0


class _Send:
    """A send of the mesh."""

    __slots__ = ("_mesh", "_task", "_wait")

    def __init__(self, mesh: Mesh, task: Task, wait: _Wait) -> None:
        self._mesh, self._task, self._wait = mesh, task, wait

    def wait(self) -> None:
        if not self._task.done:
            self._mesh.complete(self._task, self._wait)
