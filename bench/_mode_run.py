"""One fit of bench/modes.py: what is trained, on what, and what is noted of it."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from _mode_list import Mode
from _networks import DRIVER, Enter
from _paced import Paced, paced, sent_bytes

from sparkdl.backends import ProcessBackend
from sparkdl.comm import TransportOptions
from sparkdl.data import DataSpec
from sparkdl.ml import TrainedModel, fit
from sparkdl.nn.zoo import mlp
from sparkdl.optim import SGD, Cosine, WarmUp
from sparkdl.strategies import PeerStrategy
from sparkdl.train import Callback, Training

__all__ = ["RATE", "SLOWER", "Bench", "Result"]

SPEC = DataSpec(features=("features",), label="label", scale=1 / 255)
NET = functools.partial(mlp, hidden=(256, 128))
BATCH, WARM_UP, SLOWER, RATE = 512, 40, 3, "100mbit"


@dataclass
class Result:
    """What a fit came to; `curve` are (seconds, validation accuracy) by epoch."""

    setting: str
    mode: str
    family: str
    lr: float
    momentum: float
    accuracy: float
    seconds: float
    to_target: float | None
    sent_mb: float | None
    staleness: tuple[float, int] | None
    consensus: float | None
    curve: list[tuple[float, float]] = field(default_factory=list)


class Watch(Callback):
    """Notes when each epoch has ended, from the first update on, or from the start where a job makes many updates."""

    def __init__(self, from_start: bool) -> None:
        self._from_start = from_start
        self._started: float | None = None
        self.curve: list[tuple[float, float]] = []

    def begin(self, run: Any) -> None:
        self._started = time.perf_counter() if self._from_start else None

    def step_end(self, run: Any, logs: Any) -> None:
        self._started = self._started or time.perf_counter()

    def epoch_end(self, run: Any, logs: Any) -> None:
        assert self._started is not None
        self.curve.append((time.perf_counter() - self._started, float(logs["val_accuracy"])))


def to_target(curve: list[tuple[float, float]], target: float) -> float | None:
    """Seconds until the accuracy, linear between the ends of epochs, first reaches the target."""
    before = (0.0, 0.1)
    for seconds, accuracy in curve:
        if accuracy >= target:
            share = (target - before[1]) / (accuracy - before[1])
            return before[0] + share * (seconds - before[0])
        before = seconds, accuracy
    return None


@dataclass(frozen=True)
class Bench:
    """The data and what the options say."""

    train: pa.Table
    valid: pa.Table
    test: pa.Table
    epochs: int
    workers: int
    pace_s: float
    target: float

    def run(self, setting: str, mode: Mode, hosts: list[str]) -> Result:
        """One fit."""
        peers = isinstance(mode.strategy, PeerStrategy) and getattr(mode.strategy, "through", "peers") == "peers"
        strategy: Any = mode.strategy
        if peers:  # shared memory would be a link of its own kind
            strategy = replace(strategy, network=TransportOptions(shared_memory=False))
        watch, count = Watch(not peers), 1 if mode.alone else self.workers
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            if not peers:
                stack.enter_context(paced(self.pace_s * self.workers / count))
            model = fit(
                self.train,
                NET,
                SPEC,
                valid=self.valid,
                optimizer=SGD(mode.lr, mode.momentum),
                schedule=WarmUp(WARM_UP, then=Cosine()),
                training=Training(epochs=self.epochs, batch_size=BATCH),
                strategy=strategy,
                callbacks=[watch],
                workers=count,
                master=self._backend(setting, hosts, folder),
            )
            sent = sent_bytes(folder)
        return Result(
            setting,
            mode.name,
            mode.family,
            mode.lr,
            mode.momentum,
            self._accuracy(model),
            watch.curve[-1][0],
            to_target(watch.curve, self.target),
            None if sent is None else sent / 1e6,
            *_apart(model.history),
            watch.curve,
        )

    def _accuracy(self, model: TrainedModel) -> float:
        """Of the test set."""
        x = np.stack(self.test["features"].to_numpy())
        found = np.asarray(model.classes)[model.predict(x).argmax(axis=1)]
        return float(np.mean(found == self.test["label"].to_numpy()))

    def _backend(self, setting: str, hosts: list[str], folder: str) -> ProcessBackend:
        pace = [self.pace_s] * self.workers
        if setting == "a":
            return ProcessBackend(self.workers, Paced(tuple(pace), folder))
        pace[-1] *= SLOWER
        return ProcessBackend(self.workers, Paced(tuple(pace), folder, Enter(tuple(hosts))), DRIVER)


def _apart(history: Any) -> tuple[tuple[float, int] | None, float | None]:
    """Staleness over all epochs, and the largest consensus distance, where the mode tells them."""
    stale = None
    if "staleness" in history:
        stale = statistics.mean(history["staleness"]), max(history["staleness_max"])
    return stale, max(history["consensus_distance"]) if "consensus_distance" in history else None
