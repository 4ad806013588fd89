"""Schedules in which all ranks move together, one message each way at a time, as arrays over the ranks.

A ring of 4,096 ranks passes 33 million messages; an array for each of its 8,190 steps takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sparkdl.comm.schedules import ring, segmented_ring
from sparkdl.comm.schedules.base import Schedule, Step, planned
from sparkdl.comm.transport.base import Array
from sparkdl.simulate.cluster import Cluster

__all__ = ["ROTATIONAL", "Row", "advance", "rotated_rows", "rows_of", "shift_row"]

ROTATIONAL: tuple[Schedule, ...] = (ring, segmented_ring)
"""Schedules whose rank r does what rank 0 does, with peers r further on, where the ranks' chunks are equal."""


class Row(NamedTuple):
    """One step: whom each rank sends to and receives from (P,), itself where nobody; seconds (P,) of its message.

    `reduce_s` (P,) is what folding in the received message takes.
    """

    to: Array
    source: Array
    seconds: Array
    reduce_s: Array


def advance(rows: Sequence[Row], starts: Array) -> Array:
    """When each rank is done that is there from `starts` (P,) on."""
    free = starts
    for row in rows:
        sent = np.maximum(free, free[row.to]) + row.seconds
        free = np.maximum(sent, sent[row.source] + row.reduce_s)
    return free


def rotated_rows(schedule: Schedule, count: int, segment: int, itemsize: float, cluster: Cluster) -> list[Row]:
    """The rows of a rotational schedule, from rank 0's steps alone; count is a multiple of the ranks."""
    ranks = np.arange(cluster.workers)

    @cache
    def row(to: int, source: int, nbytes: float, reduced: bool) -> Row:
        peers, sources = (ranks + to) % cluster.workers, (ranks + source) % cluster.workers
        return _row(peers, sources, np.full(ranks.size, nbytes), np.full(ranks.size, reduced), cluster)

    rows = []
    for (send,), (recv,) in planned(schedule, 0, cluster.workers, count, segment):
        rows.append(row(send.peer, recv.peer, (send.stop - send.start) * itemsize, recv.how != "copy"))
    return rows


def shift_row(shift: int, nbytes: float, cluster: Cluster) -> Row:
    """Every rank sends a message to the one `shift` further on, which folds it in."""
    ranks = np.arange(cluster.workers)
    to, source = (ranks + shift) % cluster.workers, (ranks - shift) % cluster.workers
    return _row(to, source, np.full(ranks.size, nbytes), np.full(ranks.size, True), cluster)


def rows_of(plans: Sequence[tuple[Step, ...]], itemsize: float, cluster: Cluster) -> list[Row] | None:
    """The rows of any schedule, or None if its ranks do not move together, or meet at a host's port."""
    if len({len(steps) for steps in plans}) != 1:
        return None
    rows = []
    for steps in zip(*plans, strict=True):
        if any(len(step.sends) != 1 or len(step.recvs) != 1 for step in steps):
            return None
        to = np.array([step.sends[0].peer for step in steps])
        source = np.array([step.recvs[0].peer for step in steps])
        if (source[to] != np.arange(len(plans))).any() or _crowded(to, cluster):
            return None
        nbytes = np.array([step.sends[0].stop - step.sends[0].start for step in steps]) * itemsize
        reduced = np.array([step.recvs[0].how != "copy" for step in steps])
        rows.append(_row(to, source, nbytes, reduced, cluster))
    return rows


def _row(to: Array, source: Array, nbytes: Array, reduced: Array, cluster: Cluster) -> Row:
    ranks = np.arange(to.size)
    same = (ranks // cluster.per_host == to // cluster.per_host) & (cluster.within is not None)
    within, link = cluster.within or cluster.link, cluster.link
    seconds = np.where(same, within.alpha + nbytes * within.beta, link.alpha + nbytes * link.beta)
    gamma = np.where(same[source], within.gamma, link.gamma)
    return Row(to, source, seconds, reduced * nbytes[source] * gamma)


def _crowded(to: Array, cluster: Cluster) -> bool:
    """Whether two messages of one host leave for, or reach, others at once."""
    here, there = np.arange(to.size) // cluster.per_host, to // cluster.per_host
    cross = here != there
    return any(np.bincount(hosts[cross], minlength=1).max() > 1 for hosts in (here, there))
