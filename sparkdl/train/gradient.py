"""What a worker computes over its shard: gradient sums of one update, metric sums of an evaluation."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparkdl.data import Handle, ShardReader, augment
from sparkdl.nn import Array, Ctx
from sparkdl.nn.model import Objective
from sparkdl.train import memory
from sparkdl.train.mixup import mixture
from sparkdl.train.profile import Profile
from sparkdl.train.task import Task
from sparkdl.train.threads import Threads, cores

__all__ = ["TAIL", "Part", "ShardWorker", "open_worker"]

TAIL = 4  # a step vector is [trainable gradients | buffers | loss, weight, rows, wishes to stop]
DROPOUT = 1  # purpose of a generator in (seed, purpose, epoch, step, shard)
MAX_OPEN = 8  # shards one process keeps mapped: those of two fits side by side on four threads


class Part(NamedTuple):
    """One shard's contribution, or the sum of several.

    `vec` is a step vector, or empty for an evaluation; `metrics` are the float64 sums of a MetricSet; `data_s` is the
    time that reading took; `profile` tells, when asked for, where all of it went.
    """

    vec: Array
    metrics: Array
    data_s: float = 0.0
    profile: Profile | None = None

    def plus(self, other: Part) -> Part:
        """The sum of both; this one's arrays are changed in place."""
        np.add(self.vec, other.vec, out=self.vec)
        np.add(self.metrics, other.metrics, out=self.metrics)
        if self.profile is not None and other.profile is not None:
            self.profile.merge(other.profile)
        return self._replace(data_s=self.data_s + other.data_s)


class ShardWorker:
    """One shard together with what computing over it reuses from step to step.

    A worker that meets others within a step sets `ready` and `sync` for its contexts (see `nn.Ctx`). `ready` hears of
    the last minibatch of an update only: until then more is to be added. `outer` is for its contexts as well.
    """

    def __init__(self, task: Task, handle: Handle) -> None:
        self.task = task
        self.part = handle.part
        self.reader = ShardReader(handle, task.info)
        self._epoch = -1
        self._batches: Any = ()
        self.ready: Callable[[str], None] | None = None
        self.sync: Callable[[Array], None] | None = None
        self.outer: Callable[[Any, Array, Array], bool] | None = None
        self.threads = Threads(cores())
        memory.hold()

    def gradient(self, params: Array, epoch: int, step: int, out: Array | None = None) -> Part:
        """Step vector of update `step` of `epoch` over this shard's rows of it; zeros where there are none.

        It is written into `out` (layout.size + TAIL,) where that is given.
        """
        task, profile = self.task, Profile() if self.task.training.profile else None
        size = task.model.layout.size
        vec = np.empty(size + TAIL, params.dtype) if out is None else out
        vec[size:] = 0
        grad = vec[:size]
        acc = task.metrics.zeros()
        rng = np.random.default_rng((task.training.seed, DROPOUT, epoch, step, self.part))
        ctx = Ctx(train=True, rng=rng, clock=profile, sync=self.sync, outer=self.outer)
        loss = weight = data_s = 0.0
        rows = 0
        minibatches = self._minibatches(epoch, step)
        if not minibatches:
            grad[:] = 0
        with np.errstate(all="ignore"):  # what is not finite is judged once, after the reduction
            for i, index in enumerate(minibatches, 1):
                if i == len(minibatches):
                    ctx = replace(ctx, ready=self.ready)
                started = time.perf_counter()
                with ctx.span("data"):
                    x, y, w = self.reader.train_batch(index, self._augmented(index, epoch))
                    x, objective = self._mixed(x, index, epoch)
                data_s += time.perf_counter() - started
                with ctx.span("compute"):
                    sums, z = self.threads.accumulate(task.model, params, grad, x, y, w, ctx, objective, first=i == 1)
                with ctx.span("metrics"):
                    task.metrics.update(acc, z, y, w, known=(sums.loss, sums.weight))
                loss, weight, rows = loss + sums.loss, weight + sums.weight, rows + sums.rows
        vec[size : size + 3] = loss, weight, rows
        return Part(vec, acc, data_s, profile)

    def evaluate(self, params: Array) -> Part:
        """Metric sums over this shard's validation rows."""
        metrics, model = self.task.metrics, self.task.model
        acc = metrics.zeros()
        with np.errstate(all="ignore"):
            for x, y, w in self.reader.valid_chunks(model.rows_at_once(params.dtype)):
                metrics.update(acc, self.threads.outputs(model, params, x), y, w)
        return Part(np.zeros(0, params.dtype), acc)

    def close(self) -> None:
        """Release the shard."""
        self.threads.close()
        self.reader.close()

    def _augmented(self, index: Array, epoch: int) -> Callable[[Array], Array] | None:
        """What changes the images of these rows in this epoch; None where nothing does."""
        steps, seed = self.task.training.augment, self.task.training.seed
        if not steps:
            return None
        rows = self.task.info.train_offset(self.part) + index
        return lambda x: augment(steps, x, rows, seed, epoch)

    def _mixed(self, x: Array, index: Array, epoch: int) -> tuple[Array, Objective | None]:
        """With mixup, x mixed and the loss of mixtures; x and None without."""
        alpha, offset = self.task.training.mixup, self.task.info.train_offset(self.part)
        if alpha is None:
            return x, None
        mixed = mixture(alpha, self.task.training.seed, epoch, offset + index)
        return mixed.inputs(x), partial(mixed.loss, self.task.model.loss)

    def _minibatches(self, epoch: int, step: int) -> Any:
        if epoch != self._epoch:
            offset = self.task.info.train_offset(self.part)
            stop = offset + self.reader.train_rows
            self._batches, self._epoch = self.task.plan.batches(offset, stop, epoch), epoch
        k = self.task.training.accumulate
        return [self._batches[i] for i in range(step * k, min((step + 1) * k, self.task.plan.steps))]


_open: OrderedDict[tuple[str, int], ShardWorker] = OrderedDict()
_lock = threading.Lock()


def open_worker(task: Task, handle: Handle) -> ShardWorker:
    """The process's worker for this fit and shard, kept between the jobs that a process serves.

    The cache is bounded: the least recently used shard is released, whichever fit it belongs to.
    """
    key = (task.fit_id, handle.part)
    with _lock:
        worker = _open.pop(key, None)
        if worker is None or worker.reader.handle != handle:
            worker = ShardWorker(task, handle)
        _open[key] = worker
        while len(_open) > MAX_OPEN:
            _open.popitem(last=False)  # its map is released with its last reference
        return worker
