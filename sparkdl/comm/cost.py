"""What an allreduce takes: closed formulas, and a simulation of the schedule they must agree with.

The model (Hockney; Thakur, Rabenseifner, Gropp, 2005): a message of n bytes holds its sender's and its receiver's port
for alpha + n beta seconds, and n gamma more at the receiver if it is to be reduced. A rank sends and receives at the
same time, but one message each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

from sparkdl.comm.schedules.base import Schedule, Step, planned
from sparkdl.comm.topology import Hosts

__all__ = [
    "COSTS",
    "Cost",
    "Link",
    "best_segment",
    "chain_cost",
    "hierarchical_cost",
    "rabenseifner_cost",
    "recursive_doubling_cost",
    "ring_cost",
    "segmented_ring_cost",
    "shared_cost",
    "simulate",
    "star_cost",
    "tree_cost",
]


class Link(NamedTuple):
    """alpha: seconds per message. beta: seconds per byte moved. gamma: seconds per byte reduced."""

    alpha: float
    beta: float
    gamma: float


COPY = 0.8  # of beta: a byte copied within shared memory

Cost = Callable[[int, float, Link, float], float]
"""(size, bytes of the vector, link, bytes of a segment) -> seconds; `COSTS` has one for each name in `ALLREDUCE`."""


def star_cost(p: int, n: float, link: Link, segment: float = 0) -> float:
    """2 (p - 1)(alpha + n beta) + (p - 1) n gamma."""
    return (p - 1) * (2 * (link.alpha + n * link.beta) + n * link.gamma)


def tree_cost(p: int, n: float, link: Link, segment: float = 0) -> float:
    """2 ceil(log2 p)(alpha + n beta) + ceil(log2 p) n gamma."""
    return (p - 1).bit_length() * (2 * (link.alpha + n * link.beta) + n * link.gamma)


def recursive_doubling_cost(p: int, n: float, link: Link, segment: float = 0) -> float:
    """log2 q (alpha + n beta + n gamma), q the largest power of two within p, and what folding p to q takes."""
    return (p.bit_length() - 1) * (link.alpha + n * (link.beta + link.gamma)) + _folding(p, n, link)


def rabenseifner_cost(p: int, n: float, link: Link, segment: float = 0) -> float:
    """2 log2 q alpha + (q - 1) / q n (2 beta + gamma), q as above, and what folding p to q takes."""
    rounds = p.bit_length() - 1
    core = 2 * rounds * link.alpha + (1 - 0.5**rounds) * n * (2 * link.beta + link.gamma)
    return core + _folding(p, n, link)


def ring_cost(p: int, n: float, link: Link, segment: float = 0) -> float:
    """2 (p - 1) alpha + (p - 1) / p n (2 beta + gamma)."""
    return (p - 1) * (2 * link.alpha + n / p * (2 * link.beta + link.gamma))


def segmented_ring_cost(p: int, n: float, link: Link, segment: float) -> float:
    """The ring's, with alpha once for each segment: what overlaps within a rank is beyond the model."""
    parts = max(2, -(-n // (p * segment)))
    return ring_cost(p, n, link._replace(alpha=parts * link.alpha))


def chain_cost(p: int, n: float, link: Link, segment: float) -> float:
    """(p - 2 + s)(2 alpha + n / s (2 beta + gamma)) with s segments."""
    s = max(1, -(-n // segment))
    return (p - 2 + s) * (2 * link.alpha + n / s * (2 * link.beta + link.gamma)) if p > 1 else 0.0


def hierarchical_cost(hosts: Hosts, n: float, within: Link, between: Link, leaders: int = 1) -> float:
    """Sum and spread within the largest host, by tree or, with more leaders, by ring; Rabenseifner between the hosts.

    The leaders of a host share its link to the others.
    """
    k = max(map(len, hosts.members))
    inner = tree_cost(k, n, within) if leaders == 1 else ring_cost(k, n, within)
    shared = between._replace(gamma=between.gamma / leaders)
    return inner + rabenseifner_cost(len(hosts.members), n, shared)


def shared_cost(arenas: Hosts, n: float, within: Link, between: Link, short: bool = False) -> float:
    """3 alpha + n ((2 k - 1) / k c + (k - 1) / k gamma) among k ranks that share memory, c = 0.8 beta.

    (A message's byte is copied twice in its beta, but in less memory, most of which stays in the caches: measured.)
    Short vectors, which every rank adds up whole: alpha + n (c + (k - 1) gamma). What several arenas tell each other is
    Rabenseifner's, as in `hierarchical_cost`.
    """
    k = max(map(len, arenas.members))
    if len(arenas.members) == 1 and short:
        return within.alpha + n * (COPY * within.beta + (k - 1) * within.gamma)
    inner = 3 * within.alpha + n * ((2 - 1 / k) * COPY * within.beta + (1 - 1 / k) * within.gamma)
    shared = between._replace(gamma=between.gamma / arenas.leaders)
    return inner + rabenseifner_cost(len(arenas.members), n, shared)


COSTS: dict[str, Cost] = {
    "star": star_cost,
    "tree": tree_cost,
    "recursive_doubling": recursive_doubling_cost,
    "ring": ring_cost,
    "segmented_ring": segmented_ring_cost,
    "chain": chain_cost,
    "rabenseifner": rabenseifner_cost,
}


def best_segment(p: int, n: float, link: Link, least: float = 4096) -> float:
    """Bytes of a segment at which `chain_cost` is lowest: s = sqrt((p - 2) n (2 beta + gamma) / (2 alpha))."""
    s = sqrt((p - 2) * n * (2 * link.beta + link.gamma) / (2 * link.alpha)) if p > 2 else 1.0
    return max(least, n / max(1.0, s))


def _folding(p: int, n: float, link: Link) -> float:
    return 0.0 if p & (p - 1) == 0 else 2 * (link.alpha + n * link.beta) + n * link.gamma


def simulate(
    schedule: Schedule, size: int, count: int, segment: int, itemsize: int, link: Callable[[int, int], Link]
) -> float:
    """Seconds until the last rank is done, the model's rules applied to each message; link(a, b) joins two ranks."""
    return _Simulation([planned(schedule, rank, size, count, segment) for rank in range(size)], itemsize, link).run()


class _Rank:
    """Where one rank stands: its step, and within it the sends and receives done, and when each port is free."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self.step = self.sent = self.received = 0
        self.out_free = self.in_free = 0.0

    @property
    def current(self) -> Step:
        return self.steps[self.step] if self.step < len(self.steps) else Step()

    def settle(self) -> bool:
        """Begin the next step if this one is over; whether it was."""
        if (self.sent, self.received) != (len(self.current.sends), len(self.current.recvs)) or not any(self.current):
            return False
        self.step, self.sent, self.received = self.step + 1, 0, 0
        self.out_free = self.in_free = max(self.out_free, self.in_free)
        return True


class _Simulation:
    def __init__(self, plans: list[tuple[Step, ...]], itemsize: int, link: Callable[[int, int], Link]) -> None:
        self.ranks = [_Rank(steps) for steps in plans]
        self.itemsize, self.link = itemsize, link

    def run(self) -> float:
        ready = deque(range(len(self.ranks)))
        while ready:
            rank = ready.popleft()
            peer = self._receive(rank)
            if peer is None:
                continue
            for moved in (rank, peer):
                self.ranks[moved].settle()
                # Whoever may now send to it, receive from it, or go on itself.
                ready.append(moved)
                ready.extend(send.peer for send in self.ranks[moved].current.sends)
        assert all(r.step == len(r.steps) for r in self.ranks), "the schedule blocks; see the checker"
        return max(r.in_free for r in self.ranks)

    def _receive(self, rank: int) -> int | None:
        """Let the next message reach `rank`, if its sender has come to it; returns the sender."""
        own = self.ranks[rank]
        if own.received == len(own.current.recvs):
            return None
        recv = own.current.recvs[own.received]
        peer = self.ranks[recv.peer]
        if peer.sent == len(peer.current.sends) or peer.current.sends[peer.sent].peer != rank:
            return None
        link, nbytes = self.link(recv.peer, rank), (recv.stop - recv.start) * self.itemsize
        end = max(own.in_free, peer.out_free) + link.alpha + nbytes * link.beta
        peer.out_free = end
        own.in_free = end + (0 if recv.how == "copy" else nbytes * link.gamma)
        peer.sent += 1
        own.received += 1
        return recv.peer
