"""What is to be trained, and how: one frozen value that travels to every worker once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sparkdl.data import DataInfo, Plan
from sparkdl.nn import Model
from sparkdl.optim import Clip, Constant, Optimizer, Schedule
from sparkdl.train.metrics import MetricSet

__all__ = ["Task", "Training"]


@dataclass(frozen=True)
class Training:
    """Settings of a training run that hold in every mode.

    `batch_size` is the global number of rows of a minibatch, over all workers. An update sums the gradients of
    `accumulate` consecutive minibatches, exactly as one minibatch of `accumulate * batch_size` rows would.
    `on_nonfinite` says what a NaN or infinite gradient does: "error" ends the run, "skip" counts it and leaves the
    weights as they are.
    """

    epochs: int = 10
    batch_size: int = 32
    accumulate: int = 1
    steps_per_epoch: int | None = None
    validate_every: int = 1
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    clip: Clip = field(default_factory=Clip)
    on_nonfinite: Literal["error", "skip"] = "error"
    profile: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be an integer >= 1; got {getattr(self, name)}.")
        if self.steps_per_epoch is not None and self.steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be an integer >= 1 or None; got {self.steps_per_epoch}.")
        if self.seed < 0:
            raise ValueError(f"seed must be an integer >= 0; got {self.seed}.")


@dataclass(frozen=True)
class Task:
    """Everything a worker or the driver needs to take part in one fit, save data and weights.

    `fit_id` tells fits apart that run in the same processes.
    """

    fit_id: str
    model: Model
    optimizer: Optimizer
    training: Training
    info: DataInfo
    metrics: MetricSet
    schedule: Schedule = field(default_factory=Constant)

    @property
    def plan(self) -> Plan:
        """Which rows form which minibatch; the same on every worker."""
        t = self.training
        minibatches = None if t.steps_per_epoch is None else t.steps_per_epoch * t.accumulate
        return Plan(self.info.train_rows, t.batch_size, t.seed, minibatches)

    @property
    def steps_per_epoch(self) -> int:
        """Updates per epoch; the last one of an epoch may sum fewer minibatches."""
        return -(-self.plan.steps // self.training.accumulate)

    @property
    def total_steps(self) -> int:
        """Updates of the whole run."""
        return self.steps_per_epoch * self.training.epochs
