"""Element-wise activations and their gradients; x, y, dy, dx share one shape and dtype.

A gradient takes the forward *output* y, so that a layer need not keep its input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["log1pexp", "relu", "relu_grad", "sigmoid", "sigmoid_grad", "tanh", "tanh_grad"]

Array = np.ndarray[Any, np.dtype[Any]]


def relu(x: Array) -> Array:
    """y = max(x, 0); NaN stays NaN."""
    return np.maximum(x, 0)


def relu_grad(y: Array, dy: Array) -> Array:
    """dx = dy where y > 0, else 0: at the kink the derivative is taken as 0."""
    return dy * (y > 0)


def tanh(x: Array) -> Array:
    """y = tanh x."""
    return np.tanh(x)


def tanh_grad(y: Array, dy: Array) -> Array:
    """dx = dy (1 - y^2)."""
    dx: Array = dy * (1 - y * y)
    return dx


def sigmoid(x: Array) -> Array:
    """y = 1 / (1 + e^-x), from e^-|x|: never overflows, and keeps its relative precision down to the smallest y."""
    e = np.exp(-np.abs(x))
    y: Array = np.where(x < 0, e, 1) / (1 + e)
    return y


def sigmoid_grad(y: Array, dy: Array) -> Array:
    """dx = dy y (1 - y)."""
    dx: Array = dy * y * (1 - y)
    return dx


def log1pexp(x: Array) -> Array:
    """y = log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), the softplus; its derivative is the sigmoid."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
