"""From reduced sums to the next parameters: the one place where sums are divided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sparkdl.errors import TrainingError
from sparkdl.nn import Array
from sparkdl.train.run import Run
from sparkdl.train.task import Task

__all__ = ["StepSums", "apply_update", "learning_rate", "nonfinite", "rate_at"]

log = logging.getLogger(__name__)


class StepSums(NamedTuple):
    """What one update added up: loss and weight as sums over its rows, and how the update was made."""

    loss: float
    weight: float
    rows: int
    lr: float
    grad_norm: float


def learning_rate(task: Task, run: Run) -> float:
    """lr of the next update: the optimizer's base rate times the schedule's factor."""
    return rate_at(task, run.step, run.schedule_state)


def rate_at(task: Task, step: int, schedule_state: Mapping[str, Any]) -> float:
    """lr of update `step`, counted from 0."""
    factor: Callable[..., float] = task.schedule.factor
    return task.optimizer.lr * factor(step, task.steps_per_epoch, task.total_steps, schedule_state)


def apply_update(task: Task, run: Run, vec: Array) -> StepSums:
    """Update run.params and run.opt_state in place from a reduced step vector, which is used up; counts the step.

    Trainable entries: mean gradient = sum / weight, clipped, then the optimizer's rule. Buffers: sum / rows.
    An update whose rows all weigh nothing changes nothing. Errors: TrainingError for a non-finite loss or gradient
    where `on_nonfinite` is "error"; otherwise the update is skipped and counted in `run.skipped`.
    """
    layout = task.model.layout
    n, lr = layout.num_trainable, learning_rate(task, run)
    loss, weight, rows = (float(v) for v in vec[layout.size : layout.size + 3])
    grad = vec[:n]
    norm = 0.0
    if weight > 0:
        grad /= weight
        norm = task.training.clip.apply(grad)
        if np.isfinite(norm) and np.isfinite(loss):
            task.optimizer.step(run.params[:n], grad, run.opt_state, lr, layout.trainable_segments)
            if layout.size > n:
                np.divide(vec[n : layout.size], rows, out=run.params[n:])
        else:
            nonfinite(task, run, loss, norm)
    run.step += 1
    return StepSums(loss, weight, int(rows), lr, norm)


def nonfinite(task: Task, run: Run, loss: float, norm: float) -> None:
    """Meet a loss or gradient that is not finite as `on_nonfinite` says."""
    what = f"step {run.step} (epoch {run.epoch + 1}): loss {loss:g}, gradient norm {norm:g}"
    if task.training.on_nonfinite == "error":
        raise TrainingError(
            f"A gradient must be finite; {what}. The weights are those before this step. Lower optimizer.lr, clip "
            'with training.clip_norm, scale the features, or set training.on_nonfinite = "skip".'
        )
    run.skipped += 1
    log.warning("skipped a non-finite update at %s (%d so far)", what, run.skipped)
