"""Layers that only rearrange."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape

__all__ = ["Flatten"]


@dataclass(frozen=True)
class Flatten(Layer):
    """x (N, ...) -> y (N, D): one row a sample, the last axis running fastest."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return (math.prod(in_shape),)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Shape]:
        # The width is named, not -1: that cannot be inferred for a batch of no rows.
        return x.reshape(len(x), math.prod(x.shape[1:])), x.shape

    def backward(self, p: Params, cache: Shape, dy: Array, g: Params, ctx: Ctx) -> Array:
        return dy.reshape(cache)
