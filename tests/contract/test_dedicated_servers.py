"""Parameter servers on workers of their own: the others train as if these were not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import blobs, mlp
from test_averaging_contract import SPEC, Interrupted, train
from test_free_contract import Fails, Slow, StopAt

from sparkdl import nn
from sparkdl.data import DataSpec
from sparkdl.errors import ConfigError, TrainingError
from sparkdl.ml import CheckpointPlan
from sparkdl.optim import Adam
from sparkdl.strategies import AllReduce, ParameterServer
from sparkdl.train import Callback, Run

WAYS: list[Any] = [
    pytest.param({"consistency": "bsp"}, id="bsp"),
    pytest.param({"consistency": "bsp", "backup": 1}, id="backup"),
    pytest.param({"consistency": "ssp", "staleness": 1}, id="ssp"),
    pytest.param({"consistency": "bsp", "update_on": "workers", "window": 4}, id="window"),
    pytest.param({"consistency": "ssp", "update_on": "workers", "window": 3}, id="ssp-window"),
    pytest.param({"consistency": "async"}, id="async"),
    pytest.param({"consistency": "async", "update_on": "workers", "window": 4}, id="downpour"),
    pytest.param({"consistency": "async", "group": 2}, id="group"),
]


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def dedicated(way: dict[str, Any], servers: int = 2) -> ParameterServer:
    return ParameterServer(servers=servers, dedicated=True, **way)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("given", [{}, {"update_on": "workers", "window": 4}], ids=["servers", "workers"])
def test_workers_train_as_if_they_were_alone(given: dict[str, Any], group: int) -> None:
    """The same rows reach the same workers: the same bits."""
    way = {"consistency": "bsp", "group": group, **given}
    spec = DataSpec(features=("features",), label="label", dtype="float64", valid_fraction=0.2)
    model = train(blobs(120), dedicated(way), 3, optimizer=Adam(0.01), spec=spec)
    mixed = train(blobs(120), ParameterServer(servers=2, **way), 3, optimizer=Adam(0.01), spec=spec)
    assert model.data.train_counts == (0, 0, *mixed.data.train_counts)
    assert model.data.valid_counts == (0, 0, *mixed.data.valid_counts)
    assert model.params.tobytes() == mixed.params.tobytes()
    for name in ("loss", "val_loss", "step", "lr"):
        assert model.history[name] == mixed.history[name]


class Losses(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def step_end(self, run: Run, logs: Any) -> None:
        self.seen.append((run.step, logs["loss"]))


def test_the_driver_hears_of_every_step_and_its_loss() -> None:
    """From the first rank, which does not train; the loss is that of all workers, as with allreduce."""
    heard, expected = Losses(), Losses()
    train(blobs(96), dedicated({"consistency": "bsp"}), callbacks=[heard])
    train(blobs(96), AllReduce(), callbacks=[expected])
    assert [step for step, _ in heard.seen] == list(range(1, 13))
    np.testing.assert_allclose([x for _, x in heard.seen], [x for _, x in expected.seen], rtol=1e-12)
    asynchronous = Losses()
    train(blobs(96), dedicated({"consistency": "async"}), callbacks=[asynchronous])
    assert asynchronous.seen[-1][0] == 12
    assert sum(loss > 0 for _, loss in asynchronous.seen) >= 6


@pytest.mark.parametrize("way", WAYS)
def test_checkpoints_within_epochs_and_resumption(way: dict[str, Any], tmp_path: Path) -> None:
    plan, strategy = CheckpointPlan(str(tmp_path), every_steps=4), dedicated(way)
    stopped = train(blobs(96), strategy, checkpoints=plan, callbacks=[Interrupted(2)], optimizer=Adam(0.01))
    resumed = train(blobs(96), strategy, 2, checkpoints=plan, optimizer=Adam(0.01), training={"epochs": 5})
    assert resumed.history["loss"][:2] == stopped.history["loss"]
    assert resumed.history["step"] == [6, 12, 18, 24, 30]
    assert resumed.history["loss"][-1] < stopped.history["loss"][-1]


def test_slots_of_workers_are_those_of_one_who_trains(tmp_path: Path) -> None:
    """Resumed on one worker: slots come from the checkpoint's common state, not from a row of each rank."""
    given: dict[str, Any] = {"optimizer": Adam(0.01), "checkpoints": CheckpointPlan(str(tmp_path / "a"))}
    way = {"consistency": "bsp", "update_on": "workers", "window": 6}
    for plan, strategy in (("a", dedicated(way, 1)), ("b", ParameterServer(servers=1, **way))):
        given["checkpoints"] = CheckpointPlan(str(tmp_path / plan))
        train(blobs(96), strategy, 2, callbacks=[Interrupted(1)], **given)
    models = []
    for plan in ("a", "b"):
        given["checkpoints"] = CheckpointPlan(str(tmp_path / plan))
        models.append(train(blobs(96), ParameterServer(servers=1, **way), 1, **given))
    assert models[0].params.tobytes() == models[1].params.tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_within_an_epoch_leaves_one_state(way: dict[str, Any], tmp_path: Path) -> None:
    plan, slow = CheckpointPlan(str(tmp_path), every_steps=1000), nn.Sequential((Slow(0.003), *mlp().layers))
    given: dict[str, Any] = {"net": slow, "checkpoints": plan, "training": {"epochs": 2}}
    stopped = train(blobs(1600), dedicated(way), callbacks=[StopAt(5)], **given)
    assert stopped.stop_reason == "interrupted"
    assert len(stopped.history) == 0
    resumed = train(blobs(1600), dedicated(way), **given)
    assert resumed.history["step"] == [100, 200]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [ValueError, OSError])
def test_failures_end_the_launch(way: dict[str, Any], error: type[Exception]) -> None:
    started = time.monotonic()
    given: dict[str, Any] = {"net": nn.Sequential((Fails(error("no more"), after=17), *mlp().layers))}
    if error is ValueError:
        with pytest.raises(TrainingError, match=r"rank [2-4] \(host .* failed: ValueError: no more"):
            train(blobs(16_000), dedicated(way), **given)
        assert time.monotonic() - started < 4
    else:
        assert train(blobs(96), dedicated(way), **given).history["step"] == [6, 12]


def test_servers_that_would_leave_nobody_to_train() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.servers = 2 dedicated servers of 2 workers leave none to train"):
        train(blobs(48), dedicated({}), 0)
    with pytest.raises(ConfigError, match=r"set strategy\.servers to 1 or more"):
        ParameterServer(dedicated=True)


def test_rows_are_not_called_skewed(caplog: pytest.LogCaptureFixture) -> None:
    """One of three workers trains: it holds three times what each would hold of three."""
    with caplog.at_level("WARNING", "sparkdl"):
        model = train(blobs(400), dedicated({"consistency": "bsp"}), 1, spec=SPEC)
    assert model.data.train_counts == (0, 0, 400)
    assert not caplog.records
