"""Training on real Spark: the same weights as threads give, nothing left behind, failures in one message."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from reference import blobs, mlp, tolerance

import sparkdl
from sparkdl import nn
from sparkdl.backends.spark import tree_sum
from sparkdl.data import DataSpec
from sparkdl.errors import ConfigError, DataError, ModelFormatError, TrainingError
from sparkdl.ml import CheckpointPlan, TrainedModel, fit, job
from sparkdl.nn.zoo import cnn
from sparkdl.optim import SGD, Adam, Cosine
from sparkdl.strategies import TreeAggregate
from sparkdl.train import Callback, EarlyStopping, Run, Training

SPEC = DataSpec(features=("features",), label="label")
DIGITS = DataSpec(features=("pixels",), label="label", shape=(8, 8, 1), scale=1 / 16, valid_fraction=0.1)


def train(data: Any, dtype: str = "float64", workers: int = 2, **settings: Any) -> TrainedModel:
    training = Training(**{"epochs": 1, "batch_size": 16, "seed": 3, "dtype": dtype} | settings.pop("training", {}))
    return fit(data, mlp(), SPEC, optimizer=SGD(0.1, 0.9), training=training, workers=workers, **settings)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_spark_equals_one_process(spark: SparkSession, workers: int, dtype: str) -> None:
    table = blobs(50)
    serial = train(table, dtype, workers=1)
    model = train(spark.createDataFrame(table).repartition(4), dtype, workers)
    np.testing.assert_allclose(model.params, serial.params, rtol=0, atol=tolerance(dtype))
    np.testing.assert_allclose(model.history["loss"], serial.history["loss"], rtol=10 * tolerance(dtype))


def test_an_empty_shard_and_fewer_rows_than_partitions(spark: SparkSession) -> None:
    table = blobs(3, classes=2)
    settings: dict[str, Any] = {"classes": (0, 1, 2)}
    model = train(spark.createDataFrame(table), workers=5, **settings)
    assert 0 in model.data.train_counts
    np.testing.assert_allclose(model.params, train(table, workers=1, **settings).params, atol=1e-12, rtol=0)
    scored = model.transform(spark.createDataFrame(table).repartition(5))
    assert scored.count() == 3


def test_twice_the_same_bits_through_a_deep_tree(spark: SparkSession) -> None:
    df = spark.createDataFrame(blobs(40))
    first, second = (train(df, "float32", 5, strategy=TreeAggregate(depth=2)) for _ in range(2))
    assert np.array_equal(first.params, second.params)


@pytest.mark.parametrize(("parts", "depth"), [(1, 1), (2, 2), (5, 1), (5, 2), (9, 3)])
def test_a_tree_adds_each_value_once_in_order(spark: SparkSession, parts: int, depth: int) -> None:
    values = spark.sparkContext.parallelize([[i] for i in range(parts)], parts)
    assert sum(tree_sum(values, _join, depth), 0) == sum(range(parts))
    assert tree_sum(values, _join, depth) == list(range(parts))


def _join(a: list[int], b: list[int]) -> list[int]:
    return a + b


class Interrupted(Callback):
    """Ends a fit as Ctrl-C does, after some updates."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step_end(self, run: Run, logs: Any) -> None:
        if run.step == self.after:
            run.stop("interrupted")


@pytest.mark.parametrize("after", [2, 4, 7])
def test_a_resumed_run_repeats_the_bits_of_the_undisturbed_one(spark: SparkSession, tmp_path: Path, after: int) -> None:
    df = spark.createDataFrame(blobs(50))  # 4 updates an epoch: within the first, at its end, within the second
    plan = CheckpointPlan(str(tmp_path / "checkpoints"))
    spec: dict[str, Any] = {"optimizer": Adam(0.01), "schedule": Cosine(), "workers": 2}
    training = Training(epochs=3, batch_size=16)
    net = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.ReLU(), nn.Dropout(0.3), nn.Dense(3)))
    whole = fit(df, net, SPEC, training=training, **spec)
    stopped = fit(df, net, SPEC, training=training, checkpoints=plan, callbacks=[Interrupted(after)], **spec)
    assert stopped.stop_reason == "interrupted"
    resumed = fit(df, net, SPEC, training=training, checkpoints=plan, **spec)
    assert np.array_equal(resumed.params, whole.params)
    assert resumed.history["loss"] == whole.history["loss"]


