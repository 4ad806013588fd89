"""The two sides of `ops.py`, each in a process of its own, as it comes: its allocator, its threads, its memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

__all__ = ["Side"]

LR, MOMENTUM = 0.01, 0.9


class Side:
    """A process that makes one update of a net whenever it is told to: "ours", "torch" or "torch channels last"."""

    def __init__(self, kind: str, net: str, threads: int) -> None:
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process
        self.process = process(target=_serve, args=(theirs, kind, net, threads), daemon=True)
        self.process.start()
        self._answer()

    def step(self) -> float:
        """Seconds of one update."""
        self.pipe.send("step")
        return self._answer()

    def close(self) -> float:
        """End the process; the most memory it ever had beyond that before the net was made, in MB."""
        self.pipe.send("end")
        mb = self._answer()
        self.process.join()
        return mb

    def _answer(self) -> float:
        answer: float = self.pipe.recv()
        return answer


def _serve(pipe: Connection, kind: str, net: str, threads: int) -> None:
    import torch
    from _nets import SUITE

    from sparkdl.ops.norm import channel_sum

    torch.set_num_threads(threads)
    channel_sum(np.ones((2, 2)))  # loads what compiled kernels need, as torch's are loaded

    entry, rng = SUITE[net], np.random.default_rng(1)
    x = rng.standard_normal((entry.batch, *entry.in_shape), dtype=np.float32)
    y = rng.integers(entry.classes, size=entry.batch)
    before = _megabytes()
    step = _ours(entry, x, y, threads) if kind == "ours" else _torch(entry, x, y, kind != "torch")
    pipe.send(0.0)
    while pipe.recv() == "step":
        started = time.perf_counter()
        step()
        pipe.send(time.perf_counter() - started)
    pipe.send(_megabytes() - before)


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _ours(entry: Any, x: Any, y: Any, threads: int) -> Callable[[], object]:
    """One update by sparkdl, as a worker makes it."""
    from sparkdl import nn, optim
    from sparkdl.train import memory
    from sparkdl.train.threads import Threads

    memory.hold()
    shared = Threads(threads)
    model = nn.Model(entry.ours(), nn.SoftmaxCrossEntropy(), entry.in_shape)
    layout, rng, optimizer = model.layout, np.random.default_rng(0), optim.SGD(LR, MOMENTUM)
    params, grad, n = model.init(rng), np.zeros(layout.size, np.float32), layout.num_trainable
    state = optimizer.init(params[:n])

    def step() -> None:
        sums, _ = shared.accumulate(model, params, grad, x, y, None, nn.Ctx(train=True, rng=rng), first=True)
        mean = grad[:n]
        mean /= sums.weight
        optimizer.step(params[:n], mean, state, LR, layout.trainable_segments)
        params[n:] = grad[n:] / sums.rows

    return step


def _torch(entry: Any, x: Any, y: Any, channels_last: bool) -> Callable[[], object]:
    """One update by torch."""
    import torch

    torch.manual_seed(0)
    net, inputs, labels = entry.rival(), torch.tensor(x), torch.tensor(y)
    if inputs.ndim == 4:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        inputs = inputs.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        net = net.to(memory_format=layout)
    optimizer, loss = torch.optim.SGD(net.parameters(), LR, MOMENTUM), torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(net(inputs), labels).backward()
        optimizer.step()

    return step
