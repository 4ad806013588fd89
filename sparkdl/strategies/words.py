"""What workers that are well tell the driver when another is lost, and what a mode can make of it.

The last whole state that the driver has may be an epoch old. Where every worker, or its neighbour, holds a part of the
fit that is worth keeping, it sends that before it leaves; the driver puts the parts together for the next launch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.control import Link, Message
from sparkdl.errors import TrainingError
from sparkdl.nn import Array
from sparkdl.train import Run

__all__ = ["METRICS", "WORDS", "Words", "leave_word"]

log = logging.getLogger(__name__)

WORDS = "words"  # the kind of the message
METRICS = "metrics"


def leave_word(link: Link, run: Run, arrays: Mapping[str, Array] | None) -> None:
    """Tell the driver where this rank stands and what it holds, if anything."""
    if arrays is None:
        return
    try:
        link.send(WORDS, {"run": run.counters()}, {METRICS: run.epoch_metrics, **arrays})
    except TrainingError as e:  # the driver is gone too
        log.warning("the last words of a worker did not reach the driver: %s", e)


@dataclass(frozen=True)
class Words:
    """The last words of some of `size` ranks that stood in one epoch: their counters and arrays by rank."""

    size: int
    counters: Mapping[int, Mapping[str, Any]]
    arrays: Mapping[int, Mapping[str, Array]]

    @classmethod
    def of(cls, found: Mapping[int, Message], run: Run, size: int, steps_per_epoch: int) -> Words | None:
        """None where there are none, or where a rank has seen the end of the epoch that the driver is in."""
        counters = {rank: message.data["run"] for rank, message in found.items()}
        here = [c for c in counters.values() if c["epoch"] == run.epoch and c["step_in_epoch"] <= steps_per_epoch]
        if not here or len(here) < len(counters):
            return None
        return cls(size, counters, {rank: message.arrays for rank, message in found.items()})

    @property
    def furthest(self) -> int:
        """The rank that had come furthest."""
        return max(self.counters, key=lambda rank: (self.counters[rank]["step"], -rank))

    def count(self, run: Run) -> None:
        """Take the counters of the furthest, and the figures of the epoch so far, but for those of the lost."""
        begun = run.step - run.step_in_epoch
        run.count_from(self.counters[self.furthest])
        run.step_in_epoch = run.step - begun  # a step that was broken off may have made its update
        run.epoch_metrics = np.sum([arrays[METRICS] for arrays in self.arrays.values()], axis=0)

    def rows(self, name: str, lost: float = 1.0) -> Array:
        """An array of all ranks (size, ...); for those that are lost, `lost` times the mean of the others."""
        known = {rank: arrays[name] for rank, arrays in self.arrays.items()}
        some = next(iter(known.values()))
        mean = (lost * np.mean(list(known.values()), axis=0)).astype(some.dtype)
        return np.stack([known.get(rank, mean) for rank in range(self.size)])

    def names(self) -> list[str]:
        """What the ranks tell of, besides their figures."""
        return sorted(set(next(iter(self.arrays.values()))) - {METRICS})
