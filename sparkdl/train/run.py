"""Where one fit stands: everything that changes while it trains, and all that a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparkdl.nn import Array
from sparkdl.train.history import History

__all__ = ["Run"]

COUNTERS = ("epoch", "step", "step_in_epoch", "skipped", "epoch_rows", "epoch_seconds")


@dataclass
class Run:
    """The mutable state of one fit, on the driver.

    `params` is the flat vector [trainable | buffers], `opt_state` the optimizer's slots. `epoch` counts finished
    epochs, `step` the updates done since the start and `step_in_epoch` those done in the epoch under way, 0 between
    two epochs; `skipped` counts the updates left out as not finite. `schedule_state` and `callback_state` hold what
    the schedule and the callbacks must remember, `strategy_state` (plain values and arrays) what the mode must. There
    is no random state: every generator is seeded by (seed, purpose, epoch, ...), so these counters fix it.
    `epoch_metrics` are the sums of the epoch under way, a vector of the fit's MetricSet, `epoch_rows` the rows of its
    updates and `epoch_seconds` the time they took.

    `epochs`, `steps_per_epoch` and `figures`, the names that epoch records will hold, describe the plan of this fit.
    They are set anew when it begins (empty or 0: not known) and are no part of a checkpoint.
    """

    params: Array
    opt_state: dict[str, Array] = field(default_factory=dict)
    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    skipped: int = 0
    epoch_metrics: Array = field(default_factory=lambda: np.zeros(0))
    epoch_rows: int = 0
    epoch_seconds: float = 0.0
    strategy_state: dict[str, Any] = field(default_factory=dict)
    schedule_state: dict[str, Any] = field(default_factory=dict)
    callback_state: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: History = field(default_factory=History)
    stop_reason: str | None = None
    epochs: int = 0
    steps_per_epoch: int = 0
    figures: tuple[str, ...] = ()

    def counters(self) -> dict[str, Any]:
        """How far the fit has come, as plain numbers."""
        return {name: getattr(self, name) for name in COUNTERS}

    def count_from(self, counters: Mapping[str, Any]) -> None:
        """Take over what `counters` returned. Errors: KeyError."""
        for name in COUNTERS:
            setattr(self, name, counters[name])

    def stop(self, reason: str) -> None:
        """Ask for the fit to end after the step or epoch under way; the first reason given is kept."""
        if self.stop_reason is None:
            self.stop_reason = reason
