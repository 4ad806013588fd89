from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.errors import ConfigError
from sparkdl.train import callbacks as module
from sparkdl.train.callbacks import (
    BestModel,
    Callback,
    Callbacks,
    EarlyStopping,
    HistoryFile,
    StopAtValue,
    TimeBudget,
)
from sparkdl.train.history import History
from sparkdl.train.monitor import direction
from sparkdl.train.run import Run


def fresh(figures: tuple[str, ...] = ()) -> Run:
    return Run(params=np.zeros(3), figures=figures)


def epoch(run: Run, callback: Callback, **logs: float) -> None:
    """One epoch, whose weights become its number."""
    run.epoch += 1
    run.params[:] = run.epoch
    record = {"epoch": run.epoch, **logs}
    run.history.append(record)
    callback.epoch_end(run, record)


def fit(callback: Callback, values: Sequence[float], name: str = "val_loss", run: Run | None = None) -> Run:
    """Epochs with these figures until the callback stops the run."""
    run = run or fresh()
    callback.begin(run)
    for value in values:
        epoch(run, callback, **{name: value})
        if run.stop_reason is not None:
            break
    callback.end(run)
    return run


def test_early_stopping_returns_the_best_weights() -> None:
    run = fit(EarlyStopping(patience=2), [0.5, 0.6, 0.7, 0.1])
    assert run.epoch == 3
    assert run.params.tolist() == [1, 1, 1]
    assert run.stop_reason == "val_loss has not improved for 2 epochs (best: 0.5 in epoch 1)"


def test_early_stopping_may_keep_the_last_weights() -> None:
    callback = EarlyStopping(patience=2, restore_best=False)
    run = fit(callback, [0.5, 0.6, 0.7])
    assert run.params.tolist() == [3, 3, 3]
    assert "params" not in callback.state()


def test_an_improvement_renews_patience() -> None:
    assert fit(EarlyStopping(patience=2), [0.5, 0.6, 0.4, 0.6, 0.6]).epoch == 5
    assert fit(EarlyStopping(patience=2), [0.5, 0.6, 0.4, 0.6, 0.3]).stop_reason is None


def test_best_weights_come_back_although_nothing_stopped_the_fit() -> None:
    assert fit(EarlyStopping(patience=9), [0.5, 0.3, 0.7]).params[0] == 2


def test_more_of_an_accuracy_is_better() -> None:
    run = fit(EarlyStopping("val_accuracy", patience=2), [0.5, 0.7, 0.6, 0.7], "val_accuracy")
    assert run.epoch == 4
    assert run.params[0] == 2
    assert run.stop_reason is not None


def test_min_delta_is_the_least_improvement() -> None:
    assert fit(EarlyStopping(patience=2, min_delta=0.1), [0.5, 0.45, 0.41]).stop_reason is not None
    assert fit(EarlyStopping(patience=2, min_delta=0.1), [0.5, 0.45, 0.35]).stop_reason is None


def test_nan_is_never_an_improvement() -> None:
    run = fit(EarlyStopping(patience=2), [math.nan, 0.5, math.nan, math.nan])
    assert run.epoch == 4
    assert run.params[0] == 2
    run = fit(EarlyStopping(patience=2), [math.nan] * 3)
    assert run.epoch == 2
    assert run.params[0] == 2  # there is no best to go back to


def test_patience_and_best_survive_a_resume() -> None:
    first = Callbacks([EarlyStopping(patience=2)])
    run = fit(first, [0.5, 0.6])
    first.collect(run)
    resumed = Run(params=np.full(3, 2.0), epoch=2, callback_state=run.callback_state)
    fit(Callbacks([EarlyStopping(patience=2)]), [0.55, 0.1], run=resumed)
    assert resumed.epoch == 3
    assert resumed.params.tolist() == [1, 1, 1]


def test_an_instance_forgets_the_fit_before() -> None:
    callback = EarlyStopping(patience=2)
    fit(callback, [0.1, 0.2])
    run = fit(callback, [0.5, 0.6])
    assert run.stop_reason is None
    assert run.params[0] == 1


def test_best_model() -> None:
    run = fit(BestModel("val_loss"), [0.5, 0.3, 0.4])
    assert run.stop_reason is None
    assert run.params[0] == 2
    assert fit(BestModel("score", mode="max"), [0.5, math.nan, 0.4], "score").params[0] == 1


def test_best_model_survives_a_resume() -> None:
    first = Callbacks([BestModel()])
    run = fit(first, [0.5, 0.3])
    first.collect(run)
    resumed = Run(params=np.zeros(3), epoch=2, callback_state=run.callback_state)
    assert fit(Callbacks([BestModel()]), [0.4], run=resumed).params[0] == 2


@pytest.mark.parametrize(
    ("callback", "name", "values", "stops_at"),
    [
        (StopAtValue("accuracy", 0.9), "accuracy", [0.5, 0.9, 1.0], 2),
        (StopAtValue("loss", 0.2), "loss", [0.5, 0.3, 0.19], 3),
        (StopAtValue("loss", 0.2), "loss", [0.5, 0.3, math.nan], None),
        (StopAtValue("heat", 5, mode="max"), "heat", [4, 6], 2),
    ],
)
def test_stop_at_value(callback: Callback, name: str, values: list[float], stops_at: int | None) -> None:
    run = fit(callback, values, name)
    assert (run.epoch if run.stop_reason else None) == stops_at


