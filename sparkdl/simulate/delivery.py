"""Messages that all ranks have ready at once, in no order that anybody has to keep."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from sparkdl.comm.transport.base import Array
from sparkdl.simulate.cluster import Cluster

__all__ = ["Message", "deliver"]


class Message(NamedTuple):
    """`nbytes` from one rank to another."""

    sender: int
    receiver: int
    nbytes: float


def deliver(messages: Sequence[Sequence[Message]], cluster: Cluster, starts: Array) -> list[float]:
    """When each rank, there from `starts` (P,) on, has sent and received all; row r holds what rank r sends.

    The rules are those of `ports`. A message that waits for its receiver holds up no other; of those that wait for the
    same port, ranks send the first of their rows first. Receivers take what comes, in any order, and fold it in.
    """
    return _Delivery(messages, cluster, starts).run()


class _Delivery:
    """Ports by number: ranks' ways out, ranks' ways in, hosts' ways out, hosts' ways in.

    A message that finds a port taken joins its queue. One of each queue, the representative, stands among the events,
    at the time when the port is free: so a port with thousands of messages before it wakes one of them at a time.
    """

    def __init__(self, messages: Sequence[Sequence[Message]], cluster: Cluster, starts: Array) -> None:
        self.cluster, self.hosts = cluster, cluster.hosts
        self.size, count = cluster.workers, self.hosts[-1] + 1
        self.free: list[float] = [*starts.tolist(), *starts.tolist(), *[0.0] * (2 * count)]
        self.host_out, self.host_in = 2 * self.size, 2 * self.size + count
        self.messages = [(turn, message) for row in messages for turn, message in enumerate(row)]
        self.queues: dict[int, list[tuple[int, int]]] = {}
        # When it can begin, its turn, its number, and the port that it speaks for, if any.
        self.events: list[tuple[float, int, int, int]] = []

    def run(self) -> list[float]:
        for number, (turn, message) in enumerate(self.messages):
            ready = max(self.free[port] for port in self._ports(message))
            self.events.append((ready, turn, number, -1))
        heapq.heapify(self.events)
        while self.events:
            when, turn, number, port = heapq.heappop(self.events)
            message = self.messages[number][1]
            ports = self._ports(message)
            busy = max(ports, key=self.free.__getitem__)
            if self.free[busy] <= when:
                self._carry(message, ports, when)
            elif busy == port:
                heapq.heappush(self.events, (self.free[port], turn, number, port))
                continue
            else:
                self._wait(busy, turn, number)
            if port >= 0:
                self._next(port, when)
        return [max(out, into) for out, into in zip(self.free[: self.size], self.free[self.size :], strict=False)]

    def _ports(self, message: Message) -> tuple[int, ...]:
        a, b, _ = message
        here, there = self.hosts[a], self.hosts[b]
        if here == there or self.cluster.per_host == 1:
            return a, self.size + b
        return a, self.size + b, self.host_out + here, self.host_in + there

    def _carry(self, message: Message, ports: tuple[int, ...], start: float) -> None:
        a, b, nbytes = message
        alpha, beta, gamma = self.cluster.between(a, b)
        end = start + alpha + nbytes * beta
        for port in ports:
            self.free[port] = end
        self.free[self.size + b] = end + nbytes * gamma

    def _wait(self, port: int, turn: int, number: int) -> None:
        queue = self.queues.get(port)
        if queue is None:
            self.queues[port] = []
            heapq.heappush(self.events, (self.free[port], turn, number, port))
        else:
            heapq.heappush(queue, (turn, number))

    def _next(self, port: int, now: float) -> None:
        """Let the next of the port's queue speak for it."""
        if queue := self.queues[port]:
            turn, number = heapq.heappop(queue)
            heapq.heappush(self.events, (max(now, self.free[port]), turn, number, port))
        else:
            del self.queues[port]
