"""Checkpoints: a fit as it stands, on disk or in any store, so that it goes on bit for bit after an end of any kind.

One checkpoint is one folder, `step-00000120`, of two files: `state.safetensors` with parameters, optimizer slots and
the callbacks' arrays, and `state.json` with everything else. The folder appears whole (`publish_folder`), and
`state.json` seals the other file: what does not match its size and checksum is passed over when reading.
"""

from __future__ import annotations

import json
import logging
import math
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import sparkdl
from sparkdl.compiled import kernels_in_use
from sparkdl.errors import ConfigError, ModelFormatError
from sparkdl.nn import Array, Layout
from sparkdl.train.files import Files, publish_folder, read_json
from sparkdl.train.history import History
from sparkdl.train.monitor import Mode, direction
from sparkdl.train.run import Run
from sparkdl.train.tensors import check_layout, check_seal, pack, seal, under, unpack

__all__ = ["Checkpoint", "Checkpoints"]

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
STATE, TENSORS = "state.json", "state.safetensors"
DAMAGED = (FileNotFoundError, KeyError, TypeError, ValueError)  # what reading a broken checkpoint may raise


class Checkpoint(NamedTuple):
    """One that was found intact."""

    path: str
    state: dict[str, Any]
    tensors: dict[str, Array]


