"""Cores that share a worker's minibatch: each takes some of its rows through the whole pass.

Kernels and matrix products run without Python's lock, so threads of one process compute side by side. They meet where
rows meet: at the loss, in layers that look at all rows (`nn.Ctx.sync`), and where a layer's gradients are complete
(`nn.Ctx.ready`). What comes out is the sum over the rows, as from one thread, to rounding; the bits depend on the
number of threads, and on nothing else.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from importlib.util import find_spec
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import numpy as np

from sparkdl.compiled.blas import multiply_alone
from sparkdl.nn import Array, Ctx, Model
from sparkdl.nn.containers import run_backward, run_forward
from sparkdl.nn.gradients import fresh, settle
from sparkdl.nn.model import Objective, Sums

__all__ = ["Threads", "cores"]

T = TypeVar("T")
Judge = Callable[[Array], tuple[float, float, Array]]  # outputs z -> loss, weight, dz
VARIABLE = "OMP_NUM_THREADS"  # which Spark sets to spark.task.cpus for the Python of its tasks
LEAST_ROWS, LEAST_WORK = 8, 3e7  # rows and operations of a thread: sharing less, half a millisecond, costs more
LEAST_REUSE = 2000  # operations for each parameter, of which every thread reads all, and makes a gradient of its own


def cores() -> int:
    """Cores of one worker: OMP_NUM_THREADS, which under Spark is spark.task.cpus; 1 where it is not set."""
    text = os.environ.get(VARIABLE, "1").split(",")[0]  # further numbers are for threads within threads
    return int(text) if text.isdecimal() and int(text) > 0 else 1


class Threads:
    """As many threads as a worker has cores; with one, everything runs where it is called.

    A large net over a few rows is left to one of them, and only its matrix products use more cores. So it is with any
    net where the package threadpoolctl is missing.
    """

    def __init__(self, count: int) -> None:
        self.count = count = count if count > 1 and find_spec("threadpoolctl") else 1
        self._pool = ThreadPoolExecutor(count - 1, "sparkdl-rows") if count > 1 else None
        self._grads: Array = np.empty((0, 0), np.float32)
        self._model: Model | None = None
        self._work = 0  # operations of one row's forward pass through that model

    def accumulate(
        self,
        model: Model,
        params: Array,
        grad: Array,
        x: Array,
        y: Array,
        w: Array | None,
        ctx: Ctx,
        objective: Objective | None = None,
        first: bool = False,
    ) -> tuple[Sums, Array]:
        """`Model.accumulate`, by all threads together."""
        if self._pool is None or ctx.outer is not None or not self._pays(model, len(x), passes=3):
            return model.accumulate(params, grad, x, y, w, ctx, objective, first)
        size = model.layout.size
        if self._grads.shape != (self.count - 1, size) or self._grads.dtype != grad.dtype:
            self._grads = np.empty((self.count - 1, size), grad.dtype)
        grads = [grad[:size], *self._grads]
        x = x.astype(params.dtype, copy=False)
        return _Pass(model, params, grads, first, x, ctx, lambda z: (objective or model.loss)(z, y, w)).run(self._pool)

    def outputs(self, model: Model, params: Array, x: Array) -> Array:
        """`Model.outputs`, by all threads together."""
        if self._pool is None or not self._pays(model, len(x), passes=1):
            return model.outputs(params, x)
        parts = [x[rows] for rows in _parts(len(x), self.count)]
        futures = [self._pool.submit(_alike, np.geterr(), model.outputs, params, part) for part in parts[1:]]
        first = model.outputs(params, parts[0])
        return np.concatenate([first, *(future.result() for future in futures)])

    def _pays(self, model: Model, rows: int, passes: int) -> bool:
        """Whether there is enough to do for all; a backward pass counts as two. If so, products take one core each."""
        if model is not self._model:
            self._model, self._work = model, model.net.cost(model.in_shape).work
        work = passes * rows * self._work
        least = max(LEAST_WORK * self.count, LEAST_REUSE * model.layout.num_trainable)
        if rows < LEAST_ROWS * self.count or work < least:
            return False
        multiply_alone()
        return True

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


class _Pass:
    """One minibatch: thread i takes rows[i] forward and back, and adds their gradients into grads[i]."""

    def __init__(
        self, model: Model, params: Array, grads: list[Array], first: bool, x: Array, ctx: Ctx, judge: Judge
    ) -> None:
        self.model, self.p, self.grads, self.first = model, model.layout.tree(params), grads, first
        self.x, self.ctx, self.judge = x, ctx, judge
        self.rows = _parts(len(x), len(grads))
        self.z = np.empty((len(x), *model.out_shape), params.dtype)
        self.dz = self.total = self.z
        self.sums = Sums(0.0, 0.0, len(x))
        self.given: list[Array] = [self.z] * len(grads)
        self.sent: set[str] = set()  # names of parameters whose gradients have been summed
        self.todo: Callable[[], None] = _nothing
        self.barrier = Barrier(len(grads), action=lambda: self.todo())
        rngs = [None] * len(grads) if ctx.rng is None else ctx.rng.spawn(len(grads))
        self.contexts = [self._context(i, rng) for i, rng in enumerate(rngs)]

    def run(self, pool: ThreadPoolExecutor) -> tuple[Sums, Array]:
        """All threads to the end. Raises what the first of them raised."""
        futures: list[Future[None]] = []
        failed: list[BaseException | None] = []
        try:
            for i in range(1, len(self.grads)):
                futures.append(pool.submit(_alike, np.geterr(), self._thread, i))  # noqa: PERF401, known if the next fails
            self._thread(0)
        except BrokenBarrierError as error:
            failed.append(error)
        except BaseException:  # such as Ctrl-C before all have begun: those that have must not wait for the others
            self.barrier.abort()
            raise
        finally:
            wait(futures)
        failed += [future.exception() for future in futures]
        errors = sorted((e for e in failed if e is not None), key=lambda e: isinstance(e, BrokenBarrierError))
        if errors:
            raise errors[0]
        return self.sums, self.z

    def _context(self, i: int, rng: np.random.Generator | None) -> Ctx:
        """What thread i gets: the clock is the first one's."""
        ready = None if self.ctx.ready is None else functools.partial(self._ready, i)
        clock = self.ctx.clock if i == 0 else None
        return replace(self.ctx, rng=rng, clock=clock, ready=ready, sync=functools.partial(self._sync, i))

    def _thread(self, i: int) -> None:
        model, rows, ctx = self.model, self.rows[i], self.contexts[i]
        try:
            g: Any = model.layout.tree(self.grads[i])
            if i or self.first:
                g = fresh(g)
            self.z[rows], cache = run_forward(model.net, self.p, self.x[rows], ctx)
            self._meet(i, self._loss)
            run_backward(model.net, self.p, cache, self.dz[rows], g, replace(ctx, dx=False))
            settle(g)
            self._meet(i, _nothing)
            self._add_share(i)
            self._meet(i, _nothing)
        except BaseException:
            self.barrier.abort()
            raise

    def _meet(self, i: int, todo: Callable[[], None]) -> None:
        """Wait for all; the last to come does what they met for. Raises BrokenBarrierError if one cannot come."""
        if i == 0:
            self.todo = todo
        self.barrier.wait()

    def _loss(self) -> None:
        with self.ctx.span("loss"):
            loss, weight, self.dz = self.judge(self.z)
        self.sums = Sums(loss, weight, len(self.x))

    def _sync(self, i: int, array: Array) -> None:
        self.given[i] = array
        self._meet(i, self._add_up)
        array[...] = self.total

    def _add_up(self) -> None:
        self.total = functools.reduce(np.add, self.given[1:], self.given[0])
        if self.ctx.sync is not None:
            self.ctx.sync(self.total)

    def _ready(self, i: int, path: str) -> None:
        self._meet(i, functools.partial(self._complete, path))

    def _complete(self, path: str) -> None:
        """Sum the gradients of the layer at path, and let the world know."""
        for segment in self.model.layout.trainable_segments:
            if segment.name not in self.sent and (not path or segment.name.startswith(f"{path}/")):
                self._sum(segment.start, segment.stop)
                self.sent.add(segment.name)
        if self.ctx.ready is not None:
            self.ctx.ready(path)

    def _add_share(self, i: int) -> None:
        """Thread i's share of what nobody has summed so far."""
        if not self.sent:
            share = _parts(len(self.grads[0]), len(self.grads))[i]
            self._sum(share.start, share.stop)
        elif i == 0:
            for segment in self.model.layout.segments:
                if segment.name not in self.sent:
                    self._sum(segment.start, segment.stop)

    def _sum(self, start: int, stop: int) -> None:
        first, *others = (grad[start:stop] for grad in self.grads)
        for other in others:
            first += other


def _parts(count: int, parts: int) -> list[slice]:
    """Cuts of 0..count, as even as can be."""
    cuts = [count * i // parts for i in range(parts + 1)]
    return [slice(*pair) for pair in itertools.pairwise(cuts)]


def _nothing() -> None:
    """What threads meet for that only wait for one another."""


def _alike(settings: Any, function: Callable[..., T], *args: Any) -> T:
    """A call in another thread under the caller's np.errstate."""
    with np.errstate(**settings):
        return function(*args)
