"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape
from sparkdl.ops.dropout import drop

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout(Layer):
    """In training, y = x m / (1 - rate) with m = 0 with probability `rate`, else 1, drawn for each entry; x otherwise.

    x, y (N, ...). The scale keeps E[y] = x, so that evaluation is the identity (inverted dropout; Srivastava et al.
    2014). Rate 0 is the identity; rate 1 gives zeros.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"Dropout(rate={self.rate}): the rate is a probability, in [0, 1].")

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array | None]:
        if not ctx.train or self.rate == 0:
            return x, None
        if ctx.rng is None:
            raise ValueError(f"{self} draws random numbers in training; pass Ctx(train=True, rng=...).")
        kept: Array = np.greater_equal(ctx.rng.random(x.shape, x.dtype), self.rate)
        return drop(x, kept, self.rate), kept

    def backward(self, p: Params, cache: Array | None, dy: Array, g: Params, ctx: Ctx) -> Array:
        return dy if cache is None else drop(dy, cache, self.rate)

    def cost(self, in_shape: Shape) -> Cost:
        return Cost()  # evaluation does nothing
