"""Layers that only rearrange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape

__all__ = ["Flatten", "Permute", "Reshape"]


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

    def cost(self, in_shape: Shape) -> Cost:
        return Cost()  # a view


@dataclass(frozen=True)
class Reshape(Layer):
    """x (N, ...) -> y (N, *shape), the last axis running fastest; one entry of `shape` may be -1: what is left."""

    shape: Sequence[int]

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, Sequence) else (self.shape,)
        if not all(isinstance(n, int | np.integer) for n in shape) or min(shape, default=1) < -1 or 0 in shape:
            raise ValueError(f"Reshape(shape={self.shape!r}): sizes are integers of at least 1, or -1 for one of them.")
        if list(shape).count(-1) > 1:
            raise ValueError(f"Reshape(shape={self.shape!r}): only one size can be inferred.")
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))

    def out_shape(self, in_shape: Shape) -> Shape:
        size, known = math.prod(in_shape), math.prod(n for n in self.shape if n != -1)
        if size % known if -1 in self.shape else size != known:
            raise ValueError(f"Reshape({self.shape}) does not fit the {size} entries of samples {tuple(in_shape)}.")
        return tuple(size // known if n == -1 else n for n in self.shape)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Shape]:
        return x.reshape(len(x), *self.out_shape(x.shape[1:])), x.shape

    def backward(self, p: Params, cache: Shape, dy: Array, g: Params, ctx: Ctx) -> Array:
        return dy.reshape(cache)

    def cost(self, in_shape: Shape) -> Cost:
        return Cost()  # a view


@dataclass(frozen=True)
class Permute(Layer):
    """x (N, ...) -> y with the axes of its samples in another order: axis i of y is axis `order[i]` of x.

    The axes of a sample are numbered from 0; the batch stays in front. Permute((1, 0)) turns (N, T, C) to (N, C, T).
    """

    order: Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.order, Sequence) or sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"Permute(order={self.order!r}): must name each axis of a sample once, counted from 0.")
        object.__setattr__(self, "order", tuple(int(i) for i in self.order))

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) != len(self.order):
            raise ValueError(f"Permute({self.order}) expects {len(self.order)} axes; samples are {tuple(in_shape)}.")
        return tuple(in_shape[i] for i in self.order)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, None]:
        self.out_shape(x.shape[1:])
        return x.transpose(0, *(i + 1 for i in self.order)), None

    def backward(self, p: Params, cache: None, dy: Array, g: Params, ctx: Ctx) -> Array:
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return dy.transpose(0, *(i + 1 for i in back))

    def cost(self, in_shape: Shape) -> Cost:
        return Cost()  # a view
