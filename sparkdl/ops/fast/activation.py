"""Compiled twins of the kernels of `sparkdl.ops.activation` that NumPy takes several passes for."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real1, kernel, single_kernel, takes
from sparkdl.ops.activation import Array
from sparkdl.ops.fast import elementary
from sparkdl.ops.fast.elementary import ONE

__all__ = ["relu_grad", "sigmoid", "silu", "silu_grad"]


def relu_grad(y: Array, dy: Array) -> Any:
    """See `sparkdl.ops.activation.relu_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _relu_grad(y.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


def sigmoid(x: Array) -> Any:
    """See `sparkdl.ops.activation.sigmoid`."""
    if x.dtype != np.float32:
        return NotImplemented
    y = np.empty(x.shape, x.dtype)
    _sigmoid(x.reshape(-1), y.reshape(-1))
    return y


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
def _relu_grad(y: Real1, dy: Real1, dx: Real1) -> None:
    zero = dy.dtype.type(0)  # of a plain 0 the result would be float64
    for i in range(y.size):
        dx[i] = dy[i] if y[i] > zero else zero


@single_kernel
def _sigmoid(x: Real1, y: Real1) -> None:
    for i in range(x.size):
        y[i] = elementary.sigmoid(x[i])


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
