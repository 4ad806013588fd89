"""A parameter server, as a queue: workers push gradients and pull weights, and may run ahead of one another so far."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import numpy as np

from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, Interval
from sparkdl.simulate.modes import Mode, Outcome, Setting

__all__ = ["ParameterServer"]

WARM_UP = 0.2  # of all pushes; what comes before does not count


@dataclass(frozen=True)
class ParameterServer(Mode):
    """`servers` hold a part of the weights each, on ports of their own, and serve in order of arrival.

    A push of n bytes keeps the servers for n (beta + gamma) / servers seconds and its worker for alpha + n beta, a pull
    for n beta / servers and alpha + n beta. A worker that has made c steps pulls once the slowest has made c - s: "bsp"
    has s = 0, "ssp" `staleness`, "async" no limit.
    """

    consistency: Literal["bsp", "ssp", "async"] = "async"
    staleness: int = field(default=0, metadata={"within": Interval(0, inf, "[)", integer=True)})
    servers: int = field(default=1, metadata=COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consistency not in ("bsp", "ssp", "async"):
            raise ValueError(f'ParameterServer(consistency={self.consistency!r}): it must be "bsp", "ssp" or "async".')

    @property
    def lead(self) -> float:
        """By how many steps a worker may be ahead of the slowest."""
        return {"bsp": 0.0, "ssp": float(self.staleness), "async": inf}[self.consistency]

    def run(self, setting: Setting) -> Outcome:
        return _Queue(self, setting).run()


class _Pipe:
    """One direction of the servers' ports: busy_s a message, which takes least_s at its worker's port."""

    def __init__(self, alpha: float, busy_s: float, least_s: float) -> None:
        self.alpha, self.busy_s, self.least_s = alpha, busy_s, least_s
        self.free = 0.0

    def pass_through(self, now: float) -> float:
        """When the message is through that is sent now."""
        self.free = max(now + self.alpha, self.free) + self.busy_s
        return max(self.free, now + self.least_s)


class _Queue:
    """Workers' events in order of time, and how far each has come."""

    def __init__(self, mode: ParameterServer, setting: Setting) -> None:
        (alpha, beta, gamma), n = setting.cluster.link, setting.nbytes
        self.lead, self.setting, self.size = mode.lead, setting, setting.cluster.workers
        self.pushing = _Pipe(alpha, n * (beta + gamma) / mode.servers, alpha + n * beta)
        self.pulling = _Pipe(alpha, n * beta / mode.servers, alpha + n * beta)
        self.clocks, self.seen = [0] * self.size, [0] * self.size
        self.at_clock = [self.size, 0]  # how many workers have made so many steps
        self.slowest = self.version = 0
        self.waiting: dict[float, list[int]] = {}  # by the clock of the slowest that they wait for
        self.events: list[tuple[float, int, bool]] = []  # when, which worker, whether it has pushed (or computed)
        self.seconds: list[Array] = []

    def run(self) -> Outcome:
        total = self.size * self.setting.steps
        first = self.size * int(WARM_UP * self.setting.steps)
        ends, staleness = [0.0], []
        for rank in range(self.size):
            self._compute(0.0, rank)
        while self.version < total:
            now, rank, pushed = heapq.heappop(self.events)
            if not pushed:
                heapq.heappush(self.events, (self.pushing.pass_through(now), rank, True))
                continue
            # What all have seen in step, they also apply in step.
            staleness.append(self.version - self.seen[rank] if self.lead else 0)
            ends.append(now)
            for ready in self._push(rank):
                self.seen[ready] = self.version
                self._compute(self.pulling.pass_through(now), ready)
        return Outcome(total - first, ends[-1] - ends[first], 2 * self.setting.nbytes, np.array(staleness[first:]))

    def _push(self, rank: int) -> list[int]:
        """Count the push of `rank`; returns those that may pull now."""
        self.version += 1
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
        return ready

    def _compute(self, now: float, rank: int) -> None:
        if self.clocks[rank] == len(self.seconds):
            self.seconds.extend(self.setting.draw(self.setting.steps))
        heapq.heappush(self.events, (now + float(self.seconds[self.clocks[rank]][rank]), rank, False))
