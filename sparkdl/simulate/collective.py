"""Allreduce among workers that do not all arrive at the same time."""

from __future__ import annotations

import math
from functools import cached_property
from statistics import mean

import numpy as np

from sparkdl.comm.cost import COSTS, best_segment
from sparkdl.comm.schedules import ALLREDUCE, Hierarchical
from sparkdl.comm.schedules.base import Schedule, Step, planned
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.base import Array
from sparkdl.simulate.cluster import Cluster
from sparkdl.simulate.lockstep import ROTATIONAL, Row, advance, rotated_rows, rows_of
from sparkdl.simulate.ports import play

__all__ = ["Collective"]

ITEM = 4  # bytes of an element: float32
SEGMENT_BYTES = 1 << 19
MANY, TOO_MANY = 20_000, 400_000  # messages: beyond, a schedule is played a few times only, or not at all
PLAYED = 3


class Collective:
    """An allreduce of `nbytes` by the named algorithm: the schedule that the transports carry out, timed.

    Names are those of `comm.schedules.ALLREDUCE`, "hierarchical" (one leader a host) and "hierarchical_sliced". A
    schedule of many messages in which ranks do not move in step is played a few times, and then takes as long after the
    last rank has come as it did on average. One of too many takes as long as its formula in `comm.cost` says, which
    is right for ranks that come together.
    """

    def __init__(self, algorithm: str, cluster: Cluster, nbytes: float) -> None:
        self.cluster, self.algorithm = cluster, algorithm
        size = cluster.workers
        # A multiple of the ranks: their chunks are equal, which they are to one element anyway.
        self.count = -(-math.ceil(nbytes / ITEM) // size) * size
        self.schedule = self._schedule()
        wanted = best_segment(size, nbytes, cluster.link) if algorithm == "chain" else SEGMENT_BYTES
        self.segment = max(1, int(wanted / ITEM))
        self._lags: list[float] = []

    def finish(self, starts: Array) -> Array:
        """When each rank has the sum, which is there from `starts` (P,) on."""
        if self.cluster.workers == 1:
            return starts
        if self._rows is not None:
            return advance(self._rows, starts)
        if self._messages > TOO_MANY and self.algorithm in COSTS:
            cost, link = COSTS[self.algorithm], self.cluster.link
            lag = cost(self.cluster.workers, self.count * ITEM, link, self.segment * ITEM)
        elif self._messages <= MANY or len(self._lags) < PLAYED:
            ends = np.array(play(self._plans, ITEM, self.cluster, starts))
            self._lags.append(float(ends.max() - starts.max()))
            return ends
        else:
            lag = mean(self._lags)
        return np.full_like(starts, starts.max() + lag)

    @cached_property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends, on average; for rings and chains, what a rank in the middle sends."""
        size = self.cluster.workers
        alike = self.schedule in ROTATIONAL or self._messages > TOO_MANY
        plans = [planned(self.schedule, size // 2, size, self.count, self.segment)] if alike else self._plans
        elements = sum(send.stop - send.start for steps in plans for step in steps for send in step.sends)
        return elements * ITEM / len(plans)

    def _schedule(self) -> Schedule:
        hosts = Hosts.of(self.cluster.hosts)
        found = ALLREDUCE | {
            "hierarchical": Hierarchical(hosts),
            "hierarchical_sliced": Hierarchical(hosts, hosts.leaders),
        }
        if self.algorithm not in found:
            raise ValueError(f"no allreduce algorithm is called {self.algorithm!r}; there are {', '.join(found)}")
        return found[self.algorithm]

    @cached_property
    def _messages(self) -> int:
        """About how many."""
        size = self.cluster.workers
        return size * sum(len(step.sends) for step in planned(self.schedule, size // 2, size, self.count, self.segment))

    @cached_property
    def _plans(self) -> list[tuple[Step, ...]]:
        size = self.cluster.workers
        return [planned(self.schedule, rank, size, self.count, self.segment) for rank in range(size)]

    @cached_property
    def _rows(self) -> list[Row] | None:
        if self.schedule in ROTATIONAL:
            return rotated_rows(self.schedule, self.count, self.segment, ITEM, self.cluster)
        return rows_of(self._plans, ITEM, self.cluster) if self._messages <= TOO_MANY else None
