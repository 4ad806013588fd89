"""Modes whose workers differ between meetings: what all of them owe, and gossip written out plainly."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import RELAXED, StrategyCase
from reference import Array, blobs, sgd_by_hand
from test_averaging_contract import LR, Interrupted, first_weights, minibatches, train

from sparkdl.comm.compress import TopK
from sparkdl.comm.gossip import Exponential, Full, OnePeerExponential, RandomOut, Ring, Star
from sparkdl.errors import ConfigError
from sparkdl.ml import CheckpointPlan
from sparkdl.optim import Adam
from sparkdl.strategies import Gossip, ModelAveraging

CASES = [pytest.param(c, id=c.id) for c in RELAXED]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_it_learns_whatever_the_number_of_workers(case: StrategyCase, workers: int) -> None:
    model = train(blobs(200), case.strategy, workers, optimizer=Adam(0.02), training={"epochs": 8})
    losses = model.history["loss"]
    assert losses[-1] < 0.6 * losses[0]
    assert model.history["accuracy"][-1] > 0.75
    assert sum(model.data.train_counts) == 200


@pytest.mark.parametrize("case", CASES)
def test_twice_the_same_bits_and_an_empty_shard_takes_part(case: StrategyCase) -> None:
    first, second = (train(blobs(5), case.strategy, 6) for _ in range(2))
    assert 0 in first.data.train_counts
    assert np.array_equal(first.params, second.params)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_repeats_the_bits(case: StrategyCase, tmp_path: Path) -> None:
    given: dict[str, Any] = {"optimizer": Adam(0.01), "training": {"epochs": 4, "dtype": "float32"}}
    whole = train(blobs(90), case.strategy, **given)
    plan = CheckpointPlan(str(tmp_path))
    train(blobs(90), case.strategy, checkpoints=plan, callbacks=[Interrupted(2)], **given)
    assert np.array_equal(train(blobs(90), case.strategy, checkpoints=plan, **given).params, whole.params)


@pytest.mark.parametrize("case", CASES)
def test_another_number_of_workers_takes_over(case: StrategyCase, tmp_path: Path) -> None:
    plan = CheckpointPlan(str(tmp_path))
    stopped = train(blobs(90), case.strategy, checkpoints=plan, callbacks=[Interrupted(1)])
    resumed = train(blobs(90), case.strategy, 2, checkpoints=plan)
    assert resumed.history["loss"][0] == stopped.history["loss"][0]
    assert resumed.history["loss"][1] < stopped.history["loss"][0]


@pytest.mark.parametrize("case", CASES)
def test_pickles_and_compares(case: StrategyCase) -> None:
    assert pickle.loads(pickle.dumps(case.strategy)) == case.strategy


def gradient_step(x: Array, batch: tuple[Array, Array, Array]) -> Array:
    """What one plain SGD step at x adds to the weights; nothing where there are no rows."""
    return sgd_by_hand(x, [batch], LR, 0.0) - x if len(batch[1]) else np.zeros_like(x)


@pytest.mark.parametrize("order", ["adapt_then_combine", "combine_then_adapt"])
def test_mixing_with_metropolis_weights_by_hand(order: Any, tmp_path: Path) -> None:
    """A star of three: the hub has degree 3 with itself, the leaves 2, so that an edge weighs 1/3."""
    table = blobs(100)
    w = np.array([[1, 1, 1], [1, 2, 0], [1, 0, 2]]) / 3
    batches = minibatches(table, tmp_path)
    x = np.stack([first_weights()] * 3)
    for step in range(len(batches[0])):
        moves = np.stack([gradient_step(x[i], batches[i][step]) for i in range(3)])
        x = w @ (x + moves) if order == "adapt_then_combine" else w @ x + moves
    model = train(table, Gossip(Star(), order=order))
    np.testing.assert_allclose(model.params, x.mean(axis=0), rtol=0, atol=1e-12)
    distance = np.sqrt(np.mean(np.sum((x - x.mean(axis=0)) ** 2, axis=1)))
    np.testing.assert_allclose(model.history["consensus_distance"][-1], distance, rtol=1e-9)


def test_push_sum_over_a_directed_ring_by_hand(tmp_path: Path) -> None:
    table = blobs(100)
    batches = minibatches(table, tmp_path)
    a = (np.eye(3) + np.roll(np.eye(3), 1, axis=0)) / 2  # rank j keeps a half and sends one to j + 1
    x, w = np.stack([first_weights()] * 3), np.ones(3)
    for step in range(len(batches[0])):
        z = x / w[:, None]
        x = a @ (x + np.stack([gradient_step(z[i], batches[i][step]) for i in range(3)]))
        w = a @ w
    model = train(table, Gossip(Ring("right"), push_sum=True))
    np.testing.assert_allclose(model.params, x.mean(axis=0), rtol=0, atol=1e-12)


def test_a_full_graph_has_no_distance_and_a_ring_some() -> None:
    assert train(blobs(100), Gossip(Full())).history["consensus_distance"][-1] < 1e-14
    assert train(blobs(100), Gossip(Ring()), 5).history["consensus_distance"][-1] > 1e-4


def test_a_longer_period_sends_less() -> None:
    often, seldom = (train(blobs(112), Gossip(Exponential(), period=p)) for p in (1, 7))
    assert seldom.history["sent_mb"][0] == pytest.approx(often.history["sent_mb"][0] / 7)


def test_graphs_that_do_not_suit_are_refused_before_the_launch() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.topology.*push-sum"):
        train(blobs(40), Gossip(RandomOut()), 4)
    with pytest.raises(ValueError, match="compressor needs neighbours that stay the same"):
        Gossip(OnePeerExponential(), compressor=TopK(0.1))


def test_averaging_with_period_one_and_a_full_graph_agree_where_shards_are_equal() -> None:
    """Gossip weighs workers alike, averaging by their rows: the same with one row each in a minibatch."""
    table = blobs(90)
    gossip, averaged = train(table, Gossip(Full()), 1), train(table, ModelAveraging(1), 1)
    np.testing.assert_allclose(gossip.params, averaged.params, rtol=0, atol=1e-13)
