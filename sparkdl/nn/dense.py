"""The fully connected layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost, sums_of_products
from sparkdl.nn.gradients import add, add_product
from sparkdl.nn.initializers import GlorotUniform, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.ops.matmul import matmul

__all__ = ["Dense"]


@dataclass(frozen=True)
class Dense(Layer):
    """y = x W + b. x (N, D) -> y (N, units); W (D, units), b (units,), absent when `bias` is False.

    Each step of sequences x (N, T, D) is a row of its own: y (N, T, units).
    """

    units: int
    bias: bool = True
    init: Initializer = GlorotUniform()

    def __post_init__(self) -> None:
        if not isinstance(self.units, int | np.integer) or self.units < 1:
            raise ValueError(f"Dense(units={self.units!r}): units must be an integer of at least 1.")

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) not in (1, 2):
            raise ValueError(
                f"Dense(units={self.units}) expects samples of shape (D,), or sequences (T, D); got "
                f"{tuple(in_shape)}. Flatten first?"
            )
        return (*in_shape[:-1], self.units)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        specs = {"W": ParamSpec((in_shape[-1], self.out_shape(in_shape)[-1]), self.init)}
        if self.bias:
            specs["b"] = ParamSpec((self.units,), Zeros())
        return specs

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        W = p["W"]
        if x.ndim not in (2, 3) or x.shape[-1] != len(W):
            raise ValueError(
                f"Dense(units={self.units}) expects x of shape (N, {len(W)}) or (N, T, {len(W)}); got {x.shape}. "
                f"Flatten first?"
            )
        y = matmul(_rows(x), W, bias=p["b"] if self.bias else None)
        return y.reshape(*x.shape[:-1], self.units), x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        x, dy = cache, _rows(dy)
        if ctx.outer is None or not ctx.outer(g["W"], _rows(x), dy):
            add_product(g["W"], _rows(x).T, dy)
        if self.bias:
            add(g["b"], dy.sum(axis=0))
        if not ctx.dx:
            return dy
        return matmul(dy, p["W"].T).reshape(x.shape)

    def cost(self, in_shape: Shape) -> Cost:
        outputs = math.prod(self.out_shape(in_shape))
        return priced(self, in_shape, sums_of_products(outputs, in_shape[-1], self.bias))


def _rows(x: Array) -> Array:
    """(N, ..., D) -> (R, D)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
