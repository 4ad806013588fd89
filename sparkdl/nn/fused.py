"""Neighbours of a chain that take fewer passes over memory together; what they compute is what they would alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.nn.activation import ReLU
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape, kind_of
from sparkdl.nn.norm import BatchNorm
from sparkdl.ops.activation import relu, relu_grad

__all__ = ["OWNERS", "chain"]

OWNERS = (Conv2D, Dense)  # y is a new array that only the next layer sees


@dataclass(frozen=True)
class _ReLUOfBatchNorm(Layer):
    """y = max(norm(x), 0): a normalisation and the ReLU after it."""

    norm: BatchNorm

    def out_shape(self, in_shape: Shape) -> Shape:
        return self.norm.out_shape(in_shape)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Any]:
        return self.norm.normalise(p, x, ctx, relu=True)

    def backward(self, p: Params, cache: Any, dy: Array, g: Params, ctx: Ctx) -> Array:
        return self.norm.denormalise(p, cache, dy, g, ctx, relu=True)


@dataclass(frozen=True)
class _ReLUInPlace(Layer):
    """y = max(x, 0), written over x."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        relu(x, out=x)
        return x, x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return relu_grad(cache, dy)


def chain(layers: Sequence[Layer], owners: tuple[type[Layer], ...] = OWNERS) -> list[tuple[str, Layer]]:
    """The layers of a chain by name, its fused neighbours in place of the first of them, under its name."""
    found: list[tuple[str, Layer]] = []
    for i, layer in enumerate(layers):
        before = layers[i - 1] if i else None
        if isinstance(layer, ReLU) and isinstance(before, BatchNorm):
            found[-1] = found[-1][0], _ReLUOfBatchNorm(before)
        elif isinstance(layer, ReLU) and isinstance(before, owners):
            found.append((f"{kind_of(type(layer))}_{i}", _ReLUInPlace()))
        else:
            found.append((f"{kind_of(type(layer))}_{i}", layer))
    return found
