"""Local updates and meetings, against the same written out plainly for every worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from reference import Array, blobs, mlp, sgd_by_hand

from sparkdl import nn
from sparkdl.comm.compress import OneBit, TopK
from sparkdl.data import DataSpec, LabelMap, Plan, ShardReader, spool_local
from sparkdl.errors import ConfigError
from sparkdl.ml import CheckpointPlan, TrainedModel, fit
from sparkdl.optim import BMUF, SGD, Adam, DiLoCo, Elastic, SlowMo
from sparkdl.strategies import AllReduce, ModelAveraging
from sparkdl.train import Callback, Run, Training

SPEC = DataSpec(features=("features",), label="label", dtype="float64")  # a row's place depends on its bits
LABELS = LabelMap((0, 1, 2))
LR, BATCH, EPOCHS, WORKERS = 0.1, 16, 2, 3


def train(table: pa.Table, strategy: Any, workers: int = WORKERS, **settings: Any) -> TrainedModel:
    """On so many workers that train, and those besides who only serve."""
    training = {"epochs": EPOCHS, "batch_size": BATCH, "seed": 3, "dtype": "float64"} | settings.pop("training", {})
    optimizer = settings.pop("optimizer", SGD(LR))
    return fit(
        table,
        settings.pop("net", mlp()),
        settings.pop("spec", SPEC),
        classes=LABELS.classes,
        optimizer=optimizer,
        training=Training(**training),
        strategy=strategy,
        workers=workers + strategy.spare,
        **settings,
    )


def minibatches(table: pa.Table, folder: Path) -> list[list[tuple[Array, Array, Array]]]:
    """For each worker the rows of each of its minibatches, over all epochs."""
    found = []
    with spool_local(iter(table.to_batches()), SPEC, WORKERS, folder, labels=LABELS) as shards:
        plan = Plan(table.num_rows, BATCH, 3)
        for handle in shards.handles:
            reader, start = ShardReader(handle, shards.info), shards.info.train_offset(handle.part)
            rows = []
            for epoch, index in itertools.product(range(EPOCHS), range(plan.steps)):
                x, y, _ = reader.train_batch(plan.batches(start, start + handle.train.rows, epoch)[index])
                rows.append((x.astype(float), y, np.ones(len(y))))
            reader.close()
            found.append(rows)
    return found


def first_weights() -> Array:
    return nn.Model(mlp(), nn.SoftmaxCrossEntropy(), (6,)).init(np.random.default_rng((3, 0)), np.dtype("float64"))


def by_hand(
    batches: list[list[tuple[Array, Array, Array]]], period: int, outer: Callable[[Array, Array], Array]
) -> Array:
    """Local plain SGD; every `period` updates x <- outer(x, the average by rows); at the end the average."""
    x = first_weights()
    steps = len(batches[0])
    for start in range(0, steps, period):
        stop = min(start + period, steps)
        ends, rows = [], []
        for worker in batches:
            mine = [b for b in worker[start:stop] if len(b[1])]
            ends.append(sgd_by_hand(x, mine, LR, 0.0) if mine else x)
            rows.append(sum(len(b[1]) for b in mine))
        mean = np.average(ends, axis=0, weights=rows)
        x = outer(x, mean) if stop - start == period else mean
    return x


def _slowmo() -> Callable[[Array, Array], Array]:
    u: list[Any] = [0.0]

    def outer(x: Array, mean: Array) -> Array:
        u[0] = 0.5 * u[0] + (x - mean) / LR
        return x - LR * u[0]

    return outer


def _diloco() -> Callable[[Array, Array], Array]:
    v: list[Any] = [0.0]

    def outer(x: Array, mean: Array) -> Array:
        d = x - mean
        v[0] = 0.9 * v[0] + d
        return x - 0.7 * (d + 0.9 * v[0])

    return outer


@pytest.mark.parametrize("through", ["peers", "driver"])
@pytest.mark.parametrize("period", [2, 7])
@pytest.mark.parametrize(
    ("outer", "rule"),
    [(None, lambda: lambda x, mean: mean), (SlowMo(0.5), _slowmo), (DiLoCo(), _diloco)],
    ids=["average", "slowmo", "diloco"],
)
def test_local_updates_and_meetings_by_hand(
    through: Any, period: int, outer: Any, rule: Callable[[], Any], tmp_path: Path
) -> None:
    table = blobs(112)  # 7 updates an epoch, all of them full
    settings = {} if outer is None else {"outer": outer}
    kept = "reset" if through == "driver" else "keep"
    model = train(table, ModelAveraging(period, optimizer_state=kept, through=through, **settings))
    if through == "driver" and period == 2:  # a round ends with its epoch, which has an odd number of updates
        assert model.history["step"] == [7, 14]
        return
    expected = by_hand(minibatches(table, tmp_path), period, rule())
    np.testing.assert_allclose(model.params, expected, rtol=0, atol=1e-12)


def test_a_period_beyond_the_fit_averages_once(tmp_path: Path) -> None:
    table = blobs(100)
    expected = by_hand(minibatches(table, tmp_path), 10**6, lambda x, mean: mean)
    np.testing.assert_allclose(train(table, ModelAveraging(10**6)).params, expected, rtol=0, atol=1e-12)


def test_updates_are_synchronous_before_the_start_step() -> None:
    table = blobs(96)
    training = {"epochs": 1}
    together = train(table, AllReduce(), training=training)
    late = train(table, ModelAveraging(4, start_step=6), training=training)
    np.testing.assert_allclose(late.params, together.params, rtol=0, atol=1e-13)
    early = train(table, ModelAveraging(4, start_step=2), training=training)
    assert abs(early.params - together.params).max() > 1e-6


def test_elastic_workers_follow_a_centre(tmp_path: Path) -> None:
    """x_i <- x_i - a (x_i - c), c <- c + a sum (x_i - c), after every second local update."""
    table, alpha = blobs(96), 0.2
    model = train(table, ModelAveraging(2, elastic=Elastic(alpha)))
    batches = minibatches(table, tmp_path)
    centre = first_weights()
    own = [centre.copy() for _ in batches]
    for start in range(0, len(batches[0]), 2):
        for i, worker in enumerate(batches):
            own[i] = sgd_by_hand(own[i], [b for b in worker[start : start + 2] if len(b[1])], LR, 0.0)
        pulls = [alpha * (x - centre) for x in own]
        own = [x - pull for x, pull in zip(own, pulls, strict=True)]
        centre = centre + sum(pulls)
    np.testing.assert_allclose(model.params, centre, rtol=0, atol=1e-12)


class Interrupted(Callback):
    def __init__(self, after: int) -> None:
        self.after = after

    def epoch_end(self, run: Run, logs: Any) -> None:
        if run.epoch == self.after:
            run.stop("interrupted")


@pytest.mark.parametrize(
    "strategy",
    [
        ModelAveraging(4, SlowMo()),
        ModelAveraging(3, elastic=Elastic()),
        ModelAveraging(4, optimizer_state="average"),
        ModelAveraging(4, compressor=TopK(0.1)),
        AllReduce(compressor=OneBit()),
        ModelAveraging(4, BMUF(), optimizer_state="reset", through="driver"),
    ],
    ids=["slowmo", "elastic", "average", "top_k", "one_bit", "driver"],
)
def test_a_resumed_run_repeats_the_bits(strategy: Any, tmp_path: Path) -> None:
    """Weights, slots and memories of every worker are part of a checkpoint."""
    table, given = blobs(90), {"optimizer": Adam(0.01), "training": {"epochs": 4, "dtype": "float32"}}
    whole = train(table, strategy, **given)
    plan = CheckpointPlan(str(tmp_path))
    train(table, strategy, checkpoints=plan, callbacks=[Interrupted(2)], **given)
    resumed = train(table, strategy, checkpoints=plan, **given)
    assert np.array_equal(resumed.params, whole.params)


def test_another_number_of_workers_goes_on_from_the_average(tmp_path: Path) -> None:
    table, plan = blobs(90), CheckpointPlan(str(tmp_path))
    stopped = train(table, ModelAveraging(4), checkpoints=plan, callbacks=[Interrupted(1)])
    resumed = train(table, ModelAveraging(4), 2, checkpoints=plan)
    assert resumed.history["loss"][0] == stopped.history["loss"][0]
    assert resumed.history["loss"][1] < stopped.history["loss"][0]


def test_history_tells_of_meetings_and_of_what_was_sent() -> None:
    model = train(blobs(112), ModelAveraging(3, compressor=TopK(0.05)))
    assert model.history["meetings"] == [2, 2]  # of 14 updates, after 3, 6, 9 and 12
    assert all(d > 0 for d in model.history["distance"])
    assert all(0 < r < 1 for r in model.history["sent_ratio"])
    assert model.history["step"] == [7, 14]


@pytest.mark.parametrize("settings", [{"elastic": Elastic()}, {"compressor": TopK(0.1)}, {"optimizer_state": "keep"}])
def test_rounds_through_the_driver_keep_nothing_on_workers(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="workers hold nothing"):
        ModelAveraging(**{"optimizer_state": "reset", "through": "driver"} | settings)


def test_a_slice_of_the_optimizer_and_a_compressor_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="shard_optimizer"):
        AllReduce(shard_optimizer=True, compressor=TopK(0.1))


def test_configurations_name_outer_rules_and_compressors() -> None:
    from sparkdl.config import from_dict

    table = {
        "data": {"train": "x", "features": ["a"], "label": "b"},
        "model": {"name": "mlp"},
        "strategy": {
            "name": "model_averaging",
            "period": 4,
            "outer": {"name": "slowmo", "beta": 0.7},
            "compressor": {"name": "top_k", "ratio": 0.01},
        },
    }
    assert from_dict(table).strategy == ModelAveraging(4, SlowMo(0.7), compressor=TopK(0.01))
    with pytest.raises(ConfigError, match="period"):
        from_dict(table | {"strategy": {"name": "model_averaging", "period": 0}})
