"""Ports that carry one message at a time: those of every rank, and those of every host to the network.

The rules are those of `comm.cost`: a message of n bytes holds its sender's and its receiver's port for alpha + n beta,
and n gamma more at the receiver if it is to be reduced. Ranks that share a host also share its port to other hosts.
Of the messages that want a port, the one that can begin first gets it; one that waits for its other port does not
keep it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sparkdl.comm.schedules.base import Recv, Send, Step
from sparkdl.comm.transport.base import Array
from sparkdl.simulate.cluster import Cluster

__all__ = ["Ports", "play"]


class Ports:
    """When each port is free."""

    def __init__(self, cluster: Cluster, starts: Array) -> None:
        self.cluster, self.hosts = cluster, cluster.hosts
        self.out: list[float] = starts.tolist()
        self.into: list[float] = starts.tolist()
        self.host_out, self.host_in = [0.0] * (self.hosts[-1] + 1), [0.0] * (self.hosts[-1] + 1)
        self.shared = cluster.per_host > 1

    def ready(self, a: int, b: int) -> float:
        """When a message from a to b can begin, as things stand."""
        start = max(self.out[a], self.into[b])
        if self.shared and self.hosts[a] != self.hosts[b]:
            start = max(start, self.host_out[self.hosts[a]], self.host_in[self.hosts[b]])
        return start

    def carry(self, a: int, b: int, start: float, nbytes: float, reduced: bool) -> None:
        """Let a message from a to b through, from `start` on."""
        alpha, beta, gamma = self.cluster.between(a, b)
        end = start + alpha + nbytes * beta
        self.out[a] = end
        self.into[b] = end + nbytes * gamma if reduced else end
        if self.shared and self.hosts[a] != self.hosts[b]:
            self.host_out[self.hosts[a]] = self.host_in[self.hosts[b]] = end


def play(plans: Sequence[tuple[Step, ...]], itemsize: float, cluster: Cluster, starts: Array) -> list[float]:
    """When each rank, there from `starts` (P,) on, has carried out its steps of a schedule."""
    return _Game(plans, itemsize, cluster, starts).run()


class _Game:
    """All ranks' places in a schedule, and the messages that both ends have come to, by when they can begin."""

    def __init__(self, plans: Sequence[tuple[Step, ...]], itemsize: float, cluster: Cluster, starts: Array) -> None:
        self.plans, self.itemsize = plans, itemsize
        self.ports = Ports(cluster, starts)
        size = len(plans)
        self.at, self.sent, self.received = [0] * size, [0] * size, [0] * size
        self.offered = [False] * size  # whether the next message that a rank is to send is in the heap
        self.heap: list[tuple[float, int]] = []

    def run(self) -> list[float]:
        for rank in range(len(self.plans)):
            self._offer(rank)
        while self.heap:
            when, sender = heapq.heappop(self.heap)
            send = self._next_send(sender)
            assert send is not None
            if (start := self.ports.ready(sender, send.peer)) > when:
                heapq.heappush(self.heap, (start, sender))
                continue
            recv = self._next_recv(send.peer)
            assert recv is not None
            nbytes = (send.stop - send.start) * self.itemsize
            self.ports.carry(sender, send.peer, start, nbytes, recv.how != "copy")
            self.offered[sender] = False
            self.sent[sender] += 1
            self.received[send.peer] += 1
            for rank in (sender, send.peer):
                self._settle(rank)
            for rank in (sender, send.peer):
                self._offer(rank)
                if (wanted := self._next_recv(rank)) is not None:
                    self._offer(wanted.peer)
        assert all(at == len(plan) for at, plan in zip(self.at, self.plans, strict=True)), "the schedule blocks"
        return [max(out, into) for out, into in zip(self.ports.out, self.ports.into, strict=True)]

    def _next_send(self, rank: int) -> Send | None:
        if self.at[rank] == len(self.plans[rank]):
            return None
        sends = self.plans[rank][self.at[rank]].sends
        return sends[self.sent[rank]] if self.sent[rank] < len(sends) else None

    def _next_recv(self, rank: int) -> Recv | None:
        if self.at[rank] == len(self.plans[rank]):
            return None
        recvs = self.plans[rank][self.at[rank]].recvs
        return recvs[self.received[rank]] if self.received[rank] < len(recvs) else None

    def _offer(self, sender: int) -> None:
        """Put the sender's next message in the heap if its receiver has come to it too."""
        if self.offered[sender] or (send := self._next_send(sender)) is None:
            return
        recv = self._next_recv(send.peer)
        if recv is not None and recv.peer == sender:
            self.offered[sender] = True
            heapq.heappush(self.heap, (self.ports.ready(sender, send.peer), sender))

    def _settle(self, rank: int) -> None:
        """Begin the next step if this one is over."""
        step = self.plans[rank][self.at[rank]]
        if self.sent[rank] == len(step.sends) and self.received[rank] == len(step.recvs):
            self.at[rank] += 1
            self.sent[rank] = self.received[rank] = 0
            self.ports.out[rank] = self.ports.into[rank] = max(self.ports.out[rank], self.ports.into[rank])
