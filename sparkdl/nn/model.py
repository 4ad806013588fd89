"""A model: a network, the loss it is trained with, and the shape of its input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.activation import Sigmoid, Softmax
from sparkdl.nn.containers import Sequential, run_backward, run_forward
from sparkdl.nn.gradients import fresh, settle
from sparkdl.nn.layer import Array, Ctx, Layer, Shape
from sparkdl.nn.layout import Layout
from sparkdl.nn.losses import Loss

__all__ = ["Model", "Objective", "Sums"]

Objective = Callable[[Array, Array, Array | None], tuple[float, float, Array]]  # called as a Loss
CHUNK_ROWS = 1024  # rows a prediction holds in flight at once, and
CHUNK_BYTES = 32 << 20  # bytes of input: the layers of a net for images hold 10 to 100 times as much


class Sums(NamedTuple):
    """What one pass over a batch adds up to: loss (weighted sum), weight, rows. Divided only after the reduction."""

    loss: float
    weight: float
    rows: int


@dataclass(frozen=True)
class Model:
    """`net` maps x (N, *in_shape) to outputs z; `loss` compares z with targets and links z to predictions.

    All methods are pure functions of the flat parameter vector described by `layout`.
    """

    net: Layer
    loss: Loss
    in_shape: Shape

    def __post_init__(self) -> None:
        """Raises ValueError where net, loss and in_shape do not fit each other."""
        object.__setattr__(self, "in_shape", tuple(self.in_shape))
        self.loss.check(self.out_shape)
        last = self.net
        while isinstance(last, Sequential) and last.layers:
            last = last.layers[-1]
        if self.loss.from_logits and isinstance(last, Softmax | Sigmoid):
            raise ValueError(
                f"{type(self.loss).__name__} takes logits and applies the link itself, but the net ends in {last}. "
                f"Leave that layer out; predictions are probabilities all the same."
            )

    @cached_property
    def layout(self) -> Layout:
        """Names and places of the parameters."""
        return Layout(self.net.specs(self.in_shape))

    @cached_property
    def out_shape(self) -> Shape:
        """Shape of one sample's output z."""
        return self.net.out_shape(self.in_shape)

    def init(self, rng: np.random.Generator, dtype: Any = np.float32) -> Array:
        """Fresh parameters (layout.size,)."""
        return self.layout.init(rng, dtype)

    def rows_at_once(self, dtype: Any) -> int:
        """How many samples of this dtype `outputs` takes at a time: 1024, fewer where they are large."""
        sample: int = math.prod(self.in_shape) * np.dtype(dtype).itemsize
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(sample, 1)))

    def outputs(self, params: Array, x: Array) -> Array:
        """x (N, *in_shape) -> z (N, *out_shape), in evaluation mode, a bounded number of rows at a time."""
        self._check_input(x)
        p, ctx = self.layout.tree(params), Ctx()
        z = np.empty((len(x), *self.out_shape), params.dtype)
        step = self.rows_at_once(params.dtype)
        for at in range(0, len(x), step):
            rows = slice(at, at + step)
            z[rows] = self.net.forward(p, x[rows].astype(params.dtype, copy=False), ctx)[0]
        return z

    def predict(self, params: Array, x: Array) -> Array:
        """x (N, *in_shape) -> predictions (N, ...): class probabilities for classification, values otherwise."""
        return self.loss.link(self.outputs(params, x))

    def accumulate(
        self,
        params: Array,
        grad: Array,
        x: Array,
        y: Array,
        w: Array | None,
        ctx: Ctx,
        objective: Objective | None = None,
        first: bool = False,
    ) -> tuple[Sums, Array]:
        """Adds into grad (layout.size,) what `Layer.backward` defines for one batch; returns its sums and outputs z.

        x (N, *in_shape); y (N, ...) as the loss takes it; w (N,) sample weights or None for ones; z (N, *out_shape).
        `objective` stands in for the loss where training minimises another one than the model is judged by.
        With `first`, grad is what this batch gives: what stood there does not count. Otherwise a batch of no rows
        changes nothing. One of no rows goes the whole way where workers meet within the pass (ctx.sync).
        """
        self._check_input(x)
        if len(x) == 0 and ctx.sync is None:
            if first:
                grad[: self.layout.size] = 0
            return Sums(0.0, 0.0, 0), np.zeros((0, *self.out_shape), params.dtype)
        p, g = self.layout.tree(params), self.layout.tree(grad)
        if first:
            g = fresh(g)
        z, cache = run_forward(self.net, p, x.astype(params.dtype, copy=False), ctx)
        with ctx.span("loss"):
            loss, weight, dz = (objective or self.loss)(z, y, w)
        run_backward(self.net, p, cache, dz, g, replace(ctx, dx=False))  # nothing stands before the input
        settle(g)
        return Sums(loss, weight, len(x)), z

    def _check_input(self, x: Array) -> None:
        # Said here for all nets, since some layers, such as Flatten, would take any shape.
        if x.shape[1:] != self.in_shape:
            expected = ", ".join(["N", *map(str, self.in_shape)])
            raise ValueError(f"The model takes x of shape ({expected}); got {x.shape}. Reshape it?")
