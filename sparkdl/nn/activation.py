"""Activation layers. None has parameters; each keeps its output for the backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkdl.nn.cost import Cost, tree
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape, priced
from sparkdl.ops import activation as act
from sparkdl.ops import softmax as soft

__all__ = ["LogSoftmax", "ReLU", "Sigmoid", "Softmax", "Tanh"]


@dataclass(frozen=True)
class ReLU(Layer):
    """y = max(x, 0). x, y (N, ...). The derivative at 0 is 0."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.relu(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.relu_grad(cache, dy)


@dataclass(frozen=True)
class Tanh(Layer):
    """y = tanh x. x, y (N, ...)."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.tanh(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.tanh_grad(cache, dy)


@dataclass(frozen=True)
class Sigmoid(Layer):
    """y = 1 / (1 + e^-x). x, y (N, ...). At the end of a classifier leave it out: BinaryCrossEntropy takes logits."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.sigmoid(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.sigmoid_grad(cache, dy)


@dataclass(frozen=True)
class Softmax(Layer):
    """y_k = e^x_k / sum_j e^x_j over the last axis. x, y (N, ..., K).

    At the end of a classifier leave it out: SoftmaxCrossEntropy takes logits, and links them to probabilities.
    """

    def out_shape(self, in_shape: Shape) -> Shape:
        return _with_last_axis(self, in_shape)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = soft.softmax(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return soft.softmax_grad(cache, dy)

    def cost(self, in_shape: Shape) -> Cost:
        """For K numbers the maximum, differences, exponentials, their sum, quotients."""
        k = self.out_shape(in_shape)[-1]
        return priced(self, in_shape, Cost(work=math.prod(in_shape[:-1]) * (5 * k - 2), depth=2 * tree(k) + 3))


@dataclass(frozen=True)
class LogSoftmax(Layer):
    """y_k = x_k - log sum_j e^x_j over the last axis. x, y (N, ..., K)."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return _with_last_axis(self, in_shape)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = soft.log_softmax(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return soft.log_softmax_grad(cache, dy)

    def cost(self, in_shape: Shape) -> Cost:
        """For K numbers the maximum, differences, exponentials, their sum, its logarithm, differences."""
        k = self.out_shape(in_shape)[-1]
        return priced(self, in_shape, Cost(work=math.prod(in_shape[:-1]) * (5 * k - 1), depth=2 * tree(k) + 4))


def _with_last_axis(layer: Layer, in_shape: Shape) -> Shape:
    """in_shape, if it has a last axis other than the batch's to normalise over."""
    if not in_shape:
        raise ValueError(f"{layer} normalises over the last axis of (N, ..., K); got samples of shape ().")
    return in_shape
