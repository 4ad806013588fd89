"""An optimizer in slices: each rank keeps the slots of its slice of the parameters and updates that slice alone.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054), stage 1.
Bytes on the wire are those of a ring allreduce; the optimizer's memory and time are divided by the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from sparkdl.comm import Transport, allgather, allgatherv, reduce_scatter
from sparkdl.nn import Array
from sparkdl.nn.layout import Layout, Segment
from sparkdl.optim import Clip, Optimizer
from sparkdl.optim.clip import clip_by_value, norm
from sparkdl.optim.rule import Elementwise
from sparkdl.train import Run, StepSums, Task
from sparkdl.train.update import learning_rate, nonfinite

__all__ = ["SlicedUpdate", "segments_within", "slice_bounds"]


def slice_bounds(optimizer: Optimizer, layout: Layout, size: int, whole: bool = False) -> tuple[int, ...]:
    """The size + 1 bounds of the ranks' slices: equal ones, or whole tensors, as some rules of optimizers need them."""
    n = layout.num_trainable
    even = [n * r // size for r in range(size + 1)]
    if isinstance(optimizer, Elementwise) and not whole:
        return tuple(even)
    ends = np.array([0, *(s.stop for s in layout.trainable_segments)])
    return tuple(int(ends[np.argmin(abs(ends - at))]) for at in even)


class SlicedUpdate:
    """`train.apply_update` spread over the ranks; every rank ends with the same parameters.

    Slots in run.opt_state shrink to this rank's slice; `optimizer_state` puts the whole together again.
    """

    def __init__(self, task: Task, run: Run, comm: Transport, allreduce: Callable[[Array], None]) -> None:
        self._task, self._run, self._comm, self._allreduce = task, run, comm, allreduce
        layout = task.model.layout
        self._n = layout.num_trainable
        self._bounds = slice_bounds(task.optimizer, layout, comm.size)
        self._own = slice(self._bounds[comm.rank], self._bounds[comm.rank + 1])
        self._segments = tuple(segments_within(layout, self._own))
        self._sliced = set(run.opt_state) - {"t"}  # the count of updates is no vector
        for name in self._sliced:
            run.opt_state[name] = run.opt_state[name][self._own].copy()

    def apply(self, vec: Array) -> StepSums:
        """Reduce a step vector of this rank, which is used up, and update run.params and run.opt_state in place."""
        run, task, n = self._run, self._task, self._n
        size, lr = task.model.layout.size, learning_rate(task, run)
        grad = reduce_scatter(self._comm, vec[:n], bounds=self._bounds)
        rest = vec[n:]
        self._allreduce(rest)
        loss, weight, rows = (float(v) for v in rest[size - n : size - n + 3])
        length = 0.0
        if weight > 0:
            grad /= weight
            length = self._clipped(grad)
            if np.isfinite(length) and np.isfinite(loss):
                task.optimizer.step(run.params[self._own], grad, run.opt_state, lr, self._segments)
                allgather(self._comm, run.params[:n], self._bounds)
                if size > n:
                    np.divide(rest[: size - n], rows, out=run.params[n:])
            else:
                nonfinite(task, run, loss, length)
        run.step += 1
        return StepSums(loss, weight, int(rows), lr, length)

    def optimizer_state(self) -> Mapping[str, Array]:
        """Every slot whole, on all ranks."""
        whole = {
            name: np.concatenate(allgatherv(self._comm, self._run.opt_state[name])) for name in sorted(self._sliced)
        }
        return self._run.opt_state | whole

    def _clipped(self, grad: Array) -> float:
        """The norm of the whole mean gradient, of which this slice is clipped in place as `Clip.apply` clips it."""
        clip: Clip = self._task.training.clip
        found = self._norm(grad)
        if math.isfinite(found) and clip.value is not None:
            clip_by_value(grad, clip.value)
        if math.isfinite(found) and clip.norm is not None:
            length = found if clip.value is None else self._norm(grad)
            if length > clip.norm:
                grad *= clip.norm / length
        return found

    def _norm(self, grad: Array) -> float:
        squares = np.array([norm(grad) ** 2])
        self._allreduce(squares)
        return float(np.sqrt(squares[0]))


def segments_within(layout: Layout, own: slice) -> list[Segment]:
    """The parameters that lie in the slice, or the parts of them that do, counted from its start."""
    parts = []
    for s in layout.trainable_segments:
        start, stop = max(s.start, own.start), min(s.stop, own.stop)
        if start < stop:
            parts.append(s._replace(start=start - own.start, stop=stop - own.start))
    return parts
