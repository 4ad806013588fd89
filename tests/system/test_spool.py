"""From a DataFrame to shards on executors: one pass, the same rows as without Spark, nothing left behind."""

from __future__ import annotations

import gc
import glob
import logging
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType, StructField, StructType

from sparkdl.data import DataSpec, LabelMap, Plan, Shard, ShardReader, packed_rows, resolve, spool_local
from sparkdl.data.spark import packing_of, readable, spool
from sparkdl.errors import ConfigError, DataError, TrainingError

SPEC = DataSpec(("x",), "y", shape=(3,), valid_fraction=0.2)


def table(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3))
    return pa.table(
        {
            "x": pa.array(x.tolist(), pa.list_(pa.float64())),
            "y": pa.array(rng.integers(0, 3, rows)).cast(pa.int32()),
            "small": pa.array(rng.integers(0, 256, (rows, 4)).tolist(), pa.list_(pa.uint8())),
            "name": pa.array(["abc"[k] for k in rng.integers(0, 3, rows)]),
            "raw": pa.array([r.tobytes() for r in rng.integers(0, 256, (rows, 6)).astype(np.uint8)]),
            "a": pa.array(rng.integers(0, 100, rows)).cast(pa.int32()),
            "b": pa.array(rng.integers(0, 2, rows).astype(bool)),
            "w": pa.array(rng.random(rows)),
            "a2": pa.array(rng.random(rows)),
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Parquet with many row groups of unequal size, in two files."""
    folder = tmp_path_factory.mktemp("table")
    data = table()
    pq.write_table(data.slice(0, 300), folder / "a.parquet", row_group_size=70)
    pq.write_table(data.slice(300), folder / "b.parquet", row_group_size=10)
    return str(folder)


def content(shards):
    """(hashes, x, y, w) of the training rows and of the validation rows, in the order of their numbers."""
    out = []
    for split in ("train", "valid"):
        h, x, y, w = [], [], [], []
        for handle in shards.handles:
            with Shard.open(getattr(handle, split)) as shard:
                h += shard.hashes.tolist()
            reader = ShardReader(handle, shards.info)
            for batch in reader.train_chunks(64) if split == "train" else reader.valid_chunks(64):
                for rows, values in zip((x, y, w), batch, strict=True):
                    rows += [] if values is None else values.tolist()
            reader.close()
        out.append((h, x, y, w))
    return out


def files(shards):
    return [p for h in shards.handles for p in (h.train.path, h.valid.path) if p]


SPECS = {
    "doubles": SPEC,
    "unsigned bytes": DataSpec(("small",), "name", "w", valid_fraction=0.1, scale=1 / 255),
    "raw bytes": DataSpec(("raw",), "y", shape=(1, 2, 3), key=("name", "a")),
    "scalars": DataSpec(("a", "b", "w"), "a2", target="values", standardize=True, dtype="float64"),
    "integers": DataSpec(("a", "b"), "name", valid_column="b"),
    "vector target": DataSpec(("a",), "x", target="values"),
}


@pytest.mark.parametrize("name", SPECS)
def test_spark_and_local_give_the_same_rows_in_the_same_order(spark, path, tmp_path, name):
    spec = SPECS[name]
    with spool(spark.read.parquet(path), spec, 3) as far, spool_local(table().to_batches(), spec, 3, tmp_path) as near:
        assert content(far) == content(near)
        assert far.info.train_rows + far.info.valid_rows == 400
        assert far.info.to_json() == near.info.to_json()
        assert [h.train[1] for h in far.handles] == [h.train.rows for h in near.handles]
        assert [h.train.checksum for h in far.handles] == [h.train.checksum for h in near.handles]


@pytest.mark.parametrize(("parts", "layout"), [(1, "as it lies"), (2, "one partition"), (5, "shuffled")])
def test_rows_and_numbers_do_not_depend_on_partitions(spark, path, tmp_path, parts, layout):
    df = spark.read.parquet(path)
    df = {"as it lies": df, "one partition": df.coalesce(1), "shuffled": df.repartition(7, "w")}[layout]
    with spool(df, SPEC, parts) as far, spool_local(table().to_batches(), SPEC, 1, tmp_path) as near:
        assert content(far) == content(near)
        assert [h.part for h in far.handles] == list(range(parts))


def test_jobs_over_the_handles_see_the_global_batches(spark, path, tmp_path):
    with spool(spark.read.parquet(path), SPEC, 3) as shards:
        info, plan = shards.info, Plan(shards.info.train_rows, 50, 7)
        assert [h.part for h in shards.rdd.collect()] == [0, 1, 2]
        assert shards.rdd.is_cached

        def batch(handle, step=2):
            reader = ShardReader(handle, info)
            start = info.train_offset(handle.part)
            return reader.train_batch(plan.batches(start, start + reader.train_rows, 0)[step])[0].tolist()

        got = [row for rows in shards.rdd.map(batch).collect() for row in rows]
    with spool_local(table().to_batches(), SPEC, 1, tmp_path) as near:
        reader = ShardReader(near.handles[0], near.info)
        expected = reader.train_batch(plan.batches(0, plan.rows, 0)[2])[0].tolist()
    assert len(got) == 50
    assert sorted(got) == sorted(expected)


def vectors(spark, rows):
    schema = StructType([StructField("x", VectorUDT()), StructField("y", IntegerType())])
    return spark.createDataFrame([(v, i % 2) for i, v in enumerate(rows)], schema)


def test_dense_sparse_and_mixed_vectors(spark):
    dense = [[0.0, 1.5, 0.0], [2.0, 0.0, 0.25], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
    sparse = [Vectors.sparse(3, {i: v for i, v in enumerate(row) if v}) for row in dense]
    kinds = [
        [Vectors.dense(v) for v in dense],
        sparse,
        [Vectors.dense(dense[0]), *sparse[1:3], Vectors.dense(dense[3])],
    ]
    seen = []
    for rows in kinds:
        with spool(vectors(spark, rows), DataSpec(("x",), "y"), 2) as shards:
            seen.append(content(shards))
            assert shards.info.shape == (3,)
    assert seen[0] == seen[1] == seen[2]
    assert sorted(seen[0][0][1]) == sorted(dense)
    with pytest.raises(DataError, match="column 'x': null in 1"):
        spool(vectors(spark, [*kinds[0], None]), DataSpec(("x",), "y"), 2)


def test_three_rows_in_five_partitions(spark):
    df = spark.createDataFrame([(1.0, 0), (2.0, 1), (3.0, 0)], "x double, y int").repartition(5)
    with spool(df, DataSpec(("x",), "y"), 5) as shards:
        assert sum(shards.info.train_counts) == 3
        assert len(shards.handles) == 5
        assert shards.rdd.map(lambda h: h.train.rows).sum() == 3
        assert sorted(content(shards)[0][1]) == [[1.0], [2.0], [3.0]]


def test_a_second_data_frame_is_held_out(spark, path):
    df = spark.read.parquet(path).select("x", "y")
    other = df.limit(30).selectExpr("y", "cast(x as array<float>) as x")  # other order, other type
    with spool(df, DataSpec(("x",), "y"), 2, valid_df=other) as shards:
        assert (shards.info.train_rows, shards.info.valid_rows) == (400, 30)
    with pytest.raises(ConfigError, match=r"exclude data\.valid_fraction"):
        spool(df, SPEC, 2, valid_df=other)
    with pytest.raises(DataError, match="column 'y' of the validation data is string"):
        spool(df, DataSpec(("x",), "y"), 2, valid_df=other.selectExpr("x", "cast(y as string) as y"))


def test_labels_of_a_model_are_kept(spark, path):
    df = spark.read.parquet(path)
    with spool(df.filter("y < 2"), SPEC, 2, labels=LabelMap((0, 1, 2))) as shards:
        assert shards.info.labels == LabelMap((0, 1, 2))
    with pytest.raises(DataError, match="label 2 is not one of the 2 classes 0, 1"):
        spool(df, SPEC, 2, labels=LabelMap((0, 1)))


def test_odd_column_names(spark):
    df = spark.createDataFrame([(1.0, 0), (2.0, 1)], "`petal.length (cm)` double, `la``bel` int")
    with spool(df, DataSpec(("petal.length (cm)",), "la`bel"), 1) as shards:
        assert shards.info.train_rows == 2


def scratch_files(spark):
    """What lies in the executors' scratch space of shards; the fixture's `spark.local.dir`."""
    folder = spark.sparkContext.getConf().get("spark.local.dir") or "/tmp"
    return glob.glob(f"{folder}/**/sparkdl-*", recursive=True)


def test_shards_lie_in_spark_s_scratch_space_and_are_deleted(spark, path):
    df = spark.read.parquet(path)
    with spool(df, SPEC, 2) as shards:
        assert len(files(shards)) == 4
        assert all(os.path.exists(p) for p in files(shards))
        assert any(p in files(shards)[0] for p in scratch_files(spark))
    assert not any(os.path.exists(p) for p in files(shards))
    assert not shards.rdd.is_cached
    assert scratch_files(spark) == []
    shards.delete()  # once more does no harm


def test_fits_in_quick_succession_leave_nothing(spark, path):
    df = spark.read.parquet(path)
    for _ in range(3):
        spool(df, SPEC, 2).delete()
    assert scratch_files(spark) == []
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()
    # Workers that have served a fit do not go through all that they have loaded after every task.
    assert any(spark.sparkContext.range(4, numSlices=4).map(lambda _: gc.get_freeze_count() > 0).collect())


ROWS = [([1.0, 2.0, 3.0], 0), ([4.0, 5.0, 6.0], 1), ([7.0, 8.0, 9.0], 1)]
SCHEMA = StructType([StructField("x", ArrayType(DoubleType())), StructField("y", IntegerType())])
PLAIN = DataSpec(("x",), "y")

BAD = {
    "NaN": ([*ROWS, ([1.0, math.nan, 3.0], 0)], {}, r"1 of 4 rows .*column 'x': NaN in 1.*: \[1.0, nan, 3.0\]"),
    "null label": ([*ROWS, ([1.0, 2.0, 3.0], None)], {}, "column 'y': null in 1"),
    "ragged": ([*ROWS, ([1.0], 0)], {"shape": (3,)}, "wrong length in 1.*1 elements, expected 3"),
    "one class": (ROWS[1:], {}, "at least two classes; the label column holds 1 only"),
    "empty": ([], {}, "the data have no rows"),
    "missing": (ROWS, {"label": "why"}, "column 'why' is not in the data"),
    "missing feature": (ROWS, {"features": ("xs",)}, "column 'xs' is not in the data. Did you mean 'x'?"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_one_clear_error_and_leave_nothing_behind(spark, name):
    rows, options, words = BAD[name]
    df = spark.createDataFrame(rows, SCHEMA).repartition(2)
    spec = DataSpec(**({"features": ("x",), "label": "y"} | options))
    with pytest.raises(DataError, match=words) as caught:
        spool(df, spec, 2)
    assert "Traceback" not in str(caught.value)
    assert scratch_files(spark) == []
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()


def test_string_features_and_string_values_are_refused(spark):
    schema = StructType([StructField("x", StringType()), StructField("y", StringType())])
    df = spark.createDataFrame([("a", "b")], schema)
    with pytest.raises(DataError, match=r"column 'x' has type string, .*StringIndexer"):
        spool(df, DataSpec(("x",), "y"), 1)
    with pytest.raises(DataError, match=r'data\.target = "values" needs numbers'):
        spool(df.selectExpr("1.0 as x", "y"), DataSpec(("x",), "y", target="values"), 1)


@pytest.mark.parametrize(("policy", "rows"), [("skip", 3), ("keep", 5)])
def test_policies(spark, caplog, policy, rows):
    df = spark.createDataFrame([*ROWS, ([1.0, math.nan, None], 0), (None, 1)], SCHEMA)
    with (
        caplog.at_level(logging.WARNING),
        spool(df, DataSpec(("x",), "y", shape=(3,), handle_invalid=policy), 2) as shards,
    ):
        x = np.array(content(shards)[0][1])
        assert x.shape == (rows, 3)
        assert np.isnan(x).sum() == (0 if policy == "skip" else 5)
    assert f'data.handle_invalid = "{policy}"' in caplog.text


def test_a_damaged_parquet_file_is_named(spark, tmp_path):
    for name in ("good", "bad"):
        pq.write_table(table(), tmp_path / f"{name}.parquet", compression="none")
    damaged = bytearray((tmp_path / "bad.parquet").read_bytes())
    damaged[4:4000] = bytes(3996)
    (tmp_path / "bad.parquet").write_bytes(damaged)
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read") as caught:
        spool(spark.read.parquet(str(tmp_path)), SPEC, 2)
    assert "\tat " not in str(caught.value)
    assert scratch_files(spark) == []


def test_errors_of_the_user_s_own_plan_are_readable(spark):
    df = spark.range(4).selectExpr("1 / (id - 2) as x", "id as y")
    with pytest.raises(DataError, match="Division by zero"):
        spool(df, DataSpec(("x",), "y"), 1)

    def broken(batches):
        yield from batches
        raise RuntimeError("the user's function fell over")

    df = spark.range(4).mapInArrow(broken, "id long").selectExpr("id as x", "id as y")
    with pytest.raises(
        TrainingError, match="Spark could not prepare the data: the user's function fell over"
    ) as caught:
        spool(df, DataSpec(("x",), "y"), 1)
    assert "\n" not in str(caught.value)


def test_readable_finds_the_cause():
    python = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: "
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: "
        'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
        "    raise ValueError(message)\nsparkdl.errors.DataError: column 'x' is bad:\nsecond line\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n\nDriver stacktrace:\n\tat b.c"
    )
    assert readable(RuntimeError(python)) == "column 'x' is bad:\nsecond line"
    java = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b\n"
        "Caused by: java.lang.IllegalStateException: outer\n\tat a.b\n"
        "Caused by: java.io.IOException: No space left\n\tat a.b"
    )
    assert readable(RuntimeError(java)) == "No space left"
    assert readable(RuntimeError("plain")) == "plain"


def test_scoring_in_spark_packs_the_same_features(spark, path):
    df = spark.read.parquet(path).select("small")
    packing = packing_of(df, DataSpec(("small",), shape=(2, 2)))

    def total(batches):
        for b in batches:
            x, usable = packed_rows(b, packing)
            yield pa.RecordBatch.from_pydict({"rows": [int(usable.sum())], "total": [int(x.sum())]})

    got = df.mapInArrow(total, "rows long, total long").toPandas().sum()
    assert got["rows"] == 400
    assert got["total"] == np.sum(table()["small"].to_pylist())
    assert packing.features.dtype == resolve(DataSpec(("small",), shape=(2, 2)), table().schema).features.dtype


def test_ingest_of_mnist(spark, shared_data: Path):
    df = spark.read.parquet(str(shared_data / "mnist" / "test.parquet"))
    spec = DataSpec(("features",), "label", shape=(28, 28, 1), scale=1 / 255)
    with spool(df, spec, 2) as shards:
        assert shards.info.train_rows == 10_000
        assert shards.info.labels == LabelMap(tuple(range(10)))
        share = np.array(shards.info.train_counts) / 10_000
        assert np.abs(share - 0.5).max() < 0.05
        x, y, _ = ShardReader(shards.handles[0], shards.info).train_batch(np.arange(100))
        assert x.shape == (100, 28, 28, 1)
        assert x.dtype == np.float32
        assert 0.1 < x.mean() < 0.16  # of all MNIST: 0.13
        assert y.dtype == np.int64
