"""Watching one figure of the epochs: which way is better, and what was best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sparkdl.errors import ConfigError
from sparkdl.nn import Array
from sparkdl.train.run import Run

__all__ = ["Best", "Mode", "Monitor", "direction"]

Mode = Literal["auto", "min", "max"]

RISING = ("accuracy", "auc", "f1", "precision", "r2", "recall", "top_")
FALLING = ("loss", "mae", "mse")


def direction(monitor: str, mode: Mode = "auto") -> int:
    """+1 where more is better, -1 where less is. "auto" knows losses and the metrics of this package by name.

    Errors: ConfigError for another mode, or for "auto" with a name it does not know.
    """
    if mode == "auto":
        name = monitor.removeprefix("val_")
        if name.startswith(RISING):
            return 1
        if name.startswith(FALLING):
            return -1
        raise ConfigError(f'mode="auto" cannot tell whether more of {monitor!r} is better. Give mode="min" or "max".')
    if mode not in ("min", "max"):
        raise ConfigError(f'mode must be "auto", "min" or "max"; got {mode!r}.')
    return 1 if mode == "max" else -1


@dataclass
class Monitor:
    """Reads one figure of the epochs."""

    name: str
    mode: Mode = "auto"
    sign: int = field(init=False)

    def __post_init__(self) -> None:
        self.sign = direction(self.name, self.mode)

    def begin(self, run: Run) -> None:
        """Raise ConfigError where the run announces its figures and this is none of them."""
        if run.figures:
            self._check(run.figures)

    def _check(self, known: Sequence[str]) -> None:
        if self.name not in known:
            raise ConfigError(
                f"monitor must name a figure of the epochs; {self.name!r} is none of {', '.join(known)}."
                + (" Give validation data?" if self.name.startswith("val_") else "")
            )

    def read(self, run: Run, logs: Mapping[str, Any]) -> float | None:
        """The figure, or None in an epoch without it that was announced (validation need not run in each)."""
        if self.name not in logs:
            self._check(run.figures or tuple(logs))
            return None
        value = logs[self.name]
        if not isinstance(value, int | float):
            raise ConfigError(f"monitor must name a single number; {self.name!r} is {type(value).__name__}.")
        return float(value)


@dataclass
class Best:
    """The best value so far, and the weights it was reached with. NaN is never an improvement."""

    sign: int
    value: float | None = None
    epoch: int = 0
    params: Array | None = None

    def offer(self, value: float, run: Run, min_delta: float = 0.0, keep: bool = True) -> bool:
        """Whether value improves on the best by more than min_delta; if so it becomes the best."""
        if math.isnan(value) or (self.value is not None and self.sign * (value - self.value) <= min_delta):
            return False
        self.value, self.epoch = value, run.epoch
        if keep:
            self.params = run.params.copy()
        return True

    def restore(self, run: Run) -> None:
        """Put the best weights back, in place; nothing where there were none."""
        if self.params is not None:
            np.copyto(run.params, self.params)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        state: dict[str, Any] = {} if self.value is None else {"value": self.value, "epoch": self.epoch}
        return state if self.params is None else state | {"params": self.params}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.value, self.epoch = state.get("value"), state.get("epoch", 0)
        self.params = state.get("params")
