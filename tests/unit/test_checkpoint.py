from __future__ import annotations

import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.compiled import compiling
from sparkdl.errors import ConfigError, ModelFormatError
from sparkdl.nn import Dense, Layout, Sequential
from sparkdl.train.callbacks import Callbacks, EarlyStopping
from sparkdl.train.checkpoint import Checkpoints
from sparkdl.train.files import LocalFiles
from sparkdl.train.run import Run

LAYOUT = Layout(Sequential([Dense(4), Dense(2)]).specs((3,)))


def fresh(dtype: Any = np.float32, layout: Layout = LAYOUT) -> Run:
    params = np.zeros(layout.size, dtype)
    return Run(params, {"m": np.zeros_like(params), "t": np.zeros(1, np.int64)})


def trained(step: int = 120, **logs: float) -> Run:
    """A run after one epoch of `step` updates."""
    rng, run = np.random.default_rng(step), fresh()
    run.params[:] = rng.standard_normal(run.params.size)
    run.opt_state["m"][:] = rng.standard_normal(run.params.size)
    run.opt_state["t"][:] = step
    run.epoch, run.step, run.skipped, run.epoch_seconds = 1, step, 2, 0.1
    run.epoch_metrics = rng.standard_normal(5)
    run.epoch_rows, run.strategy_state = 77, {"algorithm": "ring", "residual": rng.standard_normal(3)}
    run.schedule_state = {"best": 0.1 + 0.2, "bad": 1}
    run.history.append({"epoch": 1, "loss": math.nan, "matrix": [[1.0]], **logs})
    return run


def checkpoints(folder: Path, **options: Any) -> Checkpoints:
    return Checkpoints(LocalFiles(), str(folder), options.pop("layout", LAYOUT), **options)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_run_comes_back_bit_for_bit(tmp_path: Path) -> None:
    run = trained()
    callbacks = Callbacks([EarlyStopping(patience=3)])
    callbacks.begin(run)
    callbacks.epoch_end(run, {"val_loss": 0.5})
    callbacks.collect(run)
    checkpoints(tmp_path).save(run)
    back = fresh()
    params = back.params
    assert checkpoints(tmp_path).restore(back) is True
    assert back.params is params  # in place: others may hold the vector
    assert back.params.tobytes() == run.params.tobytes()
    assert {k: v.tobytes() for k, v in back.opt_state.items()} == {k: v.tobytes() for k, v in run.opt_state.items()}
    assert back.opt_state["t"].dtype == np.int64
    assert back.epoch_metrics.tobytes() == run.epoch_metrics.tobytes()
    for name in (
        "epoch",
        "step",
        "step_in_epoch",
        "skipped",
        "epoch_rows",
        "epoch_seconds",
        "schedule_state",
        "history",
    ):
        assert getattr(back, name) == getattr(run, name), name
    assert back.strategy_state["residual"].tobytes() == run.strategy_state["residual"].tobytes()
    assert {k: v for k, v in back.strategy_state.items() if k != "residual"} == {"algorithm": "ring"}
    best = back.callback_state["EarlyStopping"]
    assert best["params"].tobytes() == run.params.tobytes()
    assert {k: v for k, v in best.items() if k != "params"} == {"waited": 0, "value": 0.5, "epoch": 1}
    back.epoch_metrics += 1  # all arrays are writable


def test_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    checkpoints(tmp_path, config="abc").save(trained())
    assert names(tmp_path) == ["step-00000120"]
    assert names(tmp_path / "step-00000120") == ["state.json", "state.safetensors"]
    state = json.loads((tmp_path / "step-00000120" / "state.json").read_text())
    assert state["format_version"] == 1
    assert state["config"] == "abc"
    assert state["layout"] == {"dense_0/W": [3, 4], "dense_0/b": [4], "dense_1/W": [4, 2], "dense_1/b": [2]}
    assert state["tensors"]["size"] == (tmp_path / "step-00000120" / "state.safetensors").stat().st_size
    assert set(state["versions"]) == {"sparkdl", "numpy", "kernels"}


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "none").restore(fresh()) is False
    assert checkpoints(tmp_path).restore(fresh()) is False
    assert checkpoints(tmp_path).latest() is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=["truncated", "flipped", "missing"])
