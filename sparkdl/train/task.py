"""What is to be trained, and how: one frozen value that travels to every worker once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from sparkdl.data import Augmentation, DataInfo, Plan
from sparkdl.errors import ConfigError
from sparkdl.fields import COUNT, POSITIVE, Interval, check_fields
from sparkdl.nn import Model
from sparkdl.optim import Clip, Constant, Optimizer, Schedule
from sparkdl.train.metrics import MetricSet

__all__ = ["Task", "Training"]


@dataclass(frozen=True)
class Training:
    """Settings of a training run that hold in every mode.

    `batch_size` is the global number of rows of a minibatch, over all workers. An update sums the gradients of
    `accumulate` consecutive minibatches, exactly as one minibatch of `accumulate * batch_size` rows would.
    `augment` are random changes of the training images, one after the other, drawn for each row in each epoch. With
    `mixup`, the alpha of a Beta distribution, each row is mixed with another of the minibatch (Zhang et al. 2018), one
    that the same worker has: the mixtures depend on the number of workers. Figures of training then tell of them.
    `on_nonfinite` says what a NaN or infinite gradient does: "error" ends the run, "skip" counts it and leaves the
    weights as they are.
    """

    epochs: int = field(default=10, metadata=COUNT)
    batch_size: int = field(default=32, metadata=COUNT)
    accumulate: int = field(default=1, metadata=COUNT)
    steps_per_epoch: int | None = field(default=None, metadata=COUNT)
    validate_every: int = field(default=1, metadata=COUNT)
    seed: int = field(default=0, metadata={"within": Interval(0, math.inf, "[)", integer=True)})
    dtype: Literal["float32", "float64"] = "float32"
    clip: Clip = field(default_factory=Clip)
    augment: tuple[Augmentation, ...] = ()
    mixup: float | None = field(default=None, metadata=POSITIVE)
    on_nonfinite: Literal["error", "skip"] = "error"
    profile: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name, known in (("dtype", ("float32", "float64")), ("on_nonfinite", ("error", "skip"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}.")


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

    def __post_init__(self) -> None:
        if self.training.augment and len(self.info.shape) != 3:
            raise ConfigError(
                f"training.augment is for images (H, W, C); samples have shape {self.info.shape}. Set data.shape?"
            )

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

    def rows_of(self, index: int) -> int:
        """Rows of update `index` of an epoch, over all workers."""
        plan, k = self.plan, self.training.accumulate
        ends = (min(i * k, plan.steps) * plan.batch_size for i in (index, index + 1))
        start, stop = (min(end, plan.rows) for end in ends)
        return stop - start

    @property
    def total_steps(self) -> int:
        """Updates of the whole run."""
        return self.steps_per_epoch * self.training.epochs