def test_time_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    callback, run = TimeBudget(10), fresh()
    callback.begin(run)
    now = 109.0
    callback.step_end(run, {})
    assert run.stop_reason is None
    state = callback.state()
    now = 500.0  # the program was down meanwhile
    resumed = TimeBudget(10)
    resumed.begin(run)
    resumed.load(json.loads(json.dumps(state)))
    resumed.step_end(run, {})
    assert run.stop_reason is None
    now = 501.0
    resumed.step_end(run, {})
    assert run.stop_reason == "the time budget of 10 s is used up"


@pytest.mark.parametrize(("name", "lines"), [("history.json", 10), ("history.jsonl", 2), ("history.csv", 3)])
def test_history_file(tmp_path: Path, name: str, lines: int) -> None:
    path = tmp_path / "made" / name
    run = fit(HistoryFile(str(path)), [0.5, 0.25])
    text = path.read_text()
    assert text.count("\n") == lines
    assert text.endswith("\n")
    if name != "history.csv":
        assert History.from_json(text) == run.history


def test_callbacks_run_in_order_and_the_last_to_restore_decides() -> None:
    seen: list[str] = []

    class Note(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self, run: Run) -> None:
            seen.append(f"{self.name} begin")

        def step_end(self, run: Run, logs: Any) -> None:
            seen.append(f"{self.name} step")

        def epoch_end(self, run: Run, logs: Any) -> None:
            seen.append(f"{self.name} epoch")

        def end(self, run: Run) -> None:
            seen.append(f"{self.name} end")

    both, run = Callbacks([Note("a"), Note("b")]), fresh()
    both.begin(run)
    both.step_end(run, {})
    both.epoch_end(run, {})
    both.end(run)
    assert seen == [f"{name} {hook}" for hook in ("begin", "step", "epoch", "end") for name in "ab"]

    for order, expected in (((0, 1), 3), ((1, 0), 1)):
        pair = [BestModel("loss"), BestModel("accuracy")]
        callbacks, run = Callbacks([pair[i] for i in order]), fresh()
        callbacks.begin(run)
        for loss, accuracy in ((0.1, 0.5), (0.2, 0.6), (0.3, 0.7)):
            epoch(run, callbacks, loss=loss, accuracy=accuracy)
        callbacks.end(run)
        assert run.params[0] == expected


def test_states_of_one_class_are_told_apart() -> None:
    callbacks, run = Callbacks([BestModel("loss"), Callback(), BestModel("accuracy")]), fresh()
    fit(callbacks, [0.5], "loss", run=Run(params=np.zeros(3), figures=("loss", "accuracy")))
    callbacks.collect(run)
    assert list(run.callback_state) == ["BestModel"]
    assert list(callbacks.items) == ["BestModel", "Callback", "BestModel:2"]


def test_the_first_reason_to_stop_is_kept() -> None:
    run = fresh()
    run.stop("one")
    run.stop("two")
    assert run.stop_reason == "one"


WATCHERS = [EarlyStopping("val_acc", mode="max"), BestModel("val_acc", mode="max"), StopAtValue("val_acc", 1, "max")]


@pytest.mark.parametrize("callback", WATCHERS, ids=lambda c: type(c).__name__)
def test_a_figure_that_no_epoch_has(callback: Callback) -> None:
    message = r"'val_acc' is none of loss, accuracy\. Give validation data\?"
    with pytest.raises(ConfigError, match=message):
        callback.begin(fresh(("loss", "accuracy")))
    run = fresh()
    callback.begin(run)
    with pytest.raises(ConfigError, match=r"none of epoch, loss\."):
        epoch(run, callback, loss=1.0)
    with pytest.raises(ConfigError, match="must name a single number"):
        epoch(run, callback, val_acc=[[1.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("callback", WATCHERS, ids=lambda c: type(c).__name__)
def test_an_announced_figure_may_be_missing_from_an_epoch(callback: Callback) -> None:
    run = fresh(("loss", "val_acc"))
    callback.begin(run)
    for _ in range(20):
        epoch(run, callback, loss=1.0)
    assert run.stop_reason is None


def test_direction() -> None:
    names = ["loss", "val_loss", "mse", "val_mae", "accuracy", "val_top_5", "f1_micro", "precision", "auc", "r2"]
    assert [direction(n) for n in names] == [-1] * 4 + [1] * 6
    assert (direction("accuracy", "min"), direction("x", "max")) == (-1, 1)
    with pytest.raises(ConfigError, match="cannot tell whether more of 'val_gain'"):
        direction("val_gain")
    with pytest.raises(ConfigError, match='"auto", "min" or "max"; got \'up\''):
        direction("loss", "up")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EarlyStopping(patience=0), "patience must be an integer >= 1; got 0"),
        (lambda: EarlyStopping(min_delta=-1), "min_delta must be a number >= 0; got -1"),
        (lambda: TimeBudget(0), "seconds must be a number > 0; got 0"),
    ],
)
def test_wrong_settings(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
