"""Synchronous training through the driver: one Spark job an update.

The driver broadcasts the weights, every worker computes the gradient sums of its rows of the minibatch, the sums come
together in a tree, and the driver updates. It is the simplest consistent mode and needs nothing of the network but
what Spark uses already; its price is a Spark job and two passages through the driver for each update.
"""

from __future__ import annotations

import functools
import math
from contextlib import ExitStack
from dataclasses import dataclass, field

from sparkdl import simulate
from sparkdl.backends.base import Backend, Remote, Shards, Slots
from sparkdl.data import Handle
from sparkdl.errors import ConfigError
from sparkdl.fields import Interval, check_fields
from sparkdl.nn import Array
from sparkdl.train import TAIL, Loop, Part, Step, Steps, Task, apply_update, open_worker

__all__ = ["TreeAggregate", "evaluate_shard", "tree_depth"]

# Measured on local Spark 4.3: a vector that reaches the driver costs pickling, a socket and an addition; one more
# level of the tree costs a stage and moves every vector once more, though in parallel.
DRIVER_BYTES_PER_S = 120e6
STAGE_S = 0.1


@dataclass(frozen=True)
class TreeAggregate:
    """Gradients meet in a tree of `depth` levels and the driver updates the weights; depth 0 chooses.

    The result equals that of one worker on the same data to rounding, whatever the number of workers.
    """

    depth: int = field(default=0, metadata={"within": Interval(0, math.inf, "[)", integer=True)})

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def spare(self) -> int:
        """Every worker trains."""
        return 0

    def plan(self, workers: int, slots: Slots) -> tuple[TreeAggregate, int]:
        """As `Strategy.plan`: tasks need not run at the same time."""
        return self, workers

    def simulated(self, workers: int) -> simulate.Mode:
        """As `Strategy.simulated`."""
        return simulate.ThroughDriver(STAGE_S, DRIVER_BYTES_PER_S, depth=self.depth)

    def train(self, loop: Loop, shards: Shards, backend: Backend) -> None:
        """Train loop.task over the shards, one job of the backend for each update and each evaluation."""
        task, run = loop.task, loop.run
        nbytes = (task.model.layout.size + TAIL) * run.params.itemsize
        depth = self.depth or tree_depth(len(shards.handles), nbytes, backend.max_result_bytes)
        with backend.share(task) as shared:
            loop.fit(_TreeSteps(loop, shards, backend, shared, depth))


@dataclass(frozen=True)
class _TreeSteps(Steps):
    loop: Loop
    shards: Shards
    backend: Backend
    task: Remote[Task]
    depth: int

    def step(self, epoch: int, index: int) -> Step:
        loop = self.loop
        with loop.span("job"), ExitStack() as stack:
            with loop.span("broadcast"):
                params = stack.enter_context(self.backend.share(loop.run.params))
            fn = functools.partial(_gradient, self.task, params, epoch, index)
            part = self.backend.tree_aggregate(self.shards, fn, Part.plus, self.depth)
        with loop.span("update"):
            sums = apply_update(loop.task, loop.run, part.vec)
        return Step(sums, part.metrics, part.profile)

    def evaluate(self, params: Array) -> Array:
        with self.backend.share(params) as weights:
            fn = functools.partial(evaluate_shard, self.task, weights)
            return self.backend.tree_aggregate(self.shards, fn, Part.plus, self.depth).metrics


def tree_depth(parts: int, nbytes: int, limit: int | None) -> int:
    """The depth that brings `parts` vectors of `nbytes` together soonest, of those whose last level fits the driver.

    A tree of depth d brings ceil(parts^(1/d)) vectors to the driver, one after the other, after d - 1 stages in
    which each node takes as many. Errors: ConfigError where even two vectors exceed `spark.driver.maxResultSize`.
    """
    depths = range(1, max(1, math.ceil(math.log2(max(parts, 2)))) + 1)
    fan_in = {d: max(min(2, parts), math.ceil(parts ** (1 / d))) for d in depths}
    fitting = [d for d in depths if limit is None or fan_in[d] * nbytes <= limit]
    if not fitting:
        raise ConfigError(
            f"A reduction must fit spark.driver.maxResultSize: {fan_in[depths[-1]]} vectors of "
            f"{nbytes / 2**20:,.1f} MiB exceed its {(limit or 0) / 2**20:,.0f} MiB. "
            "Raise the setting, or use a smaller model."
        )
    return min(fitting, key=lambda d: d * fan_in[d] * nbytes / DRIVER_BYTES_PER_S + (d - 1) * STAGE_S)


def _gradient(task: Remote[Task], params: Remote[Array], epoch: int, step: int, handle: Handle) -> Part:
    return open_worker(task.value, handle).gradient(params.value, epoch, step)


def evaluate_shard(task: Remote[Task], params: Remote[Array], handle: Handle) -> Part:
    """Metric sums over the validation rows of one shard."""
    return open_worker(task.value, handle).evaluate(params.value)
