"""The loop and what drives it, on threads: no JVM takes part."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference import blobs, mlp, steps

import sparkdl
from sparkdl import nn
from sparkdl.config import from_dict
from sparkdl.data import DataSpec
from sparkdl.errors import ConfigError, DataError, TrainingError
from sparkdl.ml import CheckpointPlan, TrainedModel, fit, job
from sparkdl.optim import SGD, Adam, Clip, OnPlateau, Step
from sparkdl.strategies.tree_aggregate import tree_depth
from sparkdl.train import Callback, Run, TimeBudget, Training

SPEC = DataSpec(features=("features",), label="label")
VALID = DataSpec(features=("features",), label="label", valid_fraction=0.25)


def train(table: pa.Table, spec: DataSpec = SPEC, **settings: Any) -> TrainedModel:
    training = Training(**{"epochs": 2, "batch_size": 16} | settings.pop("training", {}))
    return fit(table, settings.pop("net", mlp()), spec, training=training, workers=2, **settings)


class Watch(Callback):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.params: list[nn.Array] = []

    def step_end(self, run: Run, logs: Any) -> None:
        self.steps.append(dict(logs))
        self.params.append(run.params.copy())


def exploding() -> pa.Table:
    """Rows of which the last batch overflows float32."""
    table = blobs(48)
    x = np.array(table["features"].to_pylist())
    x[::3] *= 1e30
    return table.set_column(0, "features", [list(x)])


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_step() -> None:
    net = nn.Sequential((nn.Dense(4), nn.Dense(3)))
    with pytest.raises(TrainingError, match=r"step \d+ \(epoch 1\).*on_nonfinite"):
        fit(exploding(), net, SPEC, loss=nn.SoftmaxCrossEntropy(), optimizer=SGD(1e9), training=Training(batch_size=8))


def test_a_gradient_that_is_not_finite_may_be_skipped_and_leaves_every_bit() -> None:
    watch, table = Watch(), blobs(32)
    x = np.array(table["features"].to_pylist())
    x[0, 0] = np.inf
    spec = DataSpec(features=("features",), label="label", handle_invalid="keep")
    broken = table.set_column(0, "features", [list(x)])
    training = {"epochs": 1, "batch_size": 8, "on_nonfinite": "skip"}
    model = train(broken, spec, callbacks=[watch], optimizer=SGD(0.1), training=training)
    assert np.isfinite(model.params).all()
    same = [np.array_equal(a, b) for a, b in zip(watch.params, watch.params[1:], strict=False)]
    norms = [s["grad_norm"] for s in watch.steps]
    assert sum(not np.isfinite(n) for n in norms) == 1
    assert [not np.isfinite(n) for n in norms[1:]] == same


def test_clipping_bounds_the_step() -> None:
    watch = Watch()
    train(blobs(64), callbacks=[watch], optimizer=SGD(1.0), training={"clip": Clip(norm=0.01)})
    moves = [np.linalg.norm(b - a) for a, b in zip(watch.params, watch.params[1:], strict=False)]
    assert max(moves) <= 0.01 * (1 + 1e-5)
    assert max(s["grad_norm"] for s in watch.steps) > 0.01


def test_rows_that_all_weigh_nothing_change_nothing() -> None:
    table = blobs(20).append_column("weight", pa.array(np.zeros(20)))
    spec = DataSpec(features=("features",), label="label", weight="weight")
    watch = Watch()
    model = train(table, spec, callbacks=[watch])
    assert np.array_equal(model.params, watch.params[0])
    assert np.isfinite(model.params).all()


def test_history_holds_training_and_validation_figures() -> None:
    model = train(blobs(80), VALID, training={"epochs": 4, "validate_every": 2})
    assert model.history["epoch"] == [1, 2, 3, 4]
    assert [np.isnan(v) for v in model.history["val_loss"]] == [True, False, True, False]
    assert {"loss", "accuracy", "val_accuracy", "lr", "seconds", "samples_per_s"} <= set(model.history.names)
    assert model.history["step"][-1] == 4 * steps(model.data.train_rows, 16)


def test_steps_per_epoch_and_a_schedule_by_epochs() -> None:
    model = train(blobs(80), optimizer=SGD(1.0), schedule=Step(every=1, gamma=0.5), training={"steps_per_epoch": 2})
    assert model.history["step"] == [2, 4]
    assert model.history["lr"] == [0.5, 0.25]  # of the update that follows


def test_the_learning_rate_may_grow_with_the_workers() -> None:
    watch = Watch()
    train(blobs(40), optimizer=SGD(0.1), scale_lr=True, callbacks=[watch])
    assert watch.steps[0]["lr"] == pytest.approx(0.2)


def test_a_schedule_that_watches_nothing_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.monitor.*'val_loss' is none of"):
        train(blobs(40), schedule=OnPlateau())


def test_weights_of_another_run_are_the_start(tmp_path: Path) -> None:
    first = train(blobs(40))
    first.save(str(tmp_path / "model"))
    watch = Watch()
    train(blobs(40), weights=str(tmp_path / "model"), optimizer=SGD(1e-30), callbacks=[watch])
    assert np.array_equal(watch.params[0], first.params)
    with pytest.raises(sparkdl.errors.ModelFormatError, match="dense_0/W"):
        train(blobs(40), net=mlp(9), weights=str(tmp_path / "model"))


def test_a_time_budget_stops_within_an_epoch() -> None:
    model = train(blobs(80), callbacks=[TimeBudget(1e-9)])
    assert "time budget" in str(model.stop_reason)
    assert len(model.history) == 0


def test_ctrl_c_stops_after_the_step_and_a_resumed_run_repeats_the_bits(tmp_path: Path) -> None:
    class Press(Callback):
        def step_end(self, run: Run, logs: Any) -> None:
            if run.step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    plan, table = CheckpointPlan(str(tmp_path)), blobs(80)
    before = signal.getsignal(signal.SIGINT)
    stopped = train(table, optimizer=Adam(0.01), checkpoints=plan, callbacks=[Press()])
    assert stopped.stop_reason == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before
    resumed = train(table, optimizer=Adam(0.01), checkpoints=plan)
    assert np.array_equal(resumed.params, train(table, optimizer=Adam(0.01)).params)


@dataclass(frozen=True)
class Presses(nn.Layer):
    """The identity; whoever computes it presses Ctrl-C."""

    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        if ctx.train and threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGINT)
        return x, None

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        return dy


def pressing(classes: int) -> nn.Layer:
    return nn.Sequential((Presses(), nn.Dense(classes)))


def test_a_job_that_is_stopped_leaves_its_checkpoint_and_the_model_that_was_there(tmp_path: Path) -> None:
    pq.write_table(blobs(40), tmp_path / "rows.parquet")
    (tmp_path / "model").mkdir()
    rows = str(tmp_path / "rows.parquet")
    config = from_dict(
        {
            "data": {"train": rows, "test": rows, "features": ["features"], "label": "label"},
            "model": {"function": f"{__name__}:pressing"},
            "training": {"epochs": 5, "master": "threads", "workers": 1},
            "checkpoint": {"folder": str(tmp_path / "checkpoints")},
            "output": {"model": str(tmp_path / "model"), "overwrite": True},
        }
    )
    outcome = job.train(config, None)
    assert outcome.model.stop_reason == "interrupted"
    assert list((tmp_path / "model").iterdir()) == []
    assert not (tmp_path / "metrics.json").exists()
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 1
    assert f"checkpoints: {tmp_path}/checkpoints" in outcome.report()


def test_test_rows_that_do_not_exist_are_missed_before_training(tmp_path: Path) -> None:
    pq.write_table(blobs(40), tmp_path / "rows.parquet")
    data = {"train": str(tmp_path / "rows.parquet"), "test": str(tmp_path / "none")}
    table = {"data": data | {"features": ["features"], "label": "label"}, "model": {"name": "mlp"}}
    config = from_dict(table | {"training": {"master": "threads"}})
    with pytest.raises(DataError, match=r"none does not exist. Check data.train, data.valid and data.test"):
        job.train(config, None, on_start=lambda task: pytest.fail("training has begun"))


def test_a_fit_on_another_thread_leaves_signals_alone() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(train(blobs(40))))
    thread.start()
    thread.join()
    assert len(results[0].history) == 2


def test_a_profile_tells_phases_and_layers() -> None:
    model = train(blobs(40), training={"profile": True})
    assert model.profile is not None
    table = model.profile.table()
    assert all(name in table for name in ("data", "compute", "update", "dense_0", "dense_2"))


def test_a_net_that_does_not_fit_the_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="K = 3, the number of classes"):
        train(blobs(40), net=mlp(classes=4))


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": 2.5}, {"seed": -1}, {"dtype": "float16"}])
def test_training_says_which_setting_is_wrong(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Training(**bad)


@pytest.mark.parametrize(
    ("parts", "mib", "limit_mib", "depth"),
    [
        (1, 100, 1024, 1),
        (2, 10, 1024, 1),
        (16, 0.1, 1024, 1),  # small vectors: another stage costs more than it saves
        (64, 10, 1024, 3),  # 3 levels of 4 vectors, 1.2 s; 2 of 8 take 1.5 s, 64 one after the other 5.6 s
        (8, 100, 250, 3),  # only two vectors at a time fit
    ],
)
def test_the_depth_of_the_tree(parts: int, mib: float, limit_mib: int, depth: int) -> None:
    assert tree_depth(parts, int(mib * 2**20), limit_mib * 2**20) == depth


def test_a_vector_beyond_the_driver_s_limit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"2 vectors of 600\.0 MiB exceed its 1,024 MiB"):
        tree_depth(8, 600 << 20, 1 << 30)
