"""Callbacks: what may watch a fit, remember, and end it.

They run on the driver, in the order given, so that of two that put weights back at the end the last one decides.
For each epoch: the loop appends the epoch's record to `run.history`, the callbacks' `epoch_end` see it, then a
checkpoint that is due is written. `end` comes after the last checkpoint: a resumed fit goes on from the weights
that training had reached, not from the best ones that `end` restored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.train.files import Files, LocalFiles
from sparkdl.train.monitor import Best, Mode, Monitor
from sparkdl.train.run import Run

__all__ = [
    "BestModel",
    "Callback",
    "Callbacks",
    "EarlyStopping",
    "HistoryFile",
    "StopAtValue",
    "TimeBudget",
]

Logs = Mapping[str, Any]


class Callback:
    """Base of all callbacks; every hook does nothing until a subclass says otherwise.

    One instance serves one fit at a time. `logs` of a step: loss (mean), rows, lr; of an epoch: its history record.
    """

    def begin(self, run: Run) -> None:
        """Before the first step, also of a resumed fit. Forgets any earlier fit; `load` follows where one resumes."""

    def step_end(self, run: Run, logs: Logs) -> None:
        """After each update."""

    def epoch_end(self, run: Run, logs: Logs) -> None:
        """After each epoch and its validation."""

    def end(self, run: Run) -> None:
        """After the last epoch, however the fit ended save by an error; may replace the contents of `run.params`."""

    def state(self) -> dict[str, Any]:
        """What a resumed fit must know: values that JSON can hold, and arrays."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""


class Callbacks(Callback):
    """Several callbacks as one. Their states live in `run.callback_state` under the class name (`X`, `X:2`, ...)."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        seen: Counter[str] = Counter()
        self.items: dict[str, Callback] = {}
        for callback in callbacks:
            kind = type(callback).__name__
            seen[kind] += 1
            self.items[kind if seen[kind] == 1 else f"{kind}:{seen[kind]}"] = callback

    def begin(self, run: Run) -> None:
        """Begin each, and give it the state that `run` brings along."""
        for name, callback in self.items.items():
            callback.begin(run)
            if name in run.callback_state:
                callback.load(run.callback_state[name])

    def step_end(self, run: Run, logs: Logs) -> None:
        for callback in self.items.values():
            callback.step_end(run, logs)

    def epoch_end(self, run: Run, logs: Logs) -> None:
        for callback in self.items.values():
            callback.epoch_end(run, logs)

    def end(self, run: Run) -> None:
        for callback in self.items.values():
            callback.end(run)

    def collect(self, run: Run) -> None:
        """Bring `run.callback_state` up to date; to be done before a checkpoint."""
        run.callback_state = {name: state for name, c in self.items.items() if (state := c.state())}


@dataclass
class EarlyStopping(Callback):
    """Stops after `patience` epochs in a row none of which improved on the best by more than `min_delta`.

    With restore_best the fit ends with the weights of the best epoch, whatever ended it; they take the memory of one
    more parameter vector. Epochs without the monitored figure count neither way. NaN is no improvement. Patience and
    best weights are part of a checkpoint. Example: val_loss .5, .6, .7 with patience 2 stops after epoch 3 and
    returns the weights of epoch 1.
    """

    monitor: str = "val_loss"
    patience: int = 5
    min_delta: float = 0.0
    mode: Mode = "auto"
    restore_best: bool = True

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"patience must be an integer >= 1; got {self.patience}.")
        if not self.min_delta >= 0:
            raise ConfigError(f"min_delta must be a number >= 0; got {self.min_delta}.")
        self._monitor = Monitor(self.monitor, self.mode)
        self._forget()

    def _forget(self) -> None:
        self._best = Best(self._monitor.sign)
        self._waited = 0

    def begin(self, run: Run) -> None:
        """Errors: ConfigError where the run announces its figures and the monitored one is none of them."""
        self._forget()
        self._monitor.begin(run)

    def epoch_end(self, run: Run, logs: Logs) -> None:
        """Compare, and stop the run when patience is used up."""
        value = self._monitor.read(run, logs)
        if value is None:
            return
        if self._best.offer(value, run, self.min_delta, self.restore_best):
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            best = "none yet" if self._best.value is None else f"{self._best.value:.4g} in epoch {self._best.epoch}"
            run.stop(f"{self.monitor} has not improved for {self._waited} epochs (best: {best})")

    def end(self, run: Run) -> None:
        """Put the best weights back, if asked to."""
        self._best.restore(run)

    def state(self) -> dict[str, Any]:
        """Best value, its epoch and weights, epochs waited."""
        return {"waited": self._waited, **self._best.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue to wait where the checkpoint stood."""
        self._waited = state["waited"]
        self._best.load(state)


