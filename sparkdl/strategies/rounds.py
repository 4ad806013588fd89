"""Model averaging through the driver: a round of local updates is one Spark job, which needs no barrier."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl.backends.base import Backend, Remote, Shards
from sparkdl.data import Handle
from sparkdl.nn import Array
from sparkdl.strategies.tree_aggregate import evaluate_shard, tree_depth
from sparkdl.train import TAIL, Loop, Part, Run, Step, Steps, StepSums, Task, apply_update, open_worker
from sparkdl.train.update import learning_rate

if TYPE_CHECKING:
    from sparkdl.strategies.model_averaging import ModelAveraging

__all__ = ["OUTER", "RoundSteps"]

OUTER = "outer/"  # names of the outer optimizer's slots in the mode's state


class RoundSteps(Steps):
    """A step is a round: up to `period` updates by every worker, an average of weights, an outer update.

    What travels back is [(weights - shared) weight | slots weight | loss, weight, rows]: sums, divided by the driver.
    A round ends with its epoch. Before start_step a round has one update, which makes it a synchronous step where the
    optimizer is plain SGD.
    """

    def __init__(
        self, strategy: ModelAveraging, loop: Loop, shards: Shards, backend: Backend, task: Remote[Task]
    ) -> None:
        self._strategy, self._loop, self._shards, self._backend, self._task = strategy, loop, shards, backend, task
        run, m = loop.run, loop.task.model.layout.num_trainable
        for name, slot in strategy.outer.init(run.params[:m]).items():
            run.strategy_state.setdefault(f"{OUTER}{name}", slot)
        self._slots = sorted(n for n, a in run.opt_state.items() if a.dtype.kind == "f")
        length = run.params.size + len(self._slots) * m + TAIL
        self._depth = tree_depth(len(shards.handles), length * run.params.itemsize, backend.max_result_bytes)

    def step(self, epoch: int, index: int) -> Step:
        strategy, loop, run = self._strategy, self._loop, self._loop.run
        count = 1 if run.step < strategy.start_step else strategy.period
        count = min(count, loop.task.steps_per_epoch - index)
        with ExitStack() as stack, loop.span("job"):
            params = stack.enter_context(self._backend.share(run.params))
            slots = {n: stack.enter_context(self._backend.share(a)) for n, a in sorted(run.opt_state.items())}
            state = {"run": run.counters(), "schedule": run.schedule_state}
            fn = functools.partial(_local_round, self._task, params, slots, state, epoch, index, count)
            part = self._backend.tree_aggregate(self._shards, fn, Part.plus, self._depth)
        with loop.span("update"):
            sums = self._met(part.vec, count)
        return Step(sums, part.metrics, part.profile, updates=count)

    def evaluate(self, params: Array) -> Array:
        with self._backend.share(params) as weights:
            fn = functools.partial(evaluate_shard, self._task, weights)
            return self._backend.tree_aggregate(self._shards, fn, Part.plus, self._depth).metrics

    def _met(self, vec: Array, count: int) -> StepSums:
        """Divide the sums and update the run in place."""
        strategy, run, task = self._strategy, self._loop.run, self._loop.task
        m, size = task.model.layout.num_trainable, run.params.size
        loss, weight, rows = (float(v) for v in vec[-TAIL : -TAIL + 3])
        if weight:
            vec[:-TAIL] /= weight
            lr = learning_rate(task, run)
            outer = {n.removeprefix(OUTER): a for n, a in run.strategy_state.items() if n.startswith(OUTER)}
            strategy.outer.step(run.params[:m], run.params[:m] + vec[:m], outer, lr, len(self._shards.handles))
            run.params[m:] += vec[m:size]
            for i, name in enumerate(self._slots):
                at = size + i * m
                run.opt_state[name][...] = vec[at : at + m] if strategy.optimizer_state == "average" else 0
        if "t" in run.opt_state:
            run.opt_state["t"] += count if strategy.optimizer_state == "average" else 0
        run.step += count
        return StepSums(loss, weight, int(rows), learning_rate(task, run), 0.0)


def _local_round(
    task: Remote[Task],
    params: Remote[Array],
    slots: Mapping[str, Remote[Array]],
    state: Mapping[str, Any],
    epoch: int,
    index: int,
    count: int,
    handle: Handle,
) -> Part:
    """`count` updates over one shard from the shared weights; sums over them."""
    own, worker = task.value, open_worker(task.value, handle)
    run = Run(params.value.copy(), {name: shared.value.copy() for name, shared in slots.items()})
    run.schedule_state = dict(state["schedule"])
    run.count_from(state["run"])
    m, size = own.model.layout.num_trainable, run.params.size
    names = sorted(n for n, a in run.opt_state.items() if a.dtype.kind == "f")
    total = np.zeros(size + len(names) * m + TAIL, run.params.dtype)
    metrics, data_s, profile = own.metrics.zeros(), 0.0, None
    for i in range(index, index + count):
        part = worker.gradient(run.params, epoch, i)
        total[-TAIL:] += part.vec[-TAIL:]
        metrics += part.metrics
        data_s += part.data_s
        if profile is None:
            profile = part.profile
        elif part.profile is not None:
            profile.merge(part.profile)
        apply_update(own, run, part.vec)
    weight = total[-TAIL + 1]
    np.subtract(run.params, params.value, out=total[:size])
    for i, name in enumerate(names):
        total[size + i * m : size + (i + 1) * m] = run.opt_state[name]
    total[:-TAIL] *= weight
    return Part(total, metrics, data_s, profile)
