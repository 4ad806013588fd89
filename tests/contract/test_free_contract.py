"""Modes whose workers do not wait for one another: no two runs are alike, but all owe the following."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from catalogue import FREE, StrategyCase
from reference import blobs, mlp
from test_averaging_contract import Interrupted, train

from sparkdl import nn
from sparkdl.data import DataSpec
from sparkdl.errors import TrainingError
from sparkdl.ml import CheckpointPlan, fit
from sparkdl.optim import SGD, Adam
from sparkdl.strategies import Gossip, Hogwild, ParameterServer, TreeAggregate
from sparkdl.train import Callback, Run, Training

CASES = [pytest.param(c, id=c.id) for c in FREE]
# Those that deal minibatches to whoever is free, each worker by itself.
DEALT = [pytest.param(c, id=c.id) for c in FREE if "ssp" not in c.id and "group" not in c.id]

# Those that send all at once.
EXACT = [pytest.param(c, id=c.id) for c in FREE if "top_k" not in c.id]


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, run: Run, logs: Any) -> None:
        if run.step >= self.step:
            run.stop("interrupted")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_it_learns_whatever_the_number_of_workers(case: StrategyCase, workers: int) -> None:
    model = train(blobs(200), case.strategy, workers, optimizer=Adam(0.02), training={"epochs": 8})
    losses = model.history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert model.history["accuracy"][-1] > 0.75
    assert model.history["step"] == [13 * e for e in range(1, 9)]


@pytest.mark.parametrize("case", EXACT)
def test_one_worker_trains_as_one_does(case: StrategyCase) -> None:
    given: dict[str, Any] = {"optimizer": SGD(0.1, 0.9)}
    net = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.Tanh(), nn.Dense(3)))
    alone = train(blobs(90), TreeAggregate(), 1, net=net, **given)
    model = train(blobs(90), case.strategy, 1, net=net, **given)
    np.testing.assert_allclose(model.params, alone.params, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.history["loss"], alone.history["loss"], rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_validation_and_an_empty_shard(case: StrategyCase) -> None:
    spec = DataSpec(features=("features",), label="label", dtype="float64", valid_fraction=0.3)
    model = train(blobs(12), case.strategy, 6, spec=spec)
    assert len(model.history["val_loss"]) == 2
    assert np.isfinite(model.params).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [3, 2])
def test_a_resumed_run_goes_on(case: StrategyCase, workers: int, tmp_path: Path) -> None:
    plan, optimizer = CheckpointPlan(str(tmp_path), every_steps=4), Adam(0.01)
    stopped = train(blobs(90), case.strategy, checkpoints=plan, callbacks=[Interrupted(2)], optimizer=optimizer)
    resumed = train(blobs(90), case.strategy, workers, checkpoints=plan, optimizer=optimizer, training={"epochs": 5})
    assert resumed.history["loss"][:2] == stopped.history["loss"]
    assert resumed.history["step"] == [6, 12, 18, 24, 30]
    assert resumed.history["loss"][-1] < stopped.history["loss"][-1]


@pytest.mark.parametrize("case", CASES)
def test_a_stop_within_an_epoch_leaves_one_state(case: StrategyCase, tmp_path: Path) -> None:
    plan = CheckpointPlan(str(tmp_path), every_steps=1000)
    slow = nn.Sequential((Slow(0.003), *mlp().layers))
    given: dict[str, Any] = {"net": slow, "checkpoints": plan, "training": {"epochs": 3}}
    stopped = train(blobs(1600), case.strategy, callbacks=[StopAt(5)], **given)
    assert stopped.stop_reason == "interrupted"
    assert len(stopped.history) == 0
    resumed = train(blobs(1600), case.strategy, **given)
    assert resumed.history["step"] == [100, 200, 300]


@pytest.mark.parametrize("case", CASES)
def test_an_exception_on_one_rank_ends_all_soon(case: StrategyCase) -> None:
    """Also where the others would have had work for long."""
    layer = Fails(ValueError("the layer says no"), after=7)
    net, started = nn.Sequential((Slow(0.002), layer, *mlp().layers)), time.monotonic()
    with pytest.raises(TrainingError, match=r"rank \d \(host .* failed: ValueError: the layer says no"):
        train(blobs(16_000), case.strategy, net=net)
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("case", CASES)
def test_what_need_not_recur_is_tried_again(case: StrategyCase, caplog: pytest.LogCaptureFixture) -> None:
    layer = Fails(OSError("disk"), after=20)
    model = train(blobs(90), case.strategy, net=nn.Sequential((layer, *mlp().layers)), training={"epochs": 4})
    assert model.history["step"] == [6, 12, 18, 24]
    assert any("going on from" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("case", CASES)
def test_pickles_and_compares(case: StrategyCase) -> None:
    assert pickle.loads(pickle.dumps(case.strategy)) == case.strategy


@pytest.mark.parametrize("case", DEALT)
def test_a_fast_worker_makes_more_of_the_minibatches(case: StrategyCase) -> None:
    """An epoch is S minibatches for each of P workers in all, and does not wait for the slow one to make its S."""
    counts: dict[int, int] = {}
    net = nn.Sequential((Slow(0.002, slowest=0.03, counts=counts), *mlp().layers))
    train(blobs(480), case.strategy, 2, net=net, training={"epochs": 1})
    assert sum(counts.values()) == 2 * 30
    few, many = sorted(counts.values())
    assert few < 20 < many


def test_hogwild_loses_nothing_where_supports_are_disjoint() -> None:
    """One-hot rows: each has a weight of its own, w <- w + c (y - w) a visit, so that w = y (1 - (1 - c)^visits)."""
    rows, lr = 40, 0.05
    x = np.eye(rows)
    y = np.linspace(1, 3, rows)
    table = pa.table({"x": list(x), "y": y})
    spec = DataSpec(features=("x",), label="y", target="values", dtype="float64")
    training = Training(epochs=3, batch_size=4, dtype="float64", seed=1)
    net = nn.Dense(1, bias=False)
    start = fit(table, net, spec, loss=nn.MSE(), optimizer=SGD(1e-30), training=training, strategy=Hogwild()).params
    model = fit(table, net, spec, loss=nn.MSE(), optimizer=SGD(lr), training=training, strategy=Hogwild(), workers=4)
    visits = np.log1p(-(model.params - start) / (y - start))
    factors = {np.log1p(-2 * lr / n) for n in range(1, 5)}  # the mean is over the worker's rows of the minibatch
    for found in visits:
        made = {sum(c) for n in range(12) for c in _sums(sorted(factors), n)}
        assert min(abs(found - m) for m in made) < 1e-9


def _sums(values: list[float], n: int) -> Iterator[tuple[float, ...]]:
    """Multisets of n values."""
    if n == 0:
        yield ()
        return
    for i, v in enumerate(values):
        for rest in _sums(values[i:], n - 1):
            yield (v, *rest)


@pytest.mark.parametrize("period", [1, 4])
def test_asynchronous_pairs_come_together(period: int) -> None:
    """Workers that swap weights stay closer to one another than those that do not."""
    model = train(blobs(200), Gossip(asynchronous=True, period=period), 4, training={"epochs": 6})
    first = train(blobs(200), Gossip(asynchronous=True, period=10**6), 4, training={"epochs": 6})
    assert model.history["consensus_distance"][-1] < 0.7 * first.history["consensus_distance"][-1]


def test_asynchronous_gossip_has_no_rounds() -> None:
    with pytest.raises(ValueError, match="asynchronous gossip has no push_sum"):
        Gossip(asynchronous=True, push_sum=True)


def test_stale_reads_hold_what_the_bound_says(tmp_path: Path) -> None:
    """From what the servers recorded: a worker that reads for its contribution c sees all up to c - s of everybody."""
    bound, workers = 2, 4
    net = nn.Sequential((Slow(0.0, jitter=0.004), *mlp().layers))
    train(blobs(640), ParameterServer("ssp", staleness=bound, trace=str(tmp_path)), workers, net=net)
    files = sorted(tmp_path.iterdir())
    assert len(files) == workers
    leads = []
    for file in files:
        made = [0] * workers
        for event in map(json.loads, file.read_text().splitlines()):
            if event["event"] == "push":
                assert event["clock"] == made[event["worker"]]  # in order, each once
                made[event["worker"]] += 1
            else:
                assert event["clock"] == made[event["worker"]]  # own writes are read
                leads.append(event["clock"] - min(made))
        assert made == [80] * workers
    assert 1 <= max(leads) <= bound


class Base(nn.Layer):
    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        return dy


class Slow(Base):
    """Sleeps a while; in one thread, that of the first to come, `slowest`. Counts the passes of each thread."""

    def __init__(
        self, seconds: float, slowest: float = 0.0, jitter: float = 0.0, counts: dict[int, int] | None = None
    ) -> None:
        self.seconds, self.slowest, self.jitter, self.counts = seconds, slowest, jitter, counts
        self.rng = np.random.default_rng(0)

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        me = threading.get_ident()
        if ctx.train and len(x) and self.counts is not None:
            self.counts[me] = self.counts.get(me, 0) + 1
        first = self.counts is not None and next(iter(self.counts), me) == me
        time.sleep((self.slowest if first and self.slowest else self.seconds) + self.jitter * self.rng.random())
        return x, None


class Fails(Base):
    """Raises the error in its training pass number `after`, once."""

    def __init__(self, error: Exception, after: int) -> None:
        self.error, self.after, self.count, self.lock = error, after, 0, threading.Lock()

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        with self.lock:
            self.count += ctx.train
            if ctx.train and self.count == self.after:
                raise self.error
        return x, None
