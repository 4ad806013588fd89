"""The two sides of `cifar.py`: a training of ResNet-20 each, on the same minibatches from the same first weights."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl import nn
from sparkdl.data import DataSpec, Flip, Plan, RandomCrop, ShardReader, augment, spool_local
from sparkdl.ml import fit
from sparkdl.nn.zoo import resnet20
from sparkdl.optim import SGD, Cosine, WarmUp
from sparkdl.train import Training

__all__ = ["Run", "ours", "rival"]

SPEC = DataSpec(
    features=("image",),
    label="label",
    image="encoded",
    shape=(32, 32, 3),
    scale=1 / 255,
    mean=(0.491, 0.482, 0.447),
    std=(0.247, 0.243, 0.262),
)
CHANGES = (RandomCrop(4), Flip())
MOMENTUM, DECAY = 0.9, 1e-4


@dataclass(frozen=True)
class Run:
    """What is trained: `rows` of the folder `data`, for so many epochs."""

    data: Path
    rows: int
    epochs: int
    batch: int
    lr: float
    warm_up: int
    seed: int

    def table(self, part: str) -> pa.Table:
        """The rows of a part, for training the first ones."""
        table = pq.read_table(self.data / f"{part}.parquet", columns=["image", "label"])
        return table.slice(0, self.rows) if part == "train" else table

    @property
    def schedule(self) -> WarmUp:
        """Linear warm-up, then half a cosine."""
        return WarmUp(self.warm_up, then=Cosine())


def ours(run: Run) -> tuple[float, float]:
    """Test accuracy, and the seconds that training took once the images were decoded."""
    started: list[float] = []
    model = fit(
        run.table("train"),
        resnet20,
        SPEC,
        optimizer=SGD(run.lr, MOMENTUM, weight_decay=DECAY),
        schedule=run.schedule,
        training=Training(epochs=run.epochs, batch_size=run.batch, augment=CHANGES, seed=run.seed),
        workers=1,
        on_start=lambda task: started.append(time.perf_counter()),
    )
    seconds = time.perf_counter() - started[0]
    return float(model.evaluate(run.table("test"), workers=1)["accuracy"]), seconds


def rival(run: Run) -> tuple[float, float]:
    """The same by torch, whose net, gradients, optimizer and normalisation they are."""
    import torch

    net = _net(run.seed)
    decayed = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain}]
    optimizer, loss = torch.optim.SGD(groups, run.lr, MOMENTUM), torch.nn.CrossEntropyLoss()
    plan = Plan(run.rows, run.batch, run.seed)
    total = plan.steps * run.epochs
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: run.schedule.factor(step, plan.steps, total, {}))
    with tempfile.TemporaryDirectory() as folder:
        train = spool_local(run.table("train").to_batches(), SPEC, 1, folder)
        reader = ShardReader(train.handles[0], train.info)
        started = time.perf_counter()
        for epoch in range(run.epochs):
            for index in plan.batches(0, run.rows, epoch):
                changed = partial(augment, CHANGES, rows=index, seed=run.seed, epoch=epoch)
                x, y, _ = reader.train_batch(index, changed)
                optimizer.zero_grad()
                loss(net(_images(x)), torch.from_numpy(y)).backward()
                optimizer.step()
                rates.step()
        seconds = time.perf_counter() - started
        reader.close()
        given: dict[str, Any] = {"labels": train.info.labels, "preprocess": train.info.preprocess}
        test = spool_local(run.table("test").to_batches(), train.info.evaluation_spec, 1, folder, **given)
        return _accuracy(net, ShardReader(test.handles[0], test.info)), seconds


def _net(seed: int) -> Any:
    """torch's ResNet-20 with the first weights of ours, and its channels last, in which it is faster."""
    import torch
    from _nets import t_zoo_resnet20

    model = nn.Model(resnet20(SPEC.shape or (), 10), nn.SoftmaxCrossEntropy(), SPEC.shape or ())
    first, net = model.init(np.random.default_rng((seed, 0))), t_zoo_resnet20()
    order = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}  # W (kh, kw, C, F) and (D, units) -> outputs first
    with torch.no_grad():
        for segment, p in zip(model.layout.trainable_segments, net.parameters(), strict=True):
            value = first[segment.start : segment.stop].reshape(segment.shape)
            p.copy_(torch.from_numpy(value.transpose(order[value.ndim]).copy()))
    return net.to(memory_format=torch.channels_last)


def _images(x: Any) -> Any:
    """x (N, H, W, C) as torch has images, without a copy."""
    import torch

    return torch.from_numpy(x).permute(0, 3, 1, 2)


def _accuracy(net: Any, reader: ShardReader) -> float:
    import torch

    net.eval()
    with torch.no_grad():
        hits = [net(_images(x)).argmax(1).numpy() == y for x, y, _ in reader.train_chunks(500)]
    return float(np.concatenate(hits).mean())