@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, name: str
) -> None:
    for step in (120, 240):
        checkpoints(tmp_path).save(trained(step))
    damage(tmp_path / "step-00000240" / name)
    run = fresh()
    with caplog.at_level(logging.WARNING):
        assert checkpoints(tmp_path).restore(run) is True
    assert run.step == 120
    assert run.params.tobytes() == trained(120).params.tobytes()
    assert "step-00000240 is damaged" in caplog.text


def test_only_damaged_checkpoints_are_as_good_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints(tmp_path).save(trained())
    truncate(tmp_path / "step-00000120" / "state.safetensors")
    assert checkpoints(tmp_path).restore(fresh()) is False
    assert "is damaged (the weights are damaged: their size is" in caplog.text


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Dense(4), Dense(3)], r"this one has dense_1/W \(4, 3\), it holds dense_1/W \(4, 2\)"),
        ([Dense(4)], r"this one has no further parameter, it holds dense_1/W \(4, 2\)"),
        ([Dense(4), Dense(2), Dense(2)], r"this one has dense_2/W \(2, 2\), it holds no further parameter"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, layers: Any, message: str) -> None:
    checkpoints(tmp_path).save(trained())
    layout = Layout(Sequential(layers).specs((3,)))
    run = fresh(layout=layout)
    with pytest.raises(ModelFormatError, match=message):
        checkpoints(tmp_path, layout=layout).restore(run)
    assert not run.params.any()


def test_another_optimizer_or_dtype_is_refused(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(trained())
    run = fresh()
    run.opt_state["v"] = np.zeros(3)
    with pytest.raises(ModelFormatError, match=r"it holds no v, this run needs float64 \(3,\)"):
        checkpoints(tmp_path).restore(run)
    del run.opt_state["v"], run.opt_state["m"]
    with pytest.raises(ModelFormatError, match=r"it holds float32 \(26,\) m, this run needs none"):
        checkpoints(tmp_path).restore(run)
    with pytest.raises(ModelFormatError, match=r"holds float32 \(26,\) params, this run needs float64 \(26,\)"):
        checkpoints(tmp_path).restore(fresh(np.float64))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(trained())
    path = tmp_path / "step-00000120" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"format_version": 2, "versions": {"sparkdl": "9.1"}}))
    with pytest.raises(ModelFormatError, match=r"version 2, written by sparkdl 9\.1.*up to 1\. Upgrade"):
        checkpoints(tmp_path).restore(fresh())


def test_another_configuration_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints(tmp_path, config="a").save(trained())
    checkpoints(tmp_path, config="a").restore(fresh())
    assert "another configuration" not in caplog.text
    checkpoints(tmp_path, config="b").restore(fresh())
    assert "another configuration" in caplog.text


def test_other_kernels_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("numba")
    with compiling(True):
        checkpoints(tmp_path).save(trained())
        checkpoints(tmp_path).restore(fresh())
    assert "bit for bit" not in caplog.text
    with compiling(False):
        checkpoints(tmp_path).restore(fresh())
    assert re.search(r"written with kernels compiled \w+; with kernels NumPy the run goes on to", caplog.text)


