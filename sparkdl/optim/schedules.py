"""Schedules: how the learning rate moves, as a factor of the optimizer's base rate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkdl.fields import COUNT, FRACTION, NON_NEGATIVE, OPEN_UNIT, POSITIVE, UNIT, Interval, check_fields

__all__ = ["Constant", "Cosine", "MultiStep", "OnPlateau", "OneCycle", "Polynomial", "Schedule", "Step", "WarmUp"]


class Schedule(ABC):
    """A frozen description of a curve. Most are functions of the step alone; what others remember is explicit state.

    A loop keeps `state = schedule.init()`, takes `lr = base * schedule.factor(...)` before each update, and calls
    `schedule.observe(state, logs)` with the figures of each epoch. State is plain JSON, so a checkpoint can hold it.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self) -> dict[str, Any]:
        """Fresh state; empty for a function of the step."""
        return {}

    @property
    def watches(self) -> str | None:
        """Name of the figure that `observe` needs; None for a function of the step."""
        return None

    def observe(self, state: dict[str, Any], logs: Mapping[str, Any]) -> None:  # noqa: B027 - few schedules watch
        """Take the epoch's figure named by `watches` into state, in place; an epoch without it counts neither way."""

    @abstractmethod
    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        """What multiplies the base rate in the update that follows `step` earlier ones; past the end, the last value.

        step counts from 0; total_steps is the length of the whole run, steps_per_epoch of an epoch.
        """


@dataclass(frozen=True)
class Constant(Schedule):
    """1 throughout."""

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        return 1.0


@dataclass(frozen=True)
class Step(Schedule):
    """gamma^floor(epoch / every): a cut every so many epochs."""

    every: int = field(default=30, metadata=COUNT)
    gamma: float = field(default=0.1, metadata=POSITIVE)

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        return float(self.gamma ** (step // (self.every * steps_per_epoch)))


@dataclass(frozen=True)
class MultiStep(Schedule):
    """gamma^(milestones reached): a cut at the start of each of these epochs, counted from 0."""

    milestones: tuple[int, ...] = (30, 60, 80)
    gamma: float = field(default=0.1, metadata=POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        epochs = tuple(self.milestones)
        if any(m not in COUNT["within"] for m in epochs) or list(epochs) != sorted(set(epochs)):
            raise ValueError(f"MultiStep(milestones={epochs}): milestones must be epochs from 1 on, each later.")
        object.__setattr__(self, "milestones", epochs)

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        return float(self.gamma ** sum(step >= m * steps_per_epoch for m in self.milestones))


@dataclass(frozen=True)
class Cosine(Schedule):
    """min + (1 - min) (1 + cos(pi x)) / 2 with x = step / total_steps: half a cosine from 1 towards min_factor.

    Loshchilov and Hutter, arXiv:1608.03983, without restarts. The end is one step past the last: no update has rate 0.
    """

    min_factor: float = field(default=0.0, metadata=UNIT)

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        return _cosine(1.0, self.min_factor, min(step / total_steps, 1.0))


@dataclass(frozen=True)
class Polynomial(Schedule):
    """end + (1 - end) (1 - step / total_steps)^power: from 1 towards end_factor, one step past the last."""

    power: float = field(default=1.0, metadata=POSITIVE)
    end_factor: float = field(default=0.0, metadata=UNIT)

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        left = max(1.0 - step / total_steps, 0.0)
        return float(self.end_factor + (1.0 - self.end_factor) * left**self.power)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """From max_factor / div up to max_factor over the share `pct` of the run, then down to the start over final_div.

    Half cosines both ways, the lowest value in the last step (Smith and Topin, arXiv:1708.07120). With max_factor 1 the
    base rate is the peak. Momentum is not cycled.
    """

    max_factor: float = field(default=1.0, metadata=POSITIVE)
    pct: float = field(default=0.3, metadata=UNIT)
    div: float = field(default=25.0, metadata={"within": Interval(1, math.inf, "[)")})
    final_div: float = field(default=1e4, metadata={"within": Interval(1, math.inf, "[)")})

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        start, last, peak = self.max_factor / self.div, total_steps - 1, self.pct * total_steps - 1
        at = min(step, last)
        if at <= peak:
            return _cosine(start, self.max_factor, at / peak if peak else 1.0)
        return _cosine(self.max_factor, start / self.final_div, (at - peak) / (last - peak))


@dataclass(frozen=True)
class OnPlateau(Schedule):
    """A cut by gamma, not below min_factor, after `patience` figures in a row that did not improve on the best.

    The figure is the epoch's `monitor`. Better means by more than min_delta below (mode "min") or above ("max") the
    best; NaN and infinity never are. State: the factor, the best figure, and how many in a row were no better (`bad`).
    """

    monitor: str = "val_loss"

    mode: Literal["min", "max"] = "min"
    gamma: float = field(default=0.1, metadata=OPEN_UNIT)
    patience: int = field(default=10, metadata=COUNT)
    min_factor: float = field(default=0.0, metadata=FRACTION)
    min_delta: float = field(default=0.0, metadata=NON_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("min", "max"):
            raise ValueError(f'OnPlateau(mode={self.mode!r}): mode must be "min" or "max".')

    def init(self) -> dict[str, Any]:
        return {"factor": 1.0, "best": None, "bad": 0}

    @property
    def watches(self) -> str | None:
        return self.monitor

    def observe(self, state: dict[str, Any], logs: Mapping[str, Any]) -> None:
        if self.monitor not in logs:
            return
        value = float(logs[self.monitor])
        if self._better(value, state["best"]):
            state["best"], state["bad"] = value, 0
            return
        state["bad"] += 1
        if state["bad"] >= self.patience:
            state["factor"], state["bad"] = max(state["factor"] * self.gamma, self.min_factor), 0

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        return float(state["factor"])

    def _better(self, value: float, best: float | None) -> bool:
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        return value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta


@dataclass(frozen=True)
class WarmUp(Schedule):
    """A linear rise over n updates, (step + 1) / n times `then`'s first value, before `then` starts.

    n is given in `steps` or in `epochs`; 0 is no warm-up. The first update already moves (1 / n), the n-th has the full
    rate. `then` counts from the end of the rise: its step 0 is our step n, its run is n steps shorter.
    """

    steps: int = field(default=0, metadata={"within": Interval(0, math.inf, "[)", integer=True)})
    epochs: float = field(default=0.0, metadata=NON_NEGATIVE)
    then: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps and self.epochs:
            raise ValueError(f"WarmUp(steps={self.steps}, epochs={self.epochs}): give one of the two.")

    def init(self) -> dict[str, Any]:
        return self.then.init()

    @property
    def watches(self) -> str | None:
        return self.then.watches

    def observe(self, state: dict[str, Any], logs: Mapping[str, Any]) -> None:
        self.then.observe(state, logs)

    def factor(self, step: int, steps_per_epoch: int, total_steps: int, state: dict[str, Any]) -> float:
        n = self.steps or round(self.epochs * steps_per_epoch)
        after = self.then.factor(max(step - n, 0), steps_per_epoch, max(total_steps - n, 1), state)
        return after * min((step + 1) / n, 1.0) if n else after


def _cosine(a: float, b: float, x: float) -> float:
    """From a (x = 0) to b (x = 1) along half a cosine."""
    return b + (a - b) * (1.0 + math.cos(math.pi * x)) / 2.0
