"""Parameter servers, against other modes that must give the same, and by what users may get wrong."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference import blobs, mlp
from test_averaging_contract import train
from test_free_contract import Base

from sparkdl import nn
from sparkdl.comm.compress import Float16, PowerSGD
from sparkdl.errors import ConfigError
from sparkdl.ml import CheckpointPlan
from sparkdl.optim import LAMB, SGD, Adam, Clip, OnPlateau
from sparkdl.strategies import AllReduce, ModelAveraging, ParameterServer
from sparkdl.train import Callback


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.01), LAMB(0.01)], ids=lambda o: type(o).__name__)
def test_bulk_synchronous_is_an_allreduce(servers: int, optimizer: Any) -> None:
    net = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.Tanh(), nn.Dense(3)))
    given: dict[str, Any] = {
        "optimizer": optimizer,
        "schedule": OnPlateau("loss", patience=1, min_delta=0.2),
        "net": net,
    }
    given |= {"training": {"epochs": 4}, "net": net}
    served = train(blobs(96), ParameterServer("bsp", servers=servers), **given)
    reduced = train(blobs(96), AllReduce(), **given)
    np.testing.assert_allclose(served.params, reduced.params, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(served.history["loss"], reduced.history["loss"], rtol=1e-9)


@pytest.mark.parametrize("strategy", [ParameterServer("bsp"), ParameterServer("bsp", update_on="workers", window=3)])
@pytest.mark.parametrize("workers", [2, 5])
def test_copies_change_no_bit(strategy: ParameterServer, workers: int) -> None:
    net = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.Tanh(), nn.Dense(3)))
    plain, copied = (
        train(blobs(96), replace(strategy, replicate=r), workers, optimizer=Adam(0.01), net=net) for r in (False, True)
    )
    assert plain.params.tobytes() == copied.params.tobytes()


def test_no_staleness_has_the_bits_of_bulk_synchronous() -> None:
    bsp, ssp = (train(blobs(96), ParameterServer(c, staleness=0), 5, optimizer=Adam(0.01)) for c in ("bsp", "ssp"))
    assert bsp.params.tobytes() == ssp.params.tobytes()


@pytest.mark.parametrize("window", [1, 3, 10**6])
def test_windows_of_all_workers_are_model_averaging(window: int) -> None:
    """A window ends with its epoch; so does a period here, or it goes on over both epochs."""
    table, training = blobs(96), {"epochs": 1}
    served = train(table, ParameterServer("bsp", update_on="workers", window=window), training=training)
    averaged = train(table, ModelAveraging(window), training=training)
    np.testing.assert_allclose(served.params, averaged.params, rtol=0, atol=1e-12)


def test_clipping_of_one_worker_is_that_of_the_whole() -> None:
    training = {"clip": Clip(norm=0.1)}
    served = train(blobs(96), ParameterServer("bsp"), 1, training=training)
    alone = train(blobs(96), AllReduce(), 1, training=training)
    np.testing.assert_allclose(served.params, alone.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compressor", [Float16(), PowerSGD(2)], ids=lambda c: type(c).__name__)
def test_pushes_travel_compressed(compressor: Any) -> None:
    plain = train(blobs(200), ParameterServer("bsp"), training={"epochs": 6})
    short = train(blobs(200), ParameterServer("bsp", compressor=compressor), training={"epochs": 6})
    assert short.history["sent_mb"][-1] < plain.history["sent_mb"][-1]
    assert abs(short.history["loss"][-1] - plain.history["loss"][-1]) < 0.05


class Naps(Base):
    """The thread that comes first sleeps longer than the others for all of their minibatches."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.first = seconds, 0

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        self.first = self.first or threading.get_ident()
        if self.first == threading.get_ident() and ctx.train:
            time.sleep(self.seconds)
        return x, None


def test_a_backup_worker_does_not_move_the_step_time() -> None:
    """24 steps, of which the sleeper would make each 0.1 s long; it joins the others where they are."""
    net, started = nn.Sequential((Naps(0.1), *mlp().layers)), time.monotonic()
    model = train(blobs(192), ParameterServer("bsp", backup=1), 4, net=net)
    assert time.monotonic() - started < 1.6
    assert model.history["step"] == [12, 24]
    assert sum(model.history["pushes_dropped"]) > 0


def test_late_workers_meet_for_checkpoints(tmp_path: Any) -> None:
    net = nn.Sequential((Naps(0.01), *mlp().layers))
    plan = CheckpointPlan(str(tmp_path), every_steps=5)
    model = train(blobs(192), ParameterServer("bsp", backup=2), 4, net=net, checkpoints=plan)
    assert model.history["step"] == [12, 24]


def test_skipped_gradients_leave_the_weights_as_they_are() -> None:
    class Breaks(Base):
        def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
            return x * (np.inf if ctx.train else 1.0), None

    given: dict[str, Any] = {"net": nn.Sequential((Breaks(), *mlp().layers)), "training": {"on_nonfinite": "skip"}}
    for strategy in (ParameterServer("bsp"), ParameterServer("async")):
        model = train(blobs(48), strategy, **given)
        first = train(blobs(48), AllReduce(), **given)
        assert np.array_equal(model.params, first.params)


class Fails(Callback):
    """What goes wrong on the driver ends the fit."""

    def epoch_end(self, run: Any, record: Any) -> None:
        raise RuntimeError("a callback says no")


def test_a_callback_that_fails_ends_workers_that_wait() -> None:
    with pytest.raises(RuntimeError, match="a callback says no"):
        train(blobs(48), ParameterServer("ssp"), callbacks=[Fails()])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"consistency": "bulk"}, "consistency must be one of bsp, ssp, async; got 'bulk'"),
        ({"window": 2}, 'window = 2: .* Set update_on = "workers"'),
        ({"backup": 1}, 'backup = 1 goes with consistency = "bsp"'),
        ({"damping": "half"}, "damping must be one of staleness, workers, none"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ParameterServer(**settings)


def test_more_servers_than_workers() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.servers = 4, but there are 3 workers"):
        train(blobs(48), ParameterServer(servers=4))
    with pytest.raises(ConfigError, match=r"strategy\.replicate keeps a copy on another server"):
        train(blobs(48), ParameterServer(servers=1, replicate=True))
    with pytest.raises(ConfigError, match=r"strategy\.backup = 3 of 3 workers leaves none"):
        train(blobs(48), ParameterServer("bsp", backup=3))
