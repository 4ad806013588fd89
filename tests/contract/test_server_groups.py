"""Parameter servers whose workers push in groups: each group is as one worker that has the rows of all."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import blobs, mlp
from test_averaging_contract import train
from test_free_contract import Fails
from test_server_contract import Naps

from sparkdl import nn
from sparkdl.errors import ConfigError, TrainingError
from sparkdl.ml import CheckpointPlan
from sparkdl.optim import LAMB, SGD, Adam, Clip
from sparkdl.strategies import AllReduce, ParameterServer


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("group", [2, 3, 5, 9])
@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.01), LAMB(0.01)], ids=lambda o: type(o).__name__)
def test_bulk_synchronous_groups_are_an_allreduce(group: int, optimizer: Any) -> None:
    served = train(blobs(96), ParameterServer("bsp", group=group), 5, optimizer=optimizer)
    reduced = train(blobs(96), AllReduce(), 5, optimizer=optimizer)
    np.testing.assert_allclose(served.params, reduced.params, rtol=0, atol=1e-12)
    np.testing.assert_allclose(served.history["loss"], reduced.history["loss"], rtol=1e-12)


def test_buffers_of_a_group_are_the_means_over_its_rows() -> None:
    net = nn.Sequential((nn.BatchNorm(), nn.Dense(3)))
    served, reduced = (train(blobs(96), s, 5, net=net) for s in (ParameterServer("bsp", group=2), AllReduce()))
    np.testing.assert_allclose(served.params, reduced.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("clip", [Clip(norm=0.1), Clip(value=0.01)], ids=["norm", "value"])
@pytest.mark.parametrize(
    "given", [{}, {"update_on": "workers"}, {"update_on": "workers", "window": 4}], ids=["servers", "workers", "window"]
)
def test_a_group_is_one_worker_with_the_rows_of_all(given: dict[str, Any], clip: Clip) -> None:
    """Shards 2 r and 2 r + 1 of four hold what shard r of two does."""
    training = {"clip": clip}
    together = train(blobs(96), ParameterServer("bsp", group=2, **given), 4, optimizer=Adam(0.01), training=training)
    apart = train(blobs(96), ParameterServer("bsp", **given), 2, optimizer=Adam(0.01), training=training)
    np.testing.assert_allclose(together.params, apart.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("consistency", ["ssp", "async"])
def test_all_workers_in_one_group_are_synchronous(consistency: Any) -> None:
    """One group has nobody to wait for; 1 / groups of a step is a whole one."""
    served = train(blobs(96), ParameterServer(consistency, group=4, damping="workers"), 4, optimizer=Adam(0.01))
    reduced = train(blobs(96), AllReduce(), 4, optimizer=Adam(0.01))
    np.testing.assert_allclose(served.params, reduced.params, rtol=0, atol=1e-12)
    np.testing.assert_allclose(served.history["loss"], reduced.history["loss"], rtol=1e-12)
    assert served.history["staleness_max"] == [0, 0]


@pytest.mark.parametrize(("consistency", "most"), [("bsp", 0), ("ssp", 1), ("async", 12)])
def test_servers_hear_from_groups_alone(consistency: Any, most: int, tmp_path: Path) -> None:
    """7 workers are groups of 3, 3 and 1; an epoch of 6 steps is 6 pushes of each, or 18 in all, on each server."""
    strategy = ParameterServer(consistency, staleness=1, servers=2, group=3, trace=str(tmp_path))
    model = train(blobs(96), strategy, 7)
    assert model.history["step"] == [6, 12]
    for file in tmp_path.iterdir():
        pushes: Counter[int] = Counter()
        leads = [0]
        for event in map(json.loads, file.read_text().splitlines()):
            if event["event"] == "push":
                pushes[event["worker"]] += 1
            else:
                leads.append(event["clock"] - min(pushes[g] for g in range(3)))
        assert set(pushes) <= {0, 1, 2}
        assert sum(pushes.values()) == 36
        if consistency != "async":
            assert set(pushes.values()) == {12}
            assert max(leads) <= most


def test_backup_counts_groups() -> None:
    net, started = nn.Sequential((Naps(0.1), *mlp().layers)), time.monotonic()
    model = train(blobs(192), ParameterServer("bsp", backup=1, group=2), 4, net=net)
    assert time.monotonic() - started < 1.9
    assert model.history["step"] == [12, 24]
    with pytest.raises(ConfigError, match=r"strategy\.backup = 2 of 2 groups of 2 workers leaves none"):
        train(blobs(48), ParameterServer("bsp", backup=2, group=2), 4)


@pytest.mark.parametrize("consistency", ["bsp", "async"])
@pytest.mark.parametrize("update_on", ["servers", "workers"])
def test_groups_go_on_from_a_checkpoint(consistency: Any, update_on: Any, tmp_path: Path) -> None:
    """Also as other groups than before: slots that workers keep are those of the first of a group."""
    given: dict[str, Any] = {"optimizer": Adam(0.01), "checkpoints": CheckpointPlan(str(tmp_path), every_steps=4)}
    train(blobs(96), ParameterServer(consistency, update_on=update_on), 4, **given)
    strategy = ParameterServer(consistency, update_on=update_on, group=3)
    model = train(blobs(96), strategy, 4, training={"epochs": 4}, **given)
    assert model.history["step"] == [6, 12, 18, 24]
    assert model.history["loss"][-1] < model.history["loss"][0]


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "async"])
@pytest.mark.parametrize("error", [ValueError, OSError])
def test_the_loss_of_a_member_ends_the_launch(consistency: Any, error: type[Exception]) -> None:
    layer = Fails(error("no more"), after=17)
    given: dict[str, Any] = {"net": nn.Sequential((layer, *mlp().layers)), "training": {"epochs": 4}}
    strategy = ParameterServer(consistency, group=3)
    if error is ValueError:
        with pytest.raises(TrainingError, match="failed: ValueError: no more"):
            train(blobs(96), strategy, 4, **given)
    else:
        assert train(blobs(96), strategy, 4, **given).history["step"] == [6, 12, 18, 24]
