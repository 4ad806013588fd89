"""The training loop, written once: epochs, steps, validation, callbacks, checkpoints, whatever the mode."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.nn import Array
from sparkdl.train.callbacks import Callback, Callbacks
from sparkdl.train.checkpoint import Checkpoints
from sparkdl.train.gradient import Part
from sparkdl.train.interrupt import stop_on_interrupt
from sparkdl.train.profile import Profile
from sparkdl.train.run import Run
from sparkdl.train.task import Task
from sparkdl.train.update import StepSums, apply_update, learning_rate

__all__ = ["Loop"]

log = logging.getLogger(__name__)

Gradient = Callable[[int, int], Part]  # (epoch, step in the epoch) -> the reduced step vector
Evaluate = Callable[[Array], Part]  # parameters -> reduced metric sums over the validation rows


class Loop:
    """Drives one fit. A strategy hands `fit` two functions: how a gradient is made, and how a validation.

    Order at the end of an epoch: validation, schedule, history, callbacks in their order, checkpoint. Hence a
    checkpoint knows what the callbacks concluded, and a resumed run goes on exactly where it stopped.
    """

    def __init__(
        self, task: Task, run: Run, callbacks: Sequence[Callback] = (), checkpoints: Checkpoints | None = None
    ) -> None:
        self.task = task
        self.run = run
        self.callbacks = Callbacks(callbacks)
        self.checkpoints = checkpoints
        self.profile = Profile("driver") if task.training.profile else None
        run.epochs, run.steps_per_epoch = task.training.epochs, task.steps_per_epoch
        run.figures = self._figures()
        watched = task.schedule.watches
        if watched is not None and watched not in run.figures:
            raise ConfigError(
                f"schedule.monitor must name a figure of the epochs; {watched!r} is none of {', '.join(run.figures)}."
            )

    def span(self, name: str) -> AbstractContextManager[None]:
        """Time a phase of the driver when a profile is kept."""
        return nullcontext() if self.profile is None else self.profile.span(name)

    def fit(self, gradient: Gradient, evaluate: Evaluate) -> None:
        """Train from where the run stands to the last epoch, or until someone stops the run."""
        run = self.run
        with stop_on_interrupt(run):
            self.callbacks.begin(run)
            while run.epoch < self.task.training.epochs and run.stop_reason is None:
                self._epoch(gradient, evaluate)
            if self.checkpoints is not None:
                self.callbacks.collect(run)
                self.checkpoints.finish(run)
            self.callbacks.end(run)

    def _figures(self) -> tuple[str, ...]:
        names = self.task.metrics.names
        validated = tuple(f"val_{name}" for name in names) if self.task.info.valid_rows else ()
        return ("epoch", "step", *names, *validated, "lr", "seconds", "samples_per_s")

    def _epoch(self, gradient: Gradient, evaluate: Evaluate) -> None:
        run = self.run
        if run.step_in_epoch == 0:
            run.epoch_metrics, run.epoch_seconds = self.task.metrics.zeros(), 0.0
        while run.step_in_epoch < self.task.steps_per_epoch:
            if not self._step(gradient) or run.stop_reason is not None:
                break
        if run.step_in_epoch == self.task.steps_per_epoch:
            self._end_epoch(evaluate)

    def _step(self, gradient: Gradient) -> bool:
        """One update; False where an interrupt took away what the step runs on."""
        run, started = self.run, time.perf_counter()
        try:
            with self.span("job"):
                part = gradient(run.epoch, run.step_in_epoch)
        except Exception as e:
            if run.stop_reason is None:
                raise
            log.info("the step that was interrupted did not end: %s", e)
            return False
        with self.span("update"):
            sums = apply_update(self.task, run, part.vec)
        if self.profile is not None and part.profile is not None:
            self.profile.merge(part.profile)
        run.epoch_metrics += part.metrics
        run.step_in_epoch += 1
        run.epoch_seconds += time.perf_counter() - started
        logs = self._step_logs(sums)
        self.callbacks.step_end(run, logs)
        if self.checkpoints is not None and run.step_in_epoch < self.task.steps_per_epoch:
            self.callbacks.collect(run)
            self.checkpoints.step_end(run)
        return True

    def _step_logs(self, sums: StepSums) -> dict[str, float]:
        run = self.run
        rows = float(run.epoch_metrics[2])
        return {
            "loss": sums.loss / sums.weight if sums.weight else 0.0,
            "lr": sums.lr,
            "grad_norm": sums.grad_norm,
            "samples_per_s": rows / max(run.epoch_seconds, 1e-9),
        }

    def _end_epoch(self, evaluate: Evaluate) -> None:
        run, task = self.run, self.task
        logs: dict[str, Any] = {"epoch": run.epoch + 1, "step": run.step}
        logs |= task.metrics.results(run.epoch_metrics)
        last = run.epoch + 1 == task.training.epochs
        if task.info.valid_rows and (last or (run.epoch + 1) % task.training.validate_every == 0):
            with self.span("evaluate"):
                sums = evaluate(run.params).metrics
            logs |= {f"val_{name}": value for name, value in task.metrics.results(sums).items()}
        logs["lr"] = learning_rate(task, run)
        logs["seconds"] = run.epoch_seconds
        logs["samples_per_s"] = float(run.epoch_metrics[2]) / max(run.epoch_seconds, 1e-9)
        run.epoch, run.step_in_epoch = run.epoch + 1, 0
        task.schedule.observe(run.schedule_state, logs)
        run.history.append(logs)
        self.callbacks.epoch_end(run, logs)
        if self.checkpoints is not None:
            self.callbacks.collect(run)
            self.checkpoints.epoch_end(run)
