"""What every metric promises, over the catalogue: sums over rows that add up, weights, no rows, dtypes, persistence."""

from __future__ import annotations

import inspect
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from sparkdl.nn import Array
from sparkdl.train import metrics as package
from sparkdl.train.metrics import METRICS as REGISTRY
from sparkdl.train.metrics import Metric, MetricSet, decode_metric, encode_metric
from tests.catalogue import METRICS, MetricCase

ROWS = 40
each_metric = pytest.mark.parametrize("case", METRICS, ids=lambda case: case.id)


def batch(case: MetricCase, rows: int = ROWS) -> tuple[Array, Array, Array]:
    """Outputs, targets, sample weights."""
    rng = np.random.default_rng(5)
    return 2 * rng.standard_normal((rows, *case.out_shape)), case.make_targets(rng, rows), 0.5 + rng.random(rows)


def sums(case: MetricCase, z: Array, y: Array, w: Array | None) -> Array:
    metrics = MetricSet(case.loss, (case.metric,), case.out_shape)
    acc = metrics.zeros()
    metrics.update(acc, z, y, w)
    return acc


def figures(case: MetricCase, acc: Array) -> dict[str, Any]:
    return MetricSet(case.loss, (case.metric,), case.out_shape).results(acc)


def test_metrics_have_rows_and_names() -> None:
    exported = [getattr(package, name) for name in package.__all__]
    public = {c for c in exported if inspect.isclass(c) and issubclass(c, Metric) and not inspect.isabstract(c)}
    assert {type(case.metric) for case in METRICS} == public == set(REGISTRY.values())


@each_metric
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weighted", [True, False])
def test_shards_add_up(case: MetricCase, seed: int, weighted: bool) -> None:
    z, y, w = batch(case)
    shard = np.random.default_rng(seed).integers(0, 5, ROWS)
    shard[shard == 3] = 0  # shard 3 has no rows
    parts = [sums(case, z[shard == s], y[shard == s], w[shard == s] if weighted else None) for s in range(5)]
    whole = sums(case, z, y, w if weighted else None)
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-12, atol=1e-12)
    for name, value in figures(case, whole).items():
        np.testing.assert_allclose(figures(case, np.sum(parts, axis=0))[name], value, rtol=1e-10, atol=1e-12)


@each_metric
def test_no_rows_add_nothing_and_give_no_figures(case: MetricCase) -> None:
    z, y, w = batch(case, 0)
    for weights in (w, None):
        acc = sums(case, z, y, weights)
        assert not acc.any()
        assert figures(case, acc) == {}
    assert np.all(np.isfinite(case.metric.result(np.zeros(len(acc) - 3))))


@each_metric
def test_a_weight_counts_a_row_that_often(case: MetricCase) -> None:
    z, y, _ = batch(case)
    times = np.random.default_rng(1).integers(0, 4, ROWS)
    weighted = sums(case, z, y, times.astype(float))
    repeated = sums(case, np.repeat(z, times, axis=0), np.repeat(y, times, axis=0), None)
    rows = 2
    np.testing.assert_allclose(np.delete(weighted, rows), np.delete(repeated, rows), rtol=1e-12, atol=1e-12)
    assert (weighted[rows], repeated[rows]) == (ROWS, times.sum())


@each_metric
def test_rows_without_weight_do_not_matter(case: MetricCase) -> None:
    z, y, w = batch(case)
    w[::3] = 0
    kept = w > 0
    expected = figures(case, sums(case, z[kept], y[kept], w[kept]))
    for name, value in figures(case, sums(case, z, y, w)).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12)
    assert figures(case, sums(case, z, y, np.zeros(ROWS))) == {}


@each_metric
def test_sums_are_float64_and_inputs_are_left_alone(case: MetricCase) -> None:
    z, y, w = batch(case)
    z, w = z.astype(np.float32), w.astype(np.float32)
    exact = sums(case, z.astype(np.float64), y, w)
    copies = [a.copy() for a in (z, y, w)]
    for a in (z, y, w):
        a.flags.writeable = False
    acc = sums(case, z, y, w)
    assert acc.dtype == np.float64
    assert all(np.array_equal(a, b) for a, b in zip((z, y, w), copies, strict=True))
    np.testing.assert_allclose(acc, exact, rtol=1e-5, atol=1e-5)


@each_metric
def test_figures_are_plain_and_finite(case: MetricCase) -> None:
    results = figures(case, sums(case, *batch(case)))
    assert list(results) == ["loss", case.metric.name]
    assert type(results[case.metric.name]) in (float, list)
    json.dumps(results, allow_nan=False)
    assert len(case.metric.name.split()) == 1
    assert not math.isnan(np.sum(results[case.metric.name]))


@each_metric
def test_perfect_and_hopeless_predictions_differ(case: MetricCase) -> None:
    """No metric is blind: what the targets themselves give is not what their opposites give."""
    z, y, w = batch(case)
    if case.loss.target == "classes":
        good = np.where(np.arange(case.out_shape[0]) == y[:, None], 5.0, -5.0)
    else:
        good = y.reshape(z.shape) * 10.0 - (5.0 if case.loss.from_logits else 9.0 * y.reshape(z.shape))
    best, worst = (figures(case, sums(case, s * good, y, w))[case.metric.name] for s in (1, -1))
    assert best != worst
    ideal = {"mse": 0.0, "mae": 0.0}.get(case.metric.name, 1.0)
    if case.metric.name != "confusion_matrix":
        assert best == pytest.approx(ideal, abs=1e-4)


@each_metric
def test_metrics_are_small_values_and_data(case: MetricCase) -> None:
    assert pickle.loads(pickle.dumps(case.metric)) == case.metric
    assert hash(case.metric) == hash(pickle.loads(pickle.dumps(case.metric)))
    assert decode_metric(json.loads(json.dumps(encode_metric(case.metric)))) == case.metric
