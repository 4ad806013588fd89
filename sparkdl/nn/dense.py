"""The fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.nn.initializers import GlorotUniform, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape

__all__ = ["Dense"]


@dataclass(frozen=True)
class Dense(Layer):
    """y = x W + b. x (N, D) -> y (N, units); W (D, units), b (units,), absent when `bias` is False."""

    units: int
    bias: bool = True
    init: Initializer = GlorotUniform()

    def __post_init__(self) -> None:
        if not isinstance(self.units, int | np.integer) or self.units < 1:
            raise ValueError(f"Dense(units={self.units!r}): units must be an integer of at least 1.")

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) != 1:
            raise ValueError(
                f"Dense(units={self.units}) expects samples of shape (D,); got {tuple(in_shape)}. Flatten first?"
            )
        return (self.units,)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        specs = {"W": ParamSpec((*in_shape, *self.out_shape(in_shape)), self.init)}
        if self.bias:
            specs["b"] = ParamSpec((self.units,), Zeros())
        return specs

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        W = p["W"]
        if x.shape[1:] != W.shape[:1]:
            raise ValueError(
                f"Dense(units={self.units}) expects x of shape (N, {len(W)}); got {x.shape}. Flatten first?"
            )
        y = x @ W
        if self.bias:
            y += p["b"]
        return y, x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        g["W"][...] += cache.T @ dy
        if self.bias:
            g["b"][...] += dy.sum(axis=0)
        dx: Array = dy @ p["W"].T
        return dx

    def madds(self, in_shape: Shape) -> int:
        return in_shape[0] * self.units