@dataclass
class Checkpoints:
    """The checkpoints of one fit in one folder: when they are due, what they hold, which are kept.

    One is due after every `every_steps` updates and every `every_epochs` epochs (None: not for that reason), and when
    the fit ends. The last `keep_last` stay, and, where `keep_best` names a figure of the history, also the one of the
    epoch that was best by it. `layout` describes the parameters; `config` is a digest of the configuration, and a
    difference on resuming is logged.
    """

    files: Files
    folder: str
    layout: Layout
    every_steps: int | None = None
    every_epochs: int | None = 1
    keep_last: int = 2
    keep_best: str | None = None
    mode: Mode = "auto"
    config: str = ""
    _saved: tuple[int, int] | None = field(default=None, init=False, repr=False)
    _scores: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_epochs", "keep_last"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be an integer >= 1; got {value}.")
        if self.keep_best is not None:
            direction(self.keep_best, self.mode)

    def step_end(self, run: Run) -> None:
        """Save after an update within an epoch, if one is due."""
        if self.every_steps is not None and run.step % self.every_steps == 0:
            self.save(run)

    def epoch_end(self, run: Run) -> None:
        """Save after an epoch, if one is due for its last update or for the epoch."""
        by_step = self.every_steps is not None and run.step % self.every_steps == 0
        if by_step or (self.every_epochs is not None and run.epoch % self.every_epochs == 0):
            self.save(run)

    def finish(self, run: Run) -> None:
        """Save where the fit ends, unless that is done."""
        if self._saved != (run.epoch, run.step):
            self.save(run)

    def save(self, run: Run) -> None:
        """Write a checkpoint, then delete those that need not stay.

        Checkpoints of later steps go too: they belong to a course that this run has left.
        """
        name = f"step-{run.step:08d}"
        data = pack(_tensors(run))
        state = self._state(run) | {"tensors": seal(data)}
        contents = {TENSORS: data, STATE: json.dumps(state, indent=1).encode()}
        publish_folder(self.files, posixpath.join(self.folder, name), contents, overwrite=True)
        self._saved = run.epoch, run.step
        self._scores[name] = self._score(state)
        log.info("checkpoint written: %s", posixpath.join(self.folder, name))
        self._tidy(name)

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint; damaged ones are passed over with a warning in the log.

        Errors: ModelFormatError for one that a newer version wrote.
        """
        for name in self._names():
            path = posixpath.join(self.folder, name)
            try:
                return self._read(path)
            except DAMAGED as e:
                log.warning("checkpoint %s is damaged (%s); trying the one before it", path, e)
        return None

    def restore(self, run: Run) -> bool:
        """Bring run, in place, to where the newest intact checkpoint stands; False where there is none.

        Errors: ModelFormatError where its parameters or optimizer slots are not those of the run.
        """
        found = self.latest()
        if found is None:
            return False
        state, tensors = found.state, found.tensors
        check_layout(found.path, state["layout"], self.layout)
        slots = under("opt/", tensors)
        _check_arrays(found.path, {"params": tensors["params"]} | slots, {"params": run.params} | run.opt_state)
        self._compare(found)
        np.copyto(run.params, tensors["params"])
        for name, slot in slots.items():
            np.copyto(run.opt_state[name], slot)
        run.epoch_metrics = tensors["metrics"]
        run.count_from(state["run"])
        run.schedule_state = state["schedule"]
        run.strategy_state = state["strategy"] | under("strategy/", tensors)
        run.callback_state = {k: v | under(f"callbacks/{k}/", tensors) for k, v in state["callbacks"].items()}
        run.history = History(state["history"])
        run.stop_reason = None
        self._saved = run.epoch, run.step
        log.info("resuming from %s: epoch %d, step %d", found.path, run.epoch, run.step)
        return True

    def _compare(self, found: Checkpoint) -> None:
        """Log what is different from when the checkpoint was written and does not keep a run from going on."""
        if found.state["config"] != self.config:
            log.warning(
                "checkpoint %s was written with another configuration; resuming with the present one", found.path
            )
        present = _versions()
        if others := {name: v for name, v in found.state["versions"].items() if v != present.get(name)}:
            log.warning(
                "checkpoint %s was written with %s; with %s the run goes on to rounding, not bit for bit",
                found.path,
                ", ".join(f"{name} {v}" for name, v in others.items()),
                ", ".join(f"{name} {present.get(name)}" for name in others),
            )

    def _names(self) -> list[str]:
        """Names of all checkpoints in the folder, intact or not, the newest first."""
        found = self.files.listdir(self.folder) if self.files.exists(self.folder) else []
        return sorted((name for name in found if re.fullmatch(r"step-\d+", name)), key=_step_of, reverse=True)

    def _state(self, run: Run) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "versions": _versions(),
            "config": self.config,
            "run": run.counters(),
            "stop_reason": run.stop_reason,
            "schedule": run.schedule_state,
            "strategy": _plain(run.strategy_state),
            "callbacks": {name: _plain(state) for name, state in run.callback_state.items()},
            "layout": {name: list(shape) for name, shape in self.layout.shapes().items()},
            "history": run.history.records,
        }

    def _read(self, path: str) -> Checkpoint:
        state = read_json(self.files, posixpath.join(path, STATE))
        if state["format_version"] > FORMAT_VERSION:
            raise ModelFormatError(
                f"Checkpoint {path} has format version {state['format_version']}, written by sparkdl "
                f"{state['versions']['sparkdl']}; this is sparkdl {sparkdl.__version__}, which reads versions up to "
                f"{FORMAT_VERSION}. Upgrade sparkdl, or start in another folder."
            )
        data = self.files.read_bytes(posixpath.join(path, TENSORS))
        check_seal(data, state["tensors"])
        return Checkpoint(path, state, unpack(data))

    def _score(self, state: Mapping[str, Any]) -> float:
        """The figure of keep_best, signed so that more is better; the lowest of all where the state has none."""
        if self.keep_best is None or state["run"]["step_in_epoch"] or not state["history"]:
            return -math.inf
        value = state["history"][-1].get(self.keep_best, math.nan) * direction(self.keep_best, self.mode)
        return -math.inf if math.isnan(value) else value

    def _tidy(self, newest: str) -> None:
        names = self._names()
        past = [name for name in names if _step_of(name) <= _step_of(newest)]
        keep = {*past[: self.keep_last], *self._best(past)}
        for name in self.files.listdir(self.folder):
            if name.startswith(".step-") or (name in names and name not in keep):
                self.files.delete(posixpath.join(self.folder, name))

    def _best(self, names: list[str]) -> list[str]:
        """The name of the best checkpoint, the earliest of equals; empty without keep_best or without a figure."""
        if self.keep_best is None:
            return []
        for name in names:
            if name not in self._scores:
                try:
                    self._scores[name] = self._score(read_json(self.files, posixpath.join(self.folder, name, STATE)))
                except DAMAGED:
                    self._scores[name] = -math.inf
        best = max(reversed(names), key=lambda name: self._scores[name])
        return [best] if self._scores[best] > -math.inf else []


def _versions() -> dict[str, str]:
    """What the bits of a run depend on besides data and settings, as this process has it."""
    return {"sparkdl": sparkdl.__version__, "numpy": np.__version__, "kernels": kernels_in_use()}


def _step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def _tensors(run: Run) -> dict[str, Array]:
    arrays = {"params": run.params, "metrics": run.epoch_metrics}
    arrays |= {f"opt/{name}": slot for name, slot in run.opt_state.items()}
    arrays |= _arrays("strategy/", run.strategy_state)
    for callback, state in run.callback_state.items():
        arrays |= _arrays(f"callbacks/{callback}/", state)
    return arrays


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}


def _arrays(prefix: str, state: Mapping[str, Any]) -> dict[str, Array]:
    return {f"{prefix}{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}


def _check_arrays(path: str, found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    kinds = [{name: f"{a.dtype} {a.shape}" for name, a in arrays.items()} for arrays in (found, expected)]
    if kinds[0] != kinds[1]:
        name = next(n for n in [*kinds[1], *sorted(kinds[0])] if kinds[0].get(n) != kinds[1].get(n))
        raise ModelFormatError(
            f"{path} was written with another optimizer or dtype: it holds {kinds[0].get(name, 'no')} {name}, this run "
            f"needs {kinds[1].get(name, 'none')}. Take the configuration it was written with, or another folder."
        )
