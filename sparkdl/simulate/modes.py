"""The modes of training that are simulated: what workers wait for between local steps."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sparkdl.comm.gossip import Bipartite, Ring, Topology
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, check_fields
from sparkdl.simulate.cluster import Cluster, Compute
from sparkdl.simulate.collective import Collective
from sparkdl.simulate.ports import Message, Ports, deliver

__all__ = ["AllReduce", "AsyncGossip", "Averaging", "Gossip", "Mode", "Outcome", "Setting"]


class Setting(NamedTuple):
    """What a mode runs on: `nbytes` is the vector's length, `steps` how many local steps a worker takes on average."""

    cluster: Cluster
    compute: Compute
    nbytes: float
    steps: int
    rng: np.random.Generator

    def draw(self, steps: int) -> Array:
        """Seconds (steps, workers) of local steps."""
        return self.compute.draw(self.rng, self.cluster.workers, steps)


class Outcome(NamedTuple):
    """Local steps of all workers together, seconds they took, and bytes that a worker sent per local step, on average.

    `staleness` (k,): by how many updates of others the weights were behind, for each update.
    """

    worker_steps: float
    seconds: float
    sent_bytes: float
    staleness: Array


class Mode(ABC):
    """A mode with its settings. Subclasses are frozen dataclasses and final."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def run(self, setting: Setting) -> Outcome:
        """Simulate it."""


@dataclass(frozen=True)
class AllReduce(Mode):
    """Gradients are summed after every step; everyone waits for the slowest."""

    algorithm: str = "ring"

    def run(self, setting: Setting) -> Outcome:
        return _meetings(setting, self.algorithm, 1)


@dataclass(frozen=True)
class Averaging(Mode):
    """Weights are averaged every `period` local steps. Staleness counts the steps since the last meeting."""

    period: int = field(default=8, metadata=COUNT)
    algorithm: str = "ring"

    def run(self, setting: Setting) -> Outcome:
        return _meetings(setting, self.algorithm, self.period)


@dataclass(frozen=True)
class Gossip(Mode):
    """After every step weights are mixed with those of the neighbours, for whom alone a worker waits."""

    topology: Topology = field(default_factory=Ring)

    def run(self, setting: Setting) -> Outcome:
        size = setting.cluster.workers
        clocks, messages = np.zeros(size), 0
        for step, seconds in enumerate(setting.draw(setting.steps)):
            rows = [
                [Message(rank, peer, setting.nbytes) for peer in self.topology(step, rank, size).targets]
                for rank in range(size)
            ]
            messages += sum(map(len, rows))
            clocks = np.array(deliver(rows, setting.cluster, clocks + seconds))
        sent = messages * setting.nbytes / (size * setting.steps)
        return Outcome(size * setting.steps, float(clocks.max()), sent, np.zeros(1))


@dataclass(frozen=True)
class AsyncGossip(Mode):
    """After every step an active worker swaps weights with a passive one, whose own steps go on undisturbed.

    The passive worker's port, and the time to fold in what came, are all that several of them have to share.
    """

    pairs: Bipartite = field(default_factory=Bipartite)

    def run(self, setting: Setting) -> Outcome:
        size, steps = setting.cluster.workers, setting.steps
        seconds, ports = setting.draw(steps), Ports(setting.cluster, np.zeros(setting.cluster.workers))
        active = [rank for rank in range(size) if self.pairs.active(rank) and size > 1]
        ends = seconds.sum(axis=0)  # of those that swap with nobody, or are only asked
        # When a message can be on its way, from whom, to whom, and after which step of the active one.
        heap = [(float(seconds[0, a]), a, self._peer(0, a, size), 0) for a in active]
        heapq.heapify(heap)
        while heap:
            when, sender, receiver, step = heapq.heappop(heap)
            if (start := max(when, ports.ready(sender, receiver))) > when:  # others were first
                heapq.heappush(heap, (start, sender, receiver, step))
                continue
            ports.carry(sender, receiver, start, setting.nbytes, reduced=True)
            now = ports.into[receiver]
            if self.pairs.active(sender):
                heapq.heappush(heap, (now, receiver, sender, step))
            elif step + 1 < steps:
                peer = self._peer(step + 1, receiver, size)
                heapq.heappush(heap, (now + float(seconds[step + 1, receiver]), receiver, peer, step + 1))
            else:
                ends[receiver] = now
        rates = steps / ends
        sent = 2 * setting.nbytes * float(rates[active].sum() / rates.sum())
        return Outcome(float(rates.sum()), 1.0, sent, np.zeros(1))

    def _peer(self, step: int, rank: int, size: int) -> int:
        peer = self.pairs.peer(step, rank, size)
        assert peer is not None
        return peer


def _meetings(setting: Setting, algorithm: str, period: int) -> Outcome:
    size, meetings = setting.cluster.workers, -(-setting.steps // period)
    collective = Collective(algorithm, setting.cluster, setting.nbytes)
    clocks = np.zeros(size)
    for _ in range(meetings):
        clocks = collective.finish(clocks + setting.draw(period).sum(axis=0))
    sent = collective.sent_bytes / period if size > 1 else 0.0
    return Outcome(size * meetings * period, float(clocks.max()), sent, np.arange(period))
