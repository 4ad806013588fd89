"""The contract of a strategy: how local gradients become the next parameters. One class a mode."""

from __future__ import annotations

from typing import Protocol

from sparkdl.backends.base import Backend, Shards, Slots
from sparkdl.simulate import Mode
from sparkdl.train import Loop

__all__ = ["Strategy"]


class Strategy(Protocol):
    """A frozen description of a mode. Data, backward pass, metrics and checkpoints are the loop's and the worker's."""

    @property
    def spare(self) -> int:
        """How many of the workers, the first of them, hold no rows."""

    def plan(self, workers: int, slots: Slots) -> tuple[Strategy, int]:
        """Before the data are read: the strategy that will train, and on how many workers (0: as the backend has it).

        Errors: ConfigError where the slots do not allow what is asked for.
        """

    def train(self, loop: Loop, shards: Shards, backend: Backend) -> None:
        """Train loop.task from where loop.run stands until the loop ends; the result is in loop.run."""

    def simulated(self, workers: int) -> Mode:
        """What this mode is to the simulator, on so many workers."""
