"""The modes of training that are simulated: what workers wait for between local steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sparkdl.comm.gossip import Ring, Topology
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, check_fields
from sparkdl.simulate.cluster import Cluster, Compute
from sparkdl.simulate.collective import Collective
from sparkdl.simulate.ports import Message, deliver

__all__ = ["AllReduce", "Averaging", "Gossip", "Mode", "Outcome", "Setting"]


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
    """Local steps of all workers together, seconds they took, and bytes that a worker sent per local step.

    `staleness` (k,): by how many updates of others the weights were behind, for each update.
    """

    worker_steps: int
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


def _meetings(setting: Setting, algorithm: str, period: int) -> Outcome:
    size, meetings = setting.cluster.workers, -(-setting.steps // period)
    collective = Collective(algorithm, setting.cluster, setting.nbytes)
    clocks = np.zeros(size)
    for _ in range(meetings):
        clocks = collective.finish(clocks + setting.draw(period).sum(axis=0))
    sent = collective.sent_bytes / period if size > 1 else 0.0
    return Outcome(size * meetings * period, float(clocks.max()), sent, np.arange(period))
