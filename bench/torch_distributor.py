"""A whole job, from the call to the trained model, against TorchDistributor on the same local cluster.

python bench/torch_distributor.py [--json FILE] [--rows N] [--epochs N]

Both sides train the same CNN on the same images (the shipped digits, enlarged to 28 x 28), with the same global batch
and number of epochs, on two executors of one core. PyTorch reads the Parquet file by itself and keeps it in memory;
ours takes the DataFrame and spools it. Needs torch: pip install -e .[bench].
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from report import Row, arguments, report

from sparkdl.data import DataSpec
from sparkdl.ml import fit
from sparkdl.nn.zoo import cnn
from sparkdl.optim import SGD
from sparkdl.strategies import AllReduce
from sparkdl.train import Training

ROOT = Path(__file__).resolve().parents[1]
WORKERS, BATCH, LR, MOMENTUM = 2, 256, 0.05, 0.9


def images(path: str, rows: int) -> None:
    """The digits, enlarged and repeated, as Parquet files with features (uint8 as int16) and label."""
    digits = pq.read_table(ROOT / "data/digits/train.parquet")
    small = np.array(digits["pixels"].to_pylist(), np.int16).reshape(-1, 8, 8) * 15
    large = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2))).reshape(-1, 784)
    again = np.arange(rows) % len(large)
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(large[again].ravel()), 784).cast(pa.list_(pa.int16()))
    pq.write_table(
        pa.table({"features": pixels, "label": digits["label"].to_numpy()[again]}), path, row_group_size=5000
    )


def torch_job(path: str, epochs: int) -> float:
    """One rank of the rival; returns the loss of the last minibatch."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    table = pq.read_table(path)
    x = torch.from_numpy(table["features"].combine_chunks().values.to_numpy().reshape(-1, 1, 28, 28))
    y = torch.from_numpy(table["label"].to_numpy().astype(np.int64))
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10)),
        )
    )
    optimizer = torch.optim.SGD(net.parameters(), LR, MOMENTUM)
    loss = torch.zeros(())
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))[rank::size]
        for index in order.split(BATCH // size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[index].float() / 255), y[index])
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
    return float(loss)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    os.environ.update(
        PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", SPARK_HOME=str(Path(pyspark.__file__).parent)
    )
    spark = (
        SparkSession.builder.master(f"local-cluster[{WORKERS},1,2048]")
        .config("spark.executor.memory", "2g")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "bench")]))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/images.parquet"
        images(path, args.rows)
        spec = DataSpec(features=("features",), label="label", shape=(28, 28, 1), scale=1 / 255)
        training = Training(epochs=args.epochs, batch_size=BATCH)
        net = partial(cnn, filters=(16, 32), hidden=128)
        df = spark.read.parquet(path)

        def ours() -> Any:
            return fit(
                df, net, spec, optimizer=SGD(LR, MOMENTUM), training=training, strategy=AllReduce(), workers=WORKERS
            )

        def rival() -> Any:
            return TorchDistributor(WORKERS, local_mode=False, use_gpu=False).run(torch_job, path, args.epochs)

        seconds: dict[str, list[float]] = {"ours": [], "rival": []}
        for _ in range(2):  # the first round starts Python workers and fills caches; both are printed
            for name, side in (("ours", ours), ("rival", rival)):
                started = time.perf_counter()
                side()
                seconds[name].append(time.perf_counter() - started)
        rows = [
            Row.less_is_better(f"call to model, {what}, {args.rows:,} rows, {args.epochs} epochs", a, b, "s")
            for what, a, b in zip(("cold", "warm"), seconds["ours"], seconds["rival"], strict=True)
        ]
        report(rows, args.json)
    spark.stop()


if __name__ == "__main__":
    main()
