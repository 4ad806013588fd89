"""Compiled twins of the kernels of `sparkdl.ops.activation` that NumPy takes several passes for."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real, Real1, kernel, single_kernel, takes
from sparkdl.ops.activation import Array
from sparkdl.ops.fast import elementary
from sparkdl.ops.fast.elementary import ONE, ZERO

__all__ = [
    "elu",
    "elu_grad",
    "leaky_relu",
    "leaky_relu_grad",
    "log1pexp",
    "relu",
    "relu_grad",
    "sigmoid",
    "sigmoid_grad",
    "silu",
    "silu_grad",
    "tanh_grad",
]


def relu(x: Array, out: Array | None = None) -> Any:
    """See `sparkdl.ops.activation.relu`."""
    y = np.empty(x.shape, x.dtype) if out is None else out
    if not takes(x, y) or not y.flags.c_contiguous:
        return NotImplemented
    _relu(x.reshape(-1), y.reshape(-1))
    return y


def relu_grad(y: Array, dy: Array) -> Any:
    """See `sparkdl.ops.activation.relu_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _relu_grad(y.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


def tanh_grad(y: Array, dy: Array) -> Any:
    """See `sparkdl.ops.activation.tanh_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _tanh_grad(y.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


def sigmoid(x: Array) -> Any:
    """See `sparkdl.ops.activation.sigmoid`."""
    if x.dtype != np.float32:
        return NotImplemented
    y = np.empty(x.shape, x.dtype)
    _sigmoid(x.reshape(-1), y.reshape(-1))
    return y


def sigmoid_grad(y: Array, dy: Array) -> Any:
    """See `sparkdl.ops.activation.sigmoid_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _sigmoid_grad(y.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


def log1pexp(x: Array) -> Any:
    """See `sparkdl.ops.activation.log1pexp`."""
    if x.dtype != np.float32:
        return NotImplemented
    y = np.empty(x.shape, x.dtype)
    _log1pexp(x.reshape(-1), y.reshape(-1))
    return y


def leaky_relu(x: Array, slope: float) -> Any:
    """See `sparkdl.ops.activation.leaky_relu`."""
    return leaky_relu_grad(x, x, slope)


def leaky_relu_grad(y: Array, dy: Array, slope: float) -> Any:
    """See `sparkdl.ops.activation.leaky_relu_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _leaky(y.reshape(-1), dy.reshape(-1), y.dtype.type(slope), dx.reshape(-1))
    return dx


def elu(x: Array, alpha: float) -> Any:
    """See `sparkdl.ops.activation.elu`."""
    if x.dtype != np.float32:
        return NotImplemented
    y = np.empty(x.shape, x.dtype)
    _elu(x.reshape(-1), x.dtype.type(alpha), y.reshape(-1))
    return y


def elu_grad(y: Array, dy: Array, alpha: float) -> Any:
    """See `sparkdl.ops.activation.elu_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _elu_grad(y.reshape(-1), dy.reshape(-1), y.dtype.type(alpha), dx.reshape(-1))
    return dx


def silu(x: Array) -> Any:
    """See `sparkdl.ops.activation.silu`."""
    if x.dtype != np.float32:
        return NotImplemented
    y, s = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    _silu(x.reshape(-1), y.reshape(-1), s.reshape(-1))
    return y, s


def silu_grad(x: Array, s: Array, dy: Array) -> Any:
    """See `sparkdl.ops.activation.silu_grad`."""
    if any(a.dtype != np.float32 for a in (x, s, dy)):
        return NotImplemented
    dx = np.empty(x.shape, x.dtype)
    _silu_grad(x.reshape(-1), s.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


@kernel
def _relu(x: Real1, y: Real1) -> None:
    zero = x.dtype.type(0)  # of a plain 0 the result would be float64
    for i in range(x.size):
        v = x[i]
        y[i] = zero if v < zero else v  # NaN stays


@kernel
def _relu_grad(y: Real1, dy: Real1, dx: Real1) -> None:
    zero = dy.dtype.type(0)
    for i in range(y.size):
        dx[i] = dy[i] if y[i] > zero else zero


@single_kernel
def _sigmoid(x: Real1, y: Real1) -> None:
    for i in range(x.size):
        y[i] = elementary.sigmoid(x[i])


@kernel
def _tanh_grad(y: Real1, dy: Real1, dx: Real1) -> None:
    one = y.dtype.type(1)
    for i in range(y.size):
        dx[i] = dy[i] * (one - y[i] * y[i])


@kernel
def _sigmoid_grad(y: Real1, dy: Real1, dx: Real1) -> None:
    one = y.dtype.type(1)
    for i in range(y.size):
        dx[i] = dy[i] * y[i] * (one - y[i])


@single_kernel
def _log1pexp(x: Real1, y: Real1) -> None:
    for i in range(x.size):
        v = x[i]
        y[i] = (ZERO if v < ZERO else v) + elementary.log1p(elementary.exp(-abs(v)))


@kernel
def _leaky(gate: Real1, x: Real1, slope: Real, y: Real1) -> None:
    zero = x.dtype.type(0)
    for i in range(x.size):
        v = x[i]
        y[i] = v if gate[i] > zero else slope * v


@single_kernel
def _elu(x: Real1, alpha: Real, y: Real1) -> None:
    for i in range(x.size):
        v = x[i]
        y[i] = v if v > ZERO else alpha * elementary.expm1(v)


@kernel
def _elu_grad(y: Real1, dy: Real1, alpha: Real, dx: Real1) -> None:
    zero = y.dtype.type(0)
    for i in range(y.size):
        d, v = dy[i], y[i]
        dx[i] = d if v > zero else d * (v + alpha)


@single_kernel
def _silu(x: Real1, y: Real1, s: Real1) -> None:
    for i in range(x.size):
        share = elementary.sigmoid(x[i])
        s[i] = share
        y[i] = x[i] * share


@single_kernel
def _silu_grad(x: Real1, s: Real1, dy: Real1, dx: Real1) -> None:
    for i in range(x.size):
        dx[i] = dy[i] * s[i] * (ONE + x[i] * (ONE - s[i]))
