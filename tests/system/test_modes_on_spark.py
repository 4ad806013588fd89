"""The relaxed modes on real Spark, with the bits of threads; fewer workers where executors stay away."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import FREE, RELAXED, STRATEGIES, StrategyCase
from pyspark.sql import DataFrame, SparkSession
from reference import blobs
from test_allreduce import QUICK, SPEC, Saboteur, train

from sparkdl import nn
from sparkdl.backends import Slots
from sparkdl.backends.spark import SparkBackend
from sparkdl.data.spark import spool
from sparkdl.errors import TrainingError
from sparkdl.optim import SGD, Adam
from sparkdl.strategies import AllReduce, Gossip, ModelAveraging, ParameterServer, PeerStrategy
from sparkdl.strategies import peers as peers_module

MODES = [c for c in (*STRATEGIES, *RELAXED) if isinstance(c.strategy, ModelAveraging | Gossip | ParameterServer)]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(blobs(80)).repartition(3)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in MODES])
def test_the_bits_are_those_of_threads(case: StrategyCase, df: DataFrame) -> None:
    here = train(blobs(80), strategy=case.strategy)
    there = train(df, strategy=case.strategy)
    assert np.array_equal(here.params, there.params)
    assert here.history["loss"] == there.history["loss"]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in FREE])
def test_workers_that_do_not_wait(case: StrategyCase, df: DataFrame) -> None:
    model = train(df, strategy=case.strategy, optimizer=Adam(0.02), training={"epochs": 6})
    assert model.history["step"] == [4 * e for e in range(1, 7)]
    assert model.history["loss"][-1] < model.history["loss"][0]


def test_shards_of_dedicated_servers_stay_empty(df: DataFrame) -> None:
    """Also where shards are written anew, or more of them."""
    with spool(df, SPEC, 3, spare=1) as shards:
        counts = [h.train.rows for h in shards.handles]
        assert (counts[0], sum(shards.info.train_counts)) == (0, sum(counts))
        assert min(counts[1:]) > 0
        shards.rebuild()
        assert [h.train.rows for h in shards.handles] == counts
        with shards.over(4) as more:
            assert more.info.train_counts[0] == 0
            assert min(more.info.train_counts[1:]) > 0
            assert more.info.train_rows == sum(counts)


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (ParameterServer("async", network=QUICK), False),
        (ParameterServer("bsp", replicate=True, network=QUICK), True),
        (Gossip(network=QUICK), True),
    ],
    ids=["async", "replicated", "gossip"],
)
def test_a_worker_that_dies_is_replaced(
    strategy: PeerStrategy, kept: bool, df: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the others hold all that matters, training goes on from that."""
    net = plain(Saboteur("SIGKILL", 7, str(tmp_path / "mark")))
    with caplog.at_level(logging.WARNING, "sparkdl"):
        model = train(df, net, strategy=strategy, optimizer=Adam(0.02), training={"epochs": 6})
    assert model.history["step"] == [4 * e for e in range(1, 7)]
    assert model.history["loss"][-1] < model.history["loss"][0]
    assert kept == any("what the others hold" in r.getMessage() for r in caplog.records)


def plain(layer: nn.Layer) -> nn.Sequential:
    """A net in which nothing depends on how a minibatch is split."""
    return nn.Sequential((layer, nn.Dense(8), nn.Tanh(), nn.Dense(3)))


@pytest.mark.parametrize("min_workers", [0, 1])
def test_executors_that_stay_away(
    min_workers: int, df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After the loss one slot is left: where that may do, the rows go to one worker, and the result is the same."""
    slots = iter([Slots(2)])
    monkeypatch.setattr(SparkBackend, "slots", lambda self: next(slots, Slots(1)))
    monkeypatch.setattr(peers_module, "SLOTS_S", 0.1)
    given: dict[str, Any] = {"optimizer": SGD(0.05), "training": {"dtype": "float64"}}
    strategy = AllReduce(network=QUICK, min_workers=min_workers)
    net = plain(Saboteur("SIGKILL", 5, str(tmp_path / "mark")))
    if not min_workers:
        with pytest.raises(TrainingError, match=r"rank 1 .* was lost"):
            train(df, net, strategy=strategy, **given)
        return
    with caplog.at_level(logging.WARNING, "sparkdl"):
        model = train(df, net, strategy=strategy, **given)
    assert any("going on with 1 workers instead of 2" in r.getMessage() for r in caplog.records)
    alone = train(blobs(80), plain(Saboteur()), 1, **given)
    np.testing.assert_allclose(model.params, alone.params, rtol=0, atol=1e-12)