@dataclass
class BestModel(Callback):
    """Ends the fit with the weights of its best epoch by `monitor`; never stops it."""

    monitor: str = "val_loss"
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        self._monitor = Monitor(self.monitor, self.mode)
        self._best = Best(self._monitor.sign)

    def begin(self, run: Run) -> None:
        """Errors: ConfigError where the run announces its figures and the monitored one is none of them."""
        self._best = Best(self._monitor.sign)
        self._monitor.begin(run)

    def epoch_end(self, run: Run, logs: Logs) -> None:
        """Keep the weights where they are the best so far."""
        value = self._monitor.read(run, logs)
        if value is not None:
            self._best.offer(value, run)

    def end(self, run: Run) -> None:
        """Put the best weights back."""
        self._best.restore(run)

    def state(self) -> dict[str, Any]:
        """Best value, its epoch and weights."""
        return self._best.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the best of the checkpoint."""
        self._best.load(state)


@dataclass
class StopAtValue(Callback):
    """Stops as soon as an epoch's figure reaches `value`: at least it where more is better, at most it otherwise."""

    monitor: str
    value: float
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        self._monitor = Monitor(self.monitor, self.mode)

    def begin(self, run: Run) -> None:
        """Errors: ConfigError where the run announces its figures and the monitored one is none of them."""
        self._monitor.begin(run)

    def epoch_end(self, run: Run, logs: Logs) -> None:
        """Compare, and stop the run when the value is reached."""
        value = self._monitor.read(run, logs)
        if value is not None and self._monitor.sign * (value - self.value) >= 0:
            run.stop(f"{self.monitor} {value:.4g} has reached {self.value:.4g}")


@dataclass
class TimeBudget(Callback):
    """Stops at the first step that ends after `seconds` of training, those before a resume counted."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"seconds must be a number > 0; got {self.seconds}.")
        self._start = time.monotonic()

    def begin(self, run: Run) -> None:
        """The clock starts."""
        self._start = time.monotonic()

    def step_end(self, run: Run, logs: Logs) -> None:
        """Stop the run when the time is used up."""
        if time.monotonic() - self._start >= self.seconds:
            run.stop(f"the time budget of {self.seconds:g} s is used up")

    def state(self) -> dict[str, Any]:
        """Seconds used."""
        return {"used": time.monotonic() - self._start}

    def load(self, state: Mapping[str, Any]) -> None:
        """Count the seconds used before."""
        self._start -= state["used"]


@dataclass
class HistoryFile(Callback):
    """Writes the history after each epoch, whole and atomically: .csv, .jsonl (a record a line), else a JSON list."""

    path: str
    files: Files = field(default_factory=LocalFiles)

    def epoch_end(self, run: Run, logs: Logs) -> None:
        """Write the file anew."""
        history = run.history
        if self.path.endswith(".csv"):
            text = history.to_csv()
        else:
            text = history.to_json_lines() if self.path.endswith(".jsonl") else history.to_json() + "\n"
        self.files.write_bytes(self.path, text.encode())
