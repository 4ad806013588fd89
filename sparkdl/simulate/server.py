"""A parameter server, as a queue: workers push gradients and pull weights, and may run ahead of one another so far."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import numpy as np

from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, NATURAL
from sparkdl.simulate.exchange import message_bytes
from sparkdl.simulate.setting import Mode, Outcome, Setting

__all__ = ["ParameterServer"]

WARM_UP = 0.2  # of all pushes; what comes before does not count
NOBODY = -1
COMPUTED, PUSHED, ASKED, PULLED = range(4)  # what a worker has just done


@dataclass(frozen=True)
class ParameterServer(Mode):
    """`servers` hold a part of the weights each; the messages of several workers share their ports evenly.

    There are a push and a pull after every `window` local steps, a worker's clock. With m servers a push of n bytes,
    less where `compressor` has them so, is a message to each: it keeps the servers for alpha + n (beta + gamma) / m
    seconds and its worker for m alpha + n beta. A pull is asked for, alpha, and keeps them for alpha + n beta / m and m
    alpha + n beta. A worker at clock c pulls once the slowest has come to c - s: "bsp" has s = 0, "ssp" `staleness`,
    "async" no limit.

    Servers have ports of their own, or with `colocated` those of the first workers: these carry their own pushes and
    pulls too, save the part that is there already.

    `backup` workers more than needed take part in "bsp": of P pushes the first P - backup make the update; what comes
    later is dropped, and its worker pulls at once. Dropped steps do not count as made.
    """

    consistency: Literal["bsp", "ssp", "async"] = "async"
    staleness: int = field(default=0, metadata=NATURAL)
    servers: int = field(default=1, metadata=COUNT)
    window: int = field(default=1, metadata=COUNT)
    backup: int = field(default=0, metadata=NATURAL)
    compressor: Compressor = field(default_factory=Uncompressed)
    colocated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consistency not in ("bsp", "ssp", "async"):
            raise ValueError(f'ParameterServer(consistency={self.consistency!r}): it must be "bsp", "ssp" or "async".')
        if self.backup and self.consistency != "bsp":
            raise ValueError(
                f"ParameterServer(backup={self.backup}): backup workers stand in for the slowest of a synchronous "
                f'step. Take consistency "bsp", or none of them with {self.consistency!r}.'
            )

    @property
    def lead(self) -> float:
        """By how many clocks a worker may be ahead of the slowest."""
        return {"bsp": 0.0, "ssp": float(self.staleness), "async": inf}[self.consistency]

    def run(self, setting: Setting) -> Outcome:
        needed = max(1, setting.cluster.workers - self.backup)
        gate = _Rounds(needed) if self.consistency == "bsp" else _Clocks(setting.cluster.workers, self.lead)
        return _Queue(self, setting, gate, needed).run()


class _Pipe:
    """One direction of `servers` ports, which messages share evenly: busy_s of them each, least_s at its worker's port.

    In virtual time, which runs at 1 / k of real time while k messages share the ports, each takes its own busy_s.
    """

    def __init__(self, busy_s: float, least_s: float, servers: int) -> None:
        self.busy_s, self.least_s, self.servers = busy_s, least_s, servers
        self.now = self.virtual = 0.0
        self.under_way: list[tuple[float, int, float]] = []  # virtual end, worker (or nobody's), end at its own port

    def send(self, now: float, rank: int, share: float = 1.0) -> None:
        """Begin what the worker sends, or a share of it."""
        self._advance(now)
        heapq.heappush(self.under_way, (self.virtual + share * self.busy_s, rank, now + share * self.least_s))

    def load(self, now: float, seconds: float) -> None:
        """Begin something else that takes so long, for which nobody waits."""
        self._advance(now)
        heapq.heappush(self.under_way, (self.virtual + seconds, NOBODY, now))

    @property
    def next_end(self) -> float:
        """When the ports will be through with a message, if no other comes."""
        if not self.under_way:
            return inf
        return self.now + max(0.0, self.under_way[0][0] - self.virtual) * len(self.under_way)

    def pop(self) -> tuple[float, int]:
        """When all of the next one is through, and whose it is."""
        end = self.next_end
        self._advance(end)
        virtual, rank, least = heapq.heappop(self.under_way)
        self.virtual = max(self.virtual, virtual)
        return max(end, least), rank

    def _advance(self, now: float) -> None:
        if self.under_way:
            self.virtual += (now - self.now) / len(self.under_way)
        self.now = now


class _Rounds:
    """Synchronous updates of the first `needed` pushes each."""

    def __init__(self, needed: int) -> None:
        self.needed, self.round, self.waiting = needed, 0, list[int]()
        self.at: dict[int, int] = {}  # the round whose weights a worker has

    def push(self, rank: int) -> tuple[bool, list[int]]:
        """Whether the push of `rank` counts, and who may pull now."""
        if self.at.get(rank, 0) < self.round:
            self.at[rank] = self.round
            return False, [rank]
        self.waiting.append(rank)
        if len(self.waiting) < self.needed:
            return True, []
        ready, self.waiting = self.waiting, []
        self.round += 1
        self.at |= dict.fromkeys(ready, self.round)
        return True, ready


class _Clocks:
    """Workers that may be `lead` clocks ahead of the slowest."""

    def __init__(self, size: int, lead: float) -> None:
        self.lead, self.slowest = lead, 0
        self.clocks = [0] * size
        self.at_clock = [size, 0]  # how many workers have come so far
        self.waiting: dict[float, list[int]] = {}  # by the clock of the slowest that they wait for

    def push(self, rank: int) -> tuple[bool, list[int]]:
        """As `_Rounds.push`."""
        clock = self.clocks[rank] + 1
        self.clocks[rank] = clock
        if clock == len(self.at_clock):
            self.at_clock.append(0)
        self.at_clock[clock - 1] -= 1
        self.at_clock[clock] += 1
        ready = []
        if not self.at_clock[self.slowest]:
            self.slowest += 1
            ready = self.waiting.pop(self.slowest, [])
        if clock - self.lead > self.slowest:
            self.waiting.setdefault(clock - self.lead, []).append(rank)
        else:
            ready.append(rank)
        return True, ready


class _Queue:
    """Workers' events in order of time, and how far each has come."""

    def __init__(self, mode: ParameterServer, setting: Setting, gate: _Rounds | _Clocks, needed: int) -> None:
        self.setting, self.size, self.gate, self.window = setting, setting.cluster.workers, gate, mode.window
        self.pushes = -(-setting.steps // mode.window)  # of a worker, on average
        self.needed, self.in_step = needed, mode.lead == 0
        self.hosting = min(mode.servers, self.size) if mode.colocated else 0  # the first so many workers are servers
        self.pushed_bytes = sum(message_bytes(setting, mode.compressor))
        self.pushing = self._pipe(mode, self.pushed_bytes, setting.cluster.link.gamma)
        self.pulling = self._pipe(mode, setting.nbytes, 0.0)
        self.made, self.seen = [0] * self.size, [0] * self.size  # pushes of each worker, and the version it has
        self.arrived = [0.0] * self.size
        self.events: list[tuple[float, int, int]] = []  # when, which worker, what it has just done
        self.seconds: list[Array] = []
        self.waited, self.sent = 0.0, 0

    def _pipe(self, mode: ParameterServer, nbytes: float, gamma: float) -> _Pipe:
        alpha, beta, _ = self.setting.cluster.link
        servers = min(mode.servers, self.size) if mode.colocated else mode.servers
        busy_s, least_s = alpha + nbytes * (beta + gamma) / servers, servers * alpha + nbytes * beta
        return _Pipe(busy_s, least_s, servers)

    def run(self) -> Outcome:
        total, first = self.needed * self.pushes, self.needed * int(WARM_UP * self.pushes)
        ends, staleness = [0.0], list[int]()
        for rank in range(self.size):
            self._compute(0.0, rank)
        while len(staleness) < total:
            now, rank, done = self._next()
            if done == COMPUTED:
                self._send(now, rank, self.pushing, self.pulling)
            elif done == ASKED:
                self._send(now, rank, self.pulling, self.pushing)
            elif done == PULLED:
                self._compute(now, rank)
            else:
                counts, ready = self.gate.push(rank)
                self.arrived[rank], self.sent = now, self.sent + 1
                if counts:
                    # What all have seen in step, they also apply in step.
                    staleness.append(0 if self.in_step else len(staleness) - self.seen[rank])
                    ends.append(now)
                self._release(now, ready, len(staleness))
        made = (total - first) * self.window
        away = 1 - 1 / self.size if self.hosting else 1.0  # share of the weights that lies elsewhere, on average
        sent = (self.pushed_bytes + self.setting.nbytes) * away * self.sent / (total * self.window)
        waiting_s = self.waited / (self.sent * self.window)
        return Outcome(made, ends[-1] - ends[first], sent, np.array(staleness[first:]), waiting_s)

    def _next(self) -> tuple[float, int, int]:
        """The next event; what the ports are through with becomes one."""
        while True:
            when = self.events[0][0] if self.events else inf
            end, pipe, done = min((self.pushing.next_end, 0, PUSHED), (self.pulling.next_end, 1, PULLED))
            if when <= end:
                return heapq.heappop(self.events)
            through, rank = (self.pushing, self.pulling)[pipe].pop()
            if rank != NOBODY:
                heapq.heappush(self.events, (through, rank, done))

    def _send(self, now: float, rank: int, pipe: _Pipe, other: _Pipe) -> None:
        """A worker that is a server keeps a part where it is; the rest loads its port in the other direction."""
        if rank >= self.hosting:
            pipe.send(now, rank)
            return
        away = 1 - 1 / pipe.servers
        pipe.send(now, rank, away)
        other.load(now, away * pipe.least_s / pipe.servers)

    def _release(self, now: float, ready: list[int], version: int) -> None:
        for rank in ready:
            self.waited += now - self.arrived[rank]
            self.seen[rank] = version
            heapq.heappush(self.events, (now + self.setting.cluster.link.alpha, rank, ASKED))

    def _compute(self, now: float, rank: int) -> None:
        made, self.made[rank] = self.made[rank], self.made[rank] + 1
        if made == len(self.seconds):
            drawn = self.setting.draw(self.pushes * self.window)
            self.seconds.extend(drawn.reshape(self.pushes, self.window, self.size).sum(axis=1))
        heapq.heappush(self.events, (now + float(self.seconds[made][rank]), rank, COMPUTED))
