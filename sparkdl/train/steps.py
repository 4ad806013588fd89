"""What a mode of training gives to the loop: how a step is made, and how figures of all workers come together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from sparkdl.nn import Array
from sparkdl.train.profile import Profile
from sparkdl.train.update import StepSums

__all__ = ["Step", "Steps"]


class Step(NamedTuple):
    """What has been done: sums over all workers, metric sums to add to the epoch's, a profile, and how many updates."""

    sums: StepSums
    metrics: Array
    profile: Profile | None = None
    updates: int = 1


class Steps(ABC):
    """How one mode makes the steps of a fit; all else is the loop's.

    Where every worker runs a loop of its own, metric sums stay with it until `totals` brings them together.
    """

    @abstractmethod
    def step(self, epoch: int, index: int) -> Step:
        """Make update `index` of the epoch, or as many from there on as the mode makes at once.

        The run's parameters, optimizer state and step count change in place.
        """

    @abstractmethod
    def evaluate(self, params: Array) -> Array:
        """Metric sums over the validation rows of all workers."""

    def totals(self, sums: Array) -> Array:
        """An epoch's metric sums over all workers."""
        return sums

    def figures(self) -> dict[str, Any]:
        """What the mode adds to the record of the epoch that has just ended."""
        return {}

    def agree(self) -> None:  # noqa: B027  # most modes have one loop
        """After the callbacks have seen an epoch: whoever else runs this loop learns whether it goes on."""
