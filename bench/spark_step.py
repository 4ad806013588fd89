"""What Spark costs: a training step against a bare treeAggregate, ingest against df.rdd, memory against its share.

python bench/spark_step.py [--json FILE] [--master local[2]] [--rows N]
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from report import Row, alternate, arguments, report

from sparkdl.backends.spark import SparkBackend
from sparkdl.data import DataSpec, synthetic
from sparkdl.data.spark import spool
from sparkdl.ml import fit
from sparkdl.nn import Model, SoftmaxCrossEntropy
from sparkdl.nn.zoo import mlp
from sparkdl.optim import SGD
from sparkdl.strategies.tree_aggregate import _gradient
from sparkdl.train import MetricSet, Part, Run, Task, Training
from sparkdl.train.update import apply_update

DIGITS = Path(__file__).resolve().parents[1] / "data/digits/train.parquet"
SPEC = DataSpec(features=("features",), label="label")
WORKERS = 2
RUNS = 7
SHARE = 256 << 20  # bytes that a worker may have, for the memory row


def step_row(spark: SparkSession) -> Row:
    """One update of a 10 MB model on small minibatches, and rdd.treeAggregate of vectors of its size."""
    table = pa.Table.from_batches(synthetic(2000, (784,), 10, seed=0))
    net = mlp((784,), 10, hidden=(1380, 1024))
    model = Model(net, SoftmaxCrossEntropy(), (784,))
    backend, context = SparkBackend(spark), spark.sparkContext
    with spool(spark.createDataFrame(table), SPEC, WORKERS) as shards:
        training = Training(batch_size=64)
        metrics = MetricSet(model.loss, (), model.out_shape)
        task = Task(uuid.uuid4().hex, model, SGD(0.01, momentum=0.9), training, shards.info, metrics)
        run = Run(model.init(np.random.default_rng(0)))
        run.opt_state = task.optimizer.init(run.params[: model.layout.num_trainable])
        vectors = context.parallelize(range(WORKERS), WORKERS).persist()
        size = model.layout.size
        with backend.share(task) as shared:

            def ours() -> None:
                with backend.share(run.params) as params:
                    fn = partial(_gradient, shared, params, 0, run.step % task.steps_per_epoch)
                    part = backend.tree_aggregate(shards, fn, Part.plus, 1)
                apply_update(task, run, part.vec)

            def rival() -> None:
                vectors.treeAggregate(None, partial(_add_ones, size), _add)

            seconds = alternate(ours, rival, RUNS)
    return Row.less_is_better(f"step of a {size * 4 / 1e6:.0f} MB model vs bare treeAggregate", *seconds, "s")


def _add_ones(size: int, total: Any, _: int) -> Any:
    return _add(total, np.ones(size, np.float32))


def _add(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else np.add(a, b, out=a)


def ingest_row(spark: SparkSession, rows: int, folder: Path) -> Row:
    """A DataFrame of images (the shipped digits, enlarged to 28 x 28) into one file a worker, both ways."""
    path = str(folder / "images")
    digits = pq.read_table(DIGITS)
    small = np.array(digits["pixels"].to_pylist(), np.int16).reshape(-1, 8, 8) * 15
    large = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2))).reshape(-1, 784)
    again = np.arange(rows) % len(large)
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(large[again].ravel()), 784).cast(pa.list_(pa.int16()))
    table = pa.table({"features": pixels, "label": digits["label"].to_numpy()[again]})
    spark.createDataFrame(table).repartition(4).write.parquet(path)
    df = spark.read.parquet(path)

    def ours() -> None:
        with closing(_Closing(spool(df, SPEC, WORKERS))):
            pass

    def rival() -> None:
        df.rdd.repartition(WORKERS).mapPartitionsWithIndex(partial(_write, str(folder))).count()

    return Row.less_is_better(f"ingest of {rows:,} rows of 784 vs df.rdd", *alternate(ours, rival, 3, warm_up=3), "s")


class _Closing:
    def __init__(self, shards: Any) -> None:
        self.close = shards.delete


def _write(folder: str, part: int, rows: Iterator[Any]) -> Iterator[int]:
    items = list(rows)
    np.save(f"{folder}/{part}-x.npy", np.array([r.features for r in items], np.int16))
    np.save(f"{folder}/{part}-y.npy", np.array([r.label for r in items]))
    yield len(items)


def memory_row(spark: SparkSession, folder: Path) -> Row:
    """The most memory that a worker ever had, interpreter and mapped pages included, on a shard of 4 x SHARE."""
    width = 4096
    path = str(folder / "large")
    spark.range(0, 4 * SHARE // width, numPartitions=8).selectExpr(
        f"encode(repeat(sha2(string(id), 256), {width // 64}), 'UTF-8') as features", "cast(id % 2 as int) as label"
    ).write.parquet(path)
    training = Training(epochs=2, batch_size=512)
    fit(spark.read.parquet(path), mlp((width,), 2, hidden=(16,)), SPEC, training=training, workers=1)
    peak = max(_high_water(pid) for pid in _workers())
    name = f"a worker's peak memory on a shard of {4 * SHARE >> 20} MiB vs {SHARE >> 20} MiB"
    return Row.less_is_better(name, peak / 2**20, SHARE / 2**20, "MiB")


def _workers() -> Iterator[int]:
    """Python workers on this machine, those of the spooling and those of the training."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"pyspark.daemon" in (entry / "cmdline").read_bytes():
            yield int(entry.name)


def _high_water(pid: int) -> int:
    """Highest resident bytes so far, interpreter and mapped pages included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--rows", type=int, default=60_000, help="of the ingest trial")
    args = parser.parse_args()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    spark = (
        SparkSession.builder.master(args.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")  # so that one side does not pay for the garbage of the other
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Memory first: workers are reused, and the other trials need more of it.
        memory, ingest = memory_row(spark, folder), ingest_row(spark, args.rows, folder)
        report([step_row(spark), ingest, memory], args.json)
    spark.stop()


if __name__ == "__main__":
    main()
