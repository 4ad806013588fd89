"""Modes in which a lost worker costs only what it alone held: processes that are killed in the middle of an epoch."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference import blobs, mlp
from test_peer_processes import rank_process

from sparkdl import nn
from sparkdl.comm import TransportOptions
from sparkdl.comm.gossip import Full
from sparkdl.data import DataSpec
from sparkdl.ml import TrainedModel, fit
from sparkdl.optim import SGD
from sparkdl.strategies import AllReduce, Gossip, Hogwild, ParameterServer, PeerStrategy
from sparkdl.train import Callback, Run, Training

SPEC = DataSpec(features=("features",), label="label", dtype="float64")
STEPS = 100  # in an epoch
QUICK = TransportOptions(timeout_s=4, connect_timeout_s=20)


class Nap(nn.Layer):
    """A millisecond, so that a minibatch takes long enough to be hit."""

    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        time.sleep(0.002)
        return x, None

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        return dy


class Strike(Callback):
    """Once, at an update in the middle of the second epoch."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do, self.at = do, 0

    def step_end(self, run: Run, logs: Any) -> None:
        if run.step >= STEPS + STEPS // 2 and not self.at:
            self.at = run.step
            self.do()


def train(strategy: PeerStrategy, rank: int | None, master: str = "processes") -> tuple[TrainedModel, list[int]]:
    """The model, and the steps that callbacks saw; the process of `rank` is killed."""
    seen: list[int] = []

    class Watch(Callback):
        def step_end(self, run: Run, logs: Any) -> None:
            seen.append(run.step)

    strikes = [] if rank is None else [Strike(lambda: os.kill(rank_process(rank), signal.SIGKILL))]
    model = fit(
        blobs(STEPS * 16),
        nn.Sequential((Nap(), *mlp().layers)),
        SPEC,
        classes=(0, 1, 2),
        optimizer=SGD(0.05, 0.9),
        training=Training(epochs=3, batch_size=16, seed=3, dtype="float64"),
        strategy=replace(strategy, network=QUICK),
        workers=3,
        master=master,
        callbacks=[Watch(), *strikes],
    )
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("sparkdl-rank")]
    return model, seen


KEEPING = [
    pytest.param(Gossip(Full()), 0, id="gossip"),
    pytest.param(Gossip(asynchronous=True), 2, id="gossip-asynchronous"),
    pytest.param(Hogwild(), 2, id="hogwild"),
    pytest.param(ParameterServer("async", replicate=True), 0, id="server-async"),
]


@pytest.mark.parametrize(("strategy", "rank"), KEEPING)
def test_the_others_go_on_from_where_they_are(
    strategy: PeerStrategy, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sparkdl"):
        model, seen = train(strategy, rank)
    assert model.history["step"] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert any("going on from what the others hold" in r.getMessage() for r in caplog.records)
    # No step back to the end of the last epoch: at most the few under way are made again.
    assert min(later - earlier for earlier, later in itertools.pairwise(seen)) > -15


def test_otherwise_training_goes_back_to_the_last_state() -> None:
    _, seen = train(AllReduce(), 2)
    assert min(later - earlier for earlier, later in itertools.pairwise(seen)) < -30


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_server_loses_no_update(rank: int) -> None:
    """Bulk synchronous: the weights are those of a run in which nobody was lost."""
    whole, _ = train(ParameterServer("bsp"), None, "threads")
    model, _ = train(ParameterServer("bsp", replicate=True), rank)
    np.testing.assert_allclose(model.params, whole.params, rtol=0, atol=1e-12)