def test_checkpoints_from_before_kernels_were_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints(tmp_path).save(trained())
    path = tmp_path / "step-00000120" / "state.json"
    state = json.loads(path.read_text())
    del state["versions"]["kernels"]
    path.write_text(json.dumps(state))
    assert checkpoints(tmp_path).restore(fresh()) is True
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def fit(kept: Checkpoints, epochs: int, steps: int) -> list[tuple[int, int]]:
    """(epoch, step) of every checkpoint that such a fit writes."""
    run, saved = fresh(), []
    save = kept.save

    def noted(run: Run) -> None:
        saved.append((run.epoch, run.step))
        save(run)

    kept.save = noted  # type: ignore[method-assign]
    for _ in range(epochs):
        for run.step_in_epoch in range(1, steps + 1):
            run.step += 1
            if run.step_in_epoch < steps:
                kept.step_end(run)
        run.epoch, run.step_in_epoch = run.epoch + 1, 0
        kept.epoch_end(run)
    kept.finish(run)
    return saved


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(1, 4), (2, 8), (3, 12)]),
        ({"every_epochs": 2}, [(2, 8), (3, 12)]),
        ({"every_epochs": None}, [(3, 12)]),
        ({"every_epochs": None, "every_steps": 3}, [(0, 3), (1, 6), (2, 9), (3, 12)]),
        ({"every_epochs": 1, "every_steps": 4}, [(1, 4), (2, 8), (3, 12)]),
    ],
)
def test_when_a_checkpoint_is_due(tmp_path: Path, options: Any, expected: Any) -> None:
    assert fit(checkpoints(tmp_path, **options), epochs=3, steps=4) == expected


def test_the_last_ones_stay(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, keep_last=2)
    for step in (10, 20, 30):
        kept.save(trained(step))
    assert names(tmp_path) == ["step-00000020", "step-00000030"]


@pytest.mark.parametrize("resumed", [False, True])
def test_the_best_one_stays(tmp_path: Path, resumed: bool) -> None:
    options: dict[str, Any] = {"keep_last": 1, "keep_best": "val_accuracy"}
    kept = checkpoints(tmp_path, **options)
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, math.nan), (40, 0.9), (50, 0.8)):
        kept.save(trained(step, val_accuracy=accuracy))
        kept = checkpoints(tmp_path, **options) if resumed else kept
    middle = trained(60, val_accuracy=0.99)
    middle.step_in_epoch = 3  # within an epoch: the last record is not about these weights
    kept.save(middle)
    assert names(tmp_path) == ["step-00000020", "step-00000060"]


def test_without_figures_there_is_no_best(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, keep_last=1, keep_best="val_loss")
    for step in (10, 20):
        kept.save(trained(step))
    assert names(tmp_path) == ["step-00000020"]


def test_saving_sweeps_up_drafts_and_the_abandoned_future(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, keep_last=1)
    kept.save(trained(90))
    (tmp_path / ".step-00000020.abcd").mkdir()
    (tmp_path / "notes").mkdir()
    kept.save(trained(30))
    assert names(tmp_path) == ["notes", "step-00000030"]


def test_the_same_step_is_written_anew(tmp_path: Path) -> None:
    kept, run = checkpoints(tmp_path), trained()
    kept.save(run)
    run.epoch = 2
    kept.save(run)
    back = fresh()
    kept.restore(back)
    assert (back.epoch, names(tmp_path)) == (2, ["step-00000120"])


def test_steps_sort_by_number_beyond_eight_digits(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    for step in (99_999_999, 100_000_000):
        kept.save(trained(step))
    run = fresh()
    kept.restore(run)
    assert run.step == 100_000_000
    assert len(names(tmp_path)) == 2


def test_finishing_after_a_restore_writes_nothing_new(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(trained())
    before = (tmp_path / "step-00000120" / "state.json").stat().st_mtime_ns
    kept, run = checkpoints(tmp_path), fresh()
    kept.restore(run)
    kept.finish(run)
    assert (tmp_path / "step-00000120" / "state.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["every_steps", "every_epochs", "keep_last"])
def test_wrong_settings(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be an integer >= 1; got 0"):
        checkpoints(tmp_path, **{name: 0})
    with pytest.raises(ConfigError, match="cannot tell whether more of 'gain'"):
        checkpoints(tmp_path, keep_best="gain")
