"""Element-wise activations and their gradients; x, y, dy, dx share one shape and dtype.

A gradient takes the forward *output* y, so that a layer need not keep its input, wherever y tells enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = [
    "arctan",
    "arctan_grad",
    "arctanh",
    "arctanh_grad",
    "elu",
    "elu_grad",
    "leaky_relu",
    "leaky_relu_grad",
    "log",
    "log1pexp",
    "log_grad",
    "log_sigmoid",
    "log_sigmoid_grad",
    "relu",
    "relu_grad",
    "sigmoid",
    "sigmoid_grad",
    "silu",
    "silu_grad",
    "softplus_grad",
    "tanh",
    "tanh_grad",
]

Array = np.ndarray[Any, np.dtype[Any]]


@twin("sparkdl.ops.fast.activation")
def relu(x: Array, out: Array | None = None) -> Array:
    """y = max(x, 0), in `out` if there is one, which may be x itself; NaN stays NaN."""
    return np.maximum(x, 0, out=out)


@twin("sparkdl.ops.fast.activation")
def relu_grad(y: Array, dy: Array) -> Array:
    """dx = dy where y > 0, else 0: at the kink the derivative is taken as 0."""
    return dy * (y > 0)


def tanh(x: Array) -> Array:
    """y = tanh x."""
    return np.tanh(x)


@twin("sparkdl.ops.fast.activation")
def tanh_grad(y: Array, dy: Array) -> Array:
    """dx = dy (1 - y^2)."""
    dx: Array = dy * (1 - y * y)
    return dx


@twin("sparkdl.ops.fast.activation")
def sigmoid(x: Array) -> Array:
    """y = 1 / (1 + e^-x), from e^-|x|: never overflows, and keeps its relative precision down to the smallest y."""
    e = np.exp(-np.abs(x))
    y: Array = np.where(x < 0, e, 1) / (1 + e)
    return y


@twin("sparkdl.ops.fast.activation")
def sigmoid_grad(y: Array, dy: Array) -> Array:
    """dx = dy y (1 - y)."""
    dx: Array = dy * y * (1 - y)
    return dx


@twin("sparkdl.ops.fast.activation")
def log1pexp(x: Array) -> Array:
    """y = log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), the softplus; its derivative is the sigmoid."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softplus_grad(y: Array, dy: Array) -> Array:
    """dx = dy (1 - e^-y), the sigmoid of x where y = log(1 + e^x)."""
    dx: Array = dy * -np.expm1(-y)
    return dx


@twin("sparkdl.ops.fast.activation")
def leaky_relu(x: Array, slope: float) -> Array:
    """y = x where x > 0, else slope x."""
    y: Array = np.where(x > 0, x, slope * x)
    return y


@twin("sparkdl.ops.fast.activation")
def leaky_relu_grad(y: Array, dy: Array, slope: float) -> Array:
    """dx = dy where y > 0, else slope dy; slope >= 0, so that y has the sign of x."""
    dx: Array = np.where(y > 0, dy, slope * dy)
    return dx


@twin("sparkdl.ops.fast.activation")
def elu(x: Array, alpha: float) -> Array:
    """y = x where x > 0, else alpha (e^x - 1)."""
    y: Array = np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
    return y


@twin("sparkdl.ops.fast.activation")
def elu_grad(y: Array, dy: Array, alpha: float) -> Array:
    """dx = dy where y > 0, else dy (y + alpha)."""
    dx: Array = np.where(y > 0, dy, dy * (y + alpha))
    return dx


@twin("sparkdl.ops.fast.activation")
def silu(x: Array) -> tuple[Array, Array]:
    """y = x s, and s = 1 / (1 + e^-x)."""
    s = sigmoid(x)
    return x * s, s


@twin("sparkdl.ops.fast.activation")
def silu_grad(x: Array, s: Array, dy: Array) -> Array:
    """dx = dy s (1 + x (1 - s))."""
    dx: Array = dy * (s * (1 + x * (1 - s)))
    return dx


def log_sigmoid(x: Array) -> Array:
    """y = log(1 / (1 + e^-x)) = -log(1 + e^-x)."""
    return -log1pexp(-x)


def log_sigmoid_grad(y: Array, dy: Array) -> Array:
    """dx = dy (1 - e^y)."""
    dx: Array = dy * -np.expm1(y)
    return dx


def log(x: Array) -> Array:
    """y = log x; -inf at 0, NaN below."""
    return np.log(x)


def log_grad(x: Array, dy: Array) -> Array:
    """dx = dy / x."""
    dx: Array = dy / x
    return dx


def arctan(x: Array) -> Array:
    """y = arctan x."""
    return np.arctan(x)


def arctan_grad(x: Array, dy: Array) -> Array:
    """dx = dy / (1 + x^2)."""
    dx: Array = dy / (1 + x * x)
    return dx


def arctanh(x: Array) -> Array:
    """y = arctanh x = log((1 + x) / (1 - x)) / 2; infinite at -1 and 1, NaN beyond."""
    return np.arctanh(x)


def arctanh_grad(x: Array, dy: Array) -> Array:
    """dx = dy / (1 - x^2), as (1 - x)(1 + x), which keeps its precision near -1 and 1."""
    dx: Array = dy / ((1 - x) * (1 + x))
    return dx
