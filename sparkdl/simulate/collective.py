"""Collectives among workers that do not all arrive at the same time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from statistics import mean
from typing import Protocol

import numpy as np

from sparkdl.comm.cost import COSTS, best_segment, shared_cost
from sparkdl.comm.schedules import ALLREDUCE, Hierarchical
from sparkdl.comm.schedules.base import Schedule, Step, planned
from sparkdl.comm.shared import is_short
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.base import Array
from sparkdl.simulate.choice import CHOSEN, chosen
from sparkdl.simulate.cluster import Cluster
from sparkdl.simulate.lockstep import ROTATIONAL, Row, advance, rotated_rows, rows_of
from sparkdl.simulate.ports import play

__all__ = ["Collective", "InMemory", "Part", "Timed"]

ITEM = 4  # bytes of an element: float32
SEGMENT_BYTES = 1 << 19
MANY, TOO_MANY = 20_000, 400_000  # messages: beyond, a schedule is played a few times only, or not at all
PLAYED = 3


class Part(Protocol):
    """Something that all ranks do together; `sent_bytes` by a rank, on average."""

    def finish(self, starts: Array) -> Array:
        """When each rank is through that is there from `starts` (P,) on."""

    @property
    def sent_bytes(self) -> float: ...


class Timed:
    """A schedule over `count` elements of `itemsize` bytes, as the transports carry it out.

    One of many messages in which ranks do not move in step is played a few times, and then takes as long after the last
    rank has come as it did on average. One of too many takes as long as `formula` says, if there is one, which is right
    for ranks that come together. A `rotational` schedule is one whose rank r does what rank 0 does, r further on.
    """

    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        count: int,
        segment: int,
        itemsize: float = ITEM,
        formula: Callable[[], float] | None = None,
        rotational: bool = False,
    ) -> None:
        self.schedule, self.cluster = schedule, cluster
        self.count, self.segment, self.itemsize = count, segment, itemsize
        self.formula, self.rotational = formula, rotational
        self._lags: list[float] = []

    def finish(self, starts: Array) -> Array:
        if self._rows is not None:
            return advance(self._rows, starts)
        if self._messages > TOO_MANY and self.formula is not None:
            lag = self.formula()
        elif self._messages <= MANY or len(self._lags) < PLAYED:
            ends = np.array(play(self._plans, self.itemsize, self.cluster, starts))
            self._lags.append(float(ends.max() - starts.max()))
            return ends
        else:
            lag = mean(self._lags)
        return np.full_like(starts, starts.max() + lag)

    @cached_property
    def sent_bytes(self) -> float:
        """As `Part`; for rings and chains, what a rank in the middle sends."""
        alike = self.rotational or self._messages > TOO_MANY
        plans = [self._plan(self.cluster.workers // 2)] if alike else self._plans
        elements = sum(send.stop - send.start for steps in plans for step in steps for send in step.sends)
        return elements * self.itemsize / len(plans)

    def _plan(self, rank: int) -> tuple[Step, ...]:
        return planned(self.schedule, rank, self.cluster.workers, self.count, self.segment)

    @cached_property
    def _messages(self) -> int:
        """About how many."""
        size = self.cluster.workers
        return size * sum(len(step.sends) for step in self._plan(size // 2))

    @cached_property
    def _plans(self) -> list[tuple[Step, ...]]:
        return [self._plan(rank) for rank in range(self.cluster.workers)]

    @cached_property
    def _rows(self) -> list[Row] | None:
        if self.rotational:
            return rotated_rows(self.schedule, self.count, self.segment, self.itemsize, self.cluster)
        return rows_of(self._plans, self.itemsize, self.cluster) if self._messages <= TOO_MANY else None


class InMemory:
    """The allreduce in memory that ranks of a host share: as long after the last has come as its formula says."""

    def __init__(self, cluster: Cluster, nbytes: float) -> None:
        self.hosts = Hosts.of(cluster.hosts)
        within, short = cluster.within or cluster.link, is_short(cluster.workers, int(nbytes))
        self.lag = shared_cost(self.hosts, nbytes, within, cluster.link, short)
        count = len(self.hosts.members)
        self.sent_bytes = 2 * (count - 1) / count * nbytes / self.hosts.leaders

    def finish(self, starts: Array) -> Array:
        return np.full_like(starts, starts.max() + self.lag)


class Collective:
    """An allreduce of `nbytes` by the named algorithm.

    Names are those of `comm.schedules.ALLREDUCE`, "hierarchical" (one leader a host) and "hierarchical_sliced",
    "shared" (in the hosts' memories), and "auto" and "fastest", which take what the chooser would.
    """

    def __init__(self, algorithm: str, cluster: Cluster, nbytes: float) -> None:
        self.algorithm, self.cluster = chosen(algorithm, cluster, nbytes), cluster
        self._part = self._made(nbytes)

    def finish(self, starts: Array) -> Array:
        """As `Part.finish`."""
        return starts if self.cluster.workers == 1 else self._part.finish(starts)

    @property
    def sent_bytes(self) -> float:
        """As `Part.sent_bytes`."""
        return self._part.sent_bytes if self.cluster.workers > 1 else 0.0

    def _made(self, nbytes: float) -> Part:
        cluster, size, hosts = self.cluster, self.cluster.workers, Hosts.of(self.cluster.hosts)
        if self.algorithm == "shared":
            return InMemory(cluster, nbytes)
        found = ALLREDUCE | {"hierarchical": Hierarchical(hosts), "hierarchical_sliced": _sliced(hosts)}
        if self.algorithm not in found:
            known = ", ".join((*found, "shared", *CHOSEN))
            raise ValueError(f"no allreduce algorithm is called {self.algorithm!r}; there are {known}")
        schedule = found[self.algorithm]
        # A multiple of the ranks: their chunks are equal, which they are to one element anyway.
        count = -(-math.ceil(nbytes / ITEM) // size) * size
        wanted = best_segment(size, nbytes, cluster.link) if self.algorithm == "chain" else SEGMENT_BYTES
        segment = max(1, int(wanted / ITEM))
        cost = COSTS.get(self.algorithm)
        formula = cost and partial(cost, size, count * ITEM, cluster.link, segment * ITEM)
        return Timed(schedule, cluster, count, segment, ITEM, formula, schedule in ROTATIONAL)


def _sliced(hosts: Hosts) -> Schedule:
    return Hierarchical(hosts, hosts.leaders)
