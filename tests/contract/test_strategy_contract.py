"""Every consistent mode is the same mathematics: any number of workers, the same weights as a plain loop."""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from catalogue import FREE, RELAXED, STRATEGIES, StrategyCase
from reference import Array, blobs, mlp, sgd_by_hand, tolerance

import sparkdl.strategies
from sparkdl import nn
from sparkdl.data import DataSpec, LabelMap, Plan, ShardReader, spool_local
from sparkdl.ml import TrainedModel, fit
from sparkdl.optim import SGD
from sparkdl.train import Training

CASES = [pytest.param(c, id=c.id) for c in STRATEGIES]
SPEC = DataSpec(features=("features",), label="label")
LABELS = LabelMap((0, 1, 2))
LR, MOMENTUM, EPOCHS, BATCH = 0.1, 0.9, 3, 16


def train(case: StrategyCase, table: pa.Table, workers: int, dtype: str = "float64", **settings: Any) -> TrainedModel:
    spec = settings.pop("spec", SPEC)
    training = Training(**{"epochs": EPOCHS, "batch_size": BATCH, "seed": 3, "dtype": dtype} | settings)
    return fit(
        table,
        mlp(),
        spec,
        classes=LABELS.classes,
        optimizer=SGD(LR, MOMENTUM),
        training=training,
        strategy=case.strategy,
        workers=workers + case.strategy.spare,
    )


def minibatches(table: pa.Table, model: TrainedModel, folder: Path, epochs: int = EPOCHS) -> list[tuple[Array, ...]]:
    """The rows of each minibatch, found from one shard that holds them all."""
    with spool_local(iter(table.to_batches()), model.data.spec, 1, folder, labels=LABELS) as shards:
        reader = ShardReader(shards.handles[0], shards.info)
        plan = Plan(table.num_rows, BATCH, 3)
        found = []
        for epoch in range(epochs):
            for index in plan.batches(0, table.num_rows, epoch):
                x, y, w = reader.train_batch(index)
                found.append((x.astype(float), y, np.ones(len(y)) if w is None else w))
        reader.close()
    return found


def first_weights(dtype: str) -> Array:
    return nn.Model(mlp(), nn.SoftmaxCrossEntropy(), (6,)).init(np.random.default_rng((3, 0)), np.dtype(dtype))


@functools.cache
def alone(case: StrategyCase, dtype: str) -> Array:
    """The weights of one worker that has all rows."""
    return train(case, blobs(100), 1, dtype).params


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_equals_a_plain_loop(
    case: StrategyCase, workers: int, dtype: str, tmp_path: Path
) -> None:
    table = blobs(100)
    model = train(case, table, workers, dtype)
    expected = sgd_by_hand(first_weights("float64"), minibatches(table, model, tmp_path), LR, MOMENTUM)
    assert model.params.dtype == dtype
    np.testing.assert_allclose(model.params, expected, rtol=0, atol=50 * tolerance(dtype))
    np.testing.assert_allclose(model.params, alone(case, dtype), rtol=0, atol=tolerance(dtype))


@pytest.mark.parametrize("case", CASES)
def test_an_empty_shard_takes_part(case: StrategyCase) -> None:
    table = blobs(7)
    model, single = train(case, table, 5), train(case, table, 1)
    assert 0 in model.data.train_counts
    assert sum(model.data.train_counts) == 7
    np.testing.assert_allclose(model.params, single.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_sample_weights_count_as_repeated_rows(case: StrategyCase, tmp_path: Path) -> None:
    table = blobs(60, weights=True)
    spec = DataSpec(features=("features",), label="label", weight="weight")
    model = train(case, table, 3, spec=spec)
    expected = sgd_by_hand(first_weights("float64"), minibatches(table, model, tmp_path), LR, MOMENTUM)
    np.testing.assert_allclose(model.params, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_accumulation_equals_one_big_batch(case: StrategyCase, tmp_path: Path) -> None:
    table = blobs(100)
    model = train(case, table, 2, accumulate=3, epochs=2)
    small = minibatches(table, model, tmp_path, epochs=2)
    per_epoch = len(small) // 2
    groups = [small[e * per_epoch :][i : min(i + 3, per_epoch)] for e in range(2) for i in range(0, per_epoch, 3)]
    big = [tuple(np.concatenate(part) for part in zip(*group, strict=True)) for group in groups]
    expected = sgd_by_hand(first_weights("float64"), big, LR, MOMENTUM)
    np.testing.assert_allclose(model.params, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_twice_the_same_bits(case: StrategyCase) -> None:
    table = blobs(80)
    first, second = (train(case, table, 3, "float32") for _ in range(2))
    assert np.array_equal(first.params, second.params)
    assert first.history["loss"] == second.history["loss"]


@pytest.mark.parametrize("case", CASES)
def test_every_row_counts_once_an_epoch(case: StrategyCase, tmp_path: Path) -> None:
    table = blobs(50)
    model = train(case, table, 3, epochs=1)
    rows = Counter(x.tobytes() for batch in minibatches(table, model, tmp_path, 1) for x in batch[0])
    assert rows == Counter(np.asarray(x, float).tobytes() for x in table["features"].to_pylist())


@pytest.mark.parametrize("case", CASES)
def test_statistics_of_batch_norm_are_the_means_over_shards(case: StrategyCase, tmp_path: Path) -> None:
    """One full batch: running mean = momentum 0 + (1 - momentum) mean of all rows, whatever the shards."""
    table = blobs(64)
    net = nn.Sequential((nn.BatchNorm(momentum=0.9), nn.Dense(3)))
    training = Training(epochs=1, batch_size=64, dtype="float64")
    model = fit(table, net, SPEC, optimizer=SGD(0.1), training=training, strategy=case.strategy, workers=3)
    x = np.array(table["features"].to_pylist())
    view = model.model.layout.views(model.params)
    np.testing.assert_allclose(view["batch_norm_0/mean"], 0.1 * x.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_pickles_and_compares(case: StrategyCase) -> None:
    assert pickle.loads(pickle.dumps(case.strategy)) == case.strategy


def test_every_strategy_has_a_row() -> None:
    assert {type(c.strategy) for c in (*STRATEGIES, *RELAXED, *FREE)} == set(sparkdl.strategies.STRATEGIES.values())
