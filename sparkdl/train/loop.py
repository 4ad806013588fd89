"""The training loop, written once: epochs, steps, validation, callbacks, checkpoints, whatever the mode."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.train import memory
from sparkdl.train.callbacks import Callback, Callbacks
from sparkdl.train.checkpoint import Checkpoints
from sparkdl.train.interrupt import stop_on_interrupt
from sparkdl.train.profile import Profile
from sparkdl.train.run import Run
from sparkdl.train.steps import Steps
from sparkdl.train.task import Task
from sparkdl.train.update import StepSums, learning_rate

__all__ = ["Loop"]

log = logging.getLogger(__name__)


class Loop:
    """Drives one fit, on the driver or, where workers train among themselves, on each of them.

    A strategy hands `fit` its steps. One whose steps are made elsewhere keeps the fit open with `watching` and passes
    on what it hears to `step_end`, `epoch_end` and `save`.

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
        watched, metrics = task.schedule.watches, self._metrics()  # not times: workers would not agree on them
        if watched is not None and watched not in metrics:
            raise ConfigError(f"schedule.monitor must name a metric; {watched!r} is none of {', '.join(metrics)}.")

    def span(self, name: str) -> AbstractContextManager[None]:
        """Time a phase when a profile is kept."""
        return nullcontext() if self.profile is None else self.profile.span(name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The frame of a fit: interrupts stop it, callbacks begin and, unless it fails, end, a last checkpoint."""
        with stop_on_interrupt(self.run):
            self.callbacks.begin(self.run)
            try:
                yield
            finally:
                memory.release()
            if self.checkpoints is not None:
                self.callbacks.collect(self.run)
                self.checkpoints.finish(self.run)
            self.callbacks.end(self.run)

    def fit(self, steps: Steps) -> None:
        """Train from where the run stands to the last epoch, or until someone stops the run."""
        with self.watching():
            self.train(steps)

    def train(self, steps: Steps) -> None:
        """The epochs alone, outside the frame of `watching`."""
        run = self.run
        while run.epoch < self.task.training.epochs and run.stop_reason is None:
            self._epoch(steps)

    def step_end(self, logs: Mapping[str, float]) -> None:
        """Tell the callbacks of an update that the run holds."""
        self.callbacks.step_end(self.run, logs)

    def epoch_end(self, record: Mapping[str, Any]) -> None:
        """Tell history and callbacks of an epoch that the run holds."""
        self.run.history.append(record)
        self.callbacks.epoch_end(self.run, record)

    def save(self) -> None:
        """Write a checkpoint where one is due after the update or epoch that the run has just ended."""
        if self.checkpoints is not None:
            self.callbacks.collect(self.run)
            (self.checkpoints.step_end if self.run.step_in_epoch else self.checkpoints.epoch_end)(self.run)

    def _metrics(self) -> tuple[str, ...]:
        names = self.task.metrics.names
        return (*names, *(f"val_{name}" for name in names)) if self.task.info.valid_rows else tuple(names)

    def _figures(self) -> tuple[str, ...]:
        return ("epoch", "step", *self._metrics(), "lr", "seconds", "samples_per_s")

    def _epoch(self, steps: Steps) -> None:
        run = self.run
        if run.step_in_epoch == 0:
            run.epoch_metrics, run.epoch_rows, run.epoch_seconds = self.task.metrics.zeros(), 0, 0.0
        while run.step_in_epoch < self.task.steps_per_epoch:
            if not self._step(steps) or run.stop_reason is not None:
                break
        if run.step_in_epoch == self.task.steps_per_epoch:
            self._end_epoch(steps)

    def _step(self, steps: Steps) -> bool:
        """One update; False where an interrupt took away what the step runs on."""
        run, started = self.run, time.perf_counter()
        try:
            step = steps.step(run.epoch, run.step_in_epoch)
        except Exception as e:
            if run.stop_reason is None:
                raise
            log.info("the step that was interrupted did not end: %s", e)
            return False
        if self.profile is not None and step.profile is not None:
            self.profile.merge(step.profile)
        run.epoch_metrics += step.metrics
        run.epoch_rows += step.sums.rows
        run.step_in_epoch += step.updates
        run.epoch_seconds += time.perf_counter() - started
        self.step_end(self._step_logs(step.sums))
        if run.step_in_epoch < self.task.steps_per_epoch:
            self.save()
        return True

    def _step_logs(self, sums: StepSums) -> dict[str, float]:
        run = self.run
        return {
            "loss": sums.loss / sums.weight if sums.weight else 0.0,
            "lr": sums.lr,
            "grad_norm": sums.grad_norm,
            "samples_per_s": run.epoch_rows / max(run.epoch_seconds, 1e-9),
        }

    def _end_epoch(self, steps: Steps) -> None:
        run, task = self.run, self.task
        record: dict[str, Any] = {"epoch": run.epoch + 1, "step": run.step}
        record |= task.metrics.results(steps.totals(run.epoch_metrics))
        last = run.epoch + 1 == task.training.epochs
        if task.info.valid_rows and (last or (run.epoch + 1) % task.training.validate_every == 0):
            with self.span("evaluate"):
                sums = steps.evaluate(run.params)
            record |= {f"val_{name}": value for name, value in task.metrics.results(sums).items()}
        record["lr"] = learning_rate(task, run)
        record["seconds"] = run.epoch_seconds
        record["samples_per_s"] = run.epoch_rows / max(run.epoch_seconds, 1e-9)
        record |= steps.figures()
        run.epoch, run.step_in_epoch = run.epoch + 1, 0
        task.schedule.observe(run.schedule_state, record)
        self.epoch_end(record)
        self.save()
        steps.agree()