def test_digits_pass_97_percent_and_survive_saving(
    spark: SparkSession, digits: tuple[DataFrame, DataFrame], tmp_path: Path
) -> None:
    train_df, test_df = digits
    net = functools.partial(cnn, filters=(16, 32), hidden=64)
    training = Training(epochs=6, batch_size=96, seed=1)
    model = fit(train_df, net, DIGITS, optimizer=Adam(0.01), schedule=Cosine(), training=training)
    metrics = model.evaluate(test_df)
    assert metrics["accuracy"] >= 0.97
    model.save(str(tmp_path / "model"))
    loaded = sparkdl.load(str(tmp_path / "model"))
    assert loaded.evaluate(test_df) == metrics
    scored = loaded.transform(test_df)
    assert scored.columns == ["pixels", "label", "prediction", "probability"]
    right = scored.filter("prediction = label").count()
    assert right / test_df.count() == pytest.approx(metrics["accuracy"], abs=1e-12)
    sums = scored.select(F.aggregate("probability", F.lit(0.0), lambda a, b: a + b).alias("s"))
    assert sums.filter("abs(s - 1) > 1e-6").count() == 0


def test_nothing_is_left_behind(spark: SparkSession) -> None:
    context = spark.sparkContext
    df = spark.createDataFrame(blobs(40))
    folder = Path(context._temp_dir)  # where PySpark keeps the files of broadcasts
    scratch = Path(str(context.getConf().get("spark.local.dir")))
    before = set(folder.iterdir()), set(context._jsc.getPersistentRDDs())
    train(df)
    with pytest.raises(TrainingError):
        train(df, strategy=TreeAggregate(), callbacks=[Raises()])
    assert (set(folder.iterdir()), set(context._jsc.getPersistentRDDs())) == before
    assert not list(scratch.rglob("shard-*"))


class Raises(Callback):
    """Fails after the first update."""

    def step_end(self, run: Run, logs: Any) -> None:
        raise TrainingError("stop here")


class Broken(nn.Layer):
    """Fails on a worker; a class of a test module, which executors import."""

    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        raise ValueError("the layer says no")

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        return dy


def test_a_worker_s_exception_reaches_the_caller(spark: SparkSession) -> None:
    df = spark.createDataFrame(blobs(40))
    with pytest.raises(TrainingError, match="the layer says no") as error:
        fit(df, nn.Sequential((Broken(), nn.Dense(3))), SPEC)
    assert "at org.apache" not in str(error.value)
    assert train(df).history  # the session goes on


def test_a_task_that_is_tried_again_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame(blobs(40))
    undisturbed = fit(df, nn.Sequential((Stumbles(""), nn.Dense(3))), SPEC, training=Training(epochs=1, batch_size=16))
    net = nn.Sequential((Stumbles(str(tmp_path / "stumbled")), nn.Dense(3)))
    model = fit(df, net, SPEC, training=Training(epochs=1, batch_size=16))
    assert (tmp_path / "stumbled").exists()
    assert np.array_equal(model.params, undisturbed.params)


@dataclass(frozen=True)
class Stumbles(nn.Layer):
    """The identity; fails the first time that it runs in a task, if given a path to remember that by."""

    mark: str

    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        if self.mark and TaskContext.get() is not None and not os.path.exists(self.mark):
            Path(self.mark).touch()
            raise OSError("stumbled")
        return x, None

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        return dy


def test_many_fits_leave_workers_as_they_were(spark: SparkSession) -> None:
    df = spark.createDataFrame(blobs(64, width=2000)).persist()
    net = nn.Sequential((nn.Dense(200), nn.ReLU(), nn.Dense(3)))  # 1.6 MB of weights
    used = []
    for _ in range(10):
        fit(df, net, DataSpec(features=("features",), label="label"), training=Training(epochs=1, batch_size=32))
        used.append(max(spark.sparkContext.parallelize(range(4), 4).map(_resident).collect()))
    df.unpersist()
    assert used[-1] - used[4] < 8 << 20


def _resident(_: int) -> int:
    time.sleep(0.1)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_workers_that_have_trained_do_not_go_through_all_that_they_loaded(spark: SparkSession) -> None:
    """Spark's daemon collects garbage after every task: what numba and the like brought along must be exempt."""
    train(spark.createDataFrame(blobs(40)))
    found = spark.sparkContext.range(8, numSlices=8).map(_watched_objects).collect()
    assert any(loaded for loaded, _ in found)
    assert max(count for loaded, count in found if loaded) < 20_000


def _watched_objects(_: int) -> tuple[bool, int]:
    """Whether this process has trained, and how many objects a collection goes through."""
    return "sparkdl.train.gradient" in sys.modules, len(gc.get_objects())


def test_two_fits_at_once(spark: SparkSession) -> None:
    df = spark.createDataFrame(blobs(40))
    alone = train(df)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: train(df), range(2)))
    assert all(np.array_equal(model.params, alone.params) for model in both)


def test_blas_has_as_many_threads_as_the_task_has_cores(spark: SparkSession) -> None:
    cores = spark.sparkContext.getConf().get("spark.task.cpus", "1")
    assert spark.sparkContext.parallelize([0], 1).map(_threads).collect() == [cores]


def _threads(_: int) -> str:
    return os.environ["OMP_NUM_THREADS"]


