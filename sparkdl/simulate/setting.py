"""What a mode is: something that runs in a setting and has an outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparkdl.comm.compress import Segment
from sparkdl.comm.transport.base import Array
from sparkdl.fields import check_fields
from sparkdl.simulate.cluster import Cluster, Compute

__all__ = ["Mode", "Outcome", "Setting"]


class Setting(NamedTuple):
    """What a mode runs on: `nbytes` is the vector's length, `steps` how many local steps a worker takes on average.

    `segments` are the trainable tensors, at the vector's beginning; without them it is one. The optimizer keeps `slots`
    vectors as long as they are.
    """

    cluster: Cluster
    compute: Compute
    nbytes: float
    steps: int
    rng: np.random.Generator
    itemsize: int = 4
    segments: Sequence[Segment] = ()
    slots: int = 0

    @property
    def trainable(self) -> int:
        """Elements that an optimizer and a compressor meet."""
        return self.segments[-1].stop if self.segments else round(self.nbytes / self.itemsize)

    def draw(self, steps: int) -> Array:
        """Seconds (steps, workers) of local steps."""
        return self.compute.draw(self.rng, self.cluster.workers, steps)


class Outcome(NamedTuple):
    """Local steps of all workers together, seconds they took, and bytes that a worker sent per local step, on average.

    staleness (k,): by how many updates of others the weights were behind, for each update.
    waiting_s: per local step, how long a worker waited for others to come, on average.
    """

    worker_steps: float
    seconds: float
    sent_bytes: float
    staleness: Array
    waiting_s: float


class Mode(ABC):
    """A mode with its settings. Subclasses are frozen dataclasses and final."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def run(self, setting: Setting) -> Outcome:
        """Simulate it."""
