"""What a step costs when workers train among themselves: against tree aggregation, bare processes, no overlap.

python bench/allreduce_step.py [--json FILE] [--quick]
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import pyarrow as pa
from _networks import DRIVER, Enter, can_throttle, throttled_hosts
from pyspark.sql import SparkSession
from report import Row, arguments, report

from sparkdl.backends import ProcessBackend
from sparkdl.data import DataSpec, synthetic
from sparkdl.ml import fit
from sparkdl.nn.zoo import mlp
from sparkdl.optim import SGD
from sparkdl.strategies import AllReduce, Strategy, TreeAggregate
from sparkdl.train import Training

SPEC = DataSpec(features=("features",), label="label")
WORKERS = 2
TEN_MB = functools.partial(mlp, hidden=(1380, 1024))  # 2.5 million parameters
DEEP = functools.partial(mlp, hidden=(768,) * 8)  # 4.7 million, in layers of the same size
DEEP_BYTES = 4 * (784 * 768 + 7 * 768 * 768 + 768 * 10)


def step_s(data: Any, strategy: Strategy, net: Any, steps: int, batch: int, master: Any = "threads") -> float:
    """Seconds of an update: the median over the epochs of a fit, the first left out."""
    training = Training(epochs=4, batch_size=batch, steps_per_epoch=steps)
    model = fit(
        data, net, SPEC, optimizer=SGD(0.01, 0.9), training=training, strategy=strategy, workers=WORKERS, master=master
    )
    return statistics.median(model.history["seconds"][1:]) / steps


def alternated(sides: list[Any], runs: int) -> list[float]:
    """The median of each side's figure, the sides taken in turn."""
    found = [[side() for side in sides] for _ in range(runs)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def against_tree(df: Any, runs: int) -> Row:
    """A 10 MB model on small minibatches: what remains is the cost of bringing gradients together."""
    ours, rival = alternated(
        [
            lambda: step_s(df, AllReduce(), TEN_MB, 30, 64),
            lambda: step_s(df, TreeAggregate(), TEN_MB, 5, 64),
        ],
        runs,
    )
    return Row.less_is_better("step of a 10 MB model vs tree aggregation", ours, rival, "s")


def against_processes(df: Any, table: pa.Table, runs: int) -> Row:
    """The same loop over the same shards, inside a barrier stage and in bare processes."""
    ours, rival = alternated(
        [
            lambda: step_s(df, AllReduce(bucket_mb=0), TEN_MB, 30, 256),
            lambda: step_s(table, AllReduce(bucket_mb=0), TEN_MB, 30, 256, "processes"),
        ],
        runs,
    )
    return Row.less_is_better("step inside Spark vs bare processes", ours, rival, "s")


def overlap(table: pa.Table, runs: int) -> Row:
    """Two hosts whose link is as slow as to take half of a step: with buckets, and with one message at the end."""
    (compute,) = alternated([lambda: step_s(table, AllReduce(bucket_mb=0), DEEP, 7, 1024, "processes")], runs)
    rate = 8 * DEEP_BYTES / compute
    with throttled_hosts(WORKERS, f"{int(rate)}bit") as hosts:
        slow = ProcessBackend(WORKERS, Enter(tuple(hosts)), DRIVER)
        ours, rival = alternated(
            [
                lambda: step_s(table, AllReduce(bucket_mb=2), DEEP, 7, 1024, slow),
                lambda: step_s(table, AllReduce(bucket_mb=0), DEEP, 7, 1024, slow),
            ],
            2 * runs - 1,
        )
    print(f"overlap: {compute:.3f} s of a step without communication, links of {rate / 1e6:.0f} Mbit/s")
    return Row.less_is_better("step on slow links, overlap vs none", ours, rival, "s")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="one run of each side")
    args = parser.parse_args()
    runs = 1 if args.quick else 3
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    table = pa.Table.from_batches(synthetic(8000, (784,), 10, seed=0))
    rows = [overlap(table, runs)] if can_throttle() else []
    spark = (
        SparkSession.builder.master(f"local[{WORKERS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    df = spark.createDataFrame(table)
    report([against_tree(df, runs), against_processes(df, table, runs), *rows], args.json)
    spark.stop()


if __name__ == "__main__":
    main()