def test_a_lost_shard_is_made_anew_while_training(spark: SparkSession) -> None:
    df = spark.createDataFrame(blobs(50))
    undisturbed = train(df, training={"epochs": 2})
    model = train(df, training={"epochs": 2}, callbacks=[LosesShards(spark)])
    assert np.array_equal(model.params, undisturbed.params)


class LosesShards(Callback):
    """Deletes the files of all shards after the first epoch, and makes workers look at their files again."""

    def __init__(self, spark: SparkSession) -> None:
        self.scratch = Path(str(spark.sparkContext.getConf().get("spark.local.dir")))

    def epoch_end(self, run: Run, logs: Any) -> None:
        if run.epoch == 1:
            files = list(self.scratch.rglob("shard-*"))
            assert files
            for file in files:
                file.unlink()
            SparkSession.getActiveSession().sparkContext.parallelize(range(8), 8).foreach(_forget)  # type: ignore[union-attr]


def _forget(_: int) -> None:
    from sparkdl.train import gradient

    gradient._open.clear()


def test_early_stopping_returns_the_best_weights(spark: SparkSession) -> None:
    df = spark.createDataFrame(blobs(60))
    spec = DataSpec(features=("features",), label="label", valid_fraction=0.3)
    stop = EarlyStopping(monitor="val_loss", patience=2)
    training = Training(epochs=40, batch_size=32, seed=1)
    model = fit(df, mlp(32), spec, optimizer=SGD(0.9, 0.9), training=training, callbacks=[stop])
    losses = model.history["val_loss"]
    assert len(losses) < 40
    assert "val_loss" in str(model.stop_reason)
    assert min(losses) == losses[-3]


def test_regression_and_string_labels(spark: SparkSession) -> None:
    root = Path(__file__).resolve().parents[2] / "data" / "wine"
    train_df, test_df = (spark.read.parquet(str(root / f"{part}.parquet")) for part in ("train", "test"))
    features = tuple(c for c in train_df.columns if c != "cultivar")
    spec = DataSpec(features=features, label="cultivar", standardize=True)
    net = nn.Sequential((nn.Dense(16), nn.ReLU(), nn.Dense(3)))
    model = fit(train_df, net, spec, optimizer=Adam(0.02), training=Training(epochs=6, batch_size=16))
    assert model.classes == ("Barbera", "Barolo", "Grignolino")
    assert model.evaluate(test_df)["accuracy"] > 0.9
    scored = model.transform(test_df)
    assert scored.schema["prediction"].dataType == T.StringType()
    values = DataSpec(features=features[1:], label=features[0], standardize=True)
    regression = fit(
        train_df,
        nn.Sequential((nn.Dense(16), nn.Tanh(), nn.Dense(1))),
        values,
        loss=nn.MSE(),
        optimizer=Adam(0.05),
        training=Training(epochs=8, batch_size=16),
    )
    spread = test_df.select(F.var_pop(features[0])).first()[0]  # type: ignore[index]
    figures = regression.evaluate(test_df)
    assert figures["mse"] < spread
    scored = regression.transform(test_df)
    assert "probability" not in scored.columns
    error = scored.select(F.avg((F.col("prediction") - F.col(features[0])) ** 2)).first()[0]  # type: ignore[index]
    assert error == pytest.approx(figures["mse"], rel=1e-5)


def test_vectors_keep_their_type_through_transform(spark: SparkSession) -> None:
    from pyspark.ml.functions import array_to_vector

    df = spark.createDataFrame(blobs(40)).withColumn("features", array_to_vector("features"))
    model = train(df)
    scored = model.transform(df)
    assert scored.schema["features"] == df.schema["features"]
    np.testing.assert_allclose(model.params, train(blobs(40)).params, atol=1e-12, rtol=0)


def test_transform_says_what_is_wrong(spark: SparkSession) -> None:
    model = train(spark.createDataFrame(blobs(40)))
    with pytest.raises(DataError, match="is not in the data"):
        model.transform(spark.range(3).toDF("feature"))
    df = spark.createDataFrame(blobs(4)).withColumn("prediction", F.lit(1))
    with pytest.raises(DataError, match="'prediction' is in the data already"):
        model.transform(df)


def test_what_the_jobs_refuse_before_they_write(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.parquet"):
        job.read(spark, str(tmp_path / "nowhere.parquet"))
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and then nothing of the kind PAR1")
    with pytest.raises(DataError, match=r"rows\.parquet"):
        fit(job.read(spark, str(tmp_path / "rows.parquet")), mlp(), SPEC)
    with pytest.raises(ModelFormatError, match="is not a model's folder"):
        sparkdl.load(str(tmp_path))
    with pytest.raises(ConfigError, match="exists"):
        job.write(spark.range(3), str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["rows.parquet"]
