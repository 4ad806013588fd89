"""Compiled twins of the kernels of `sparkdl.ops.activation` that NumPy takes several passes for."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import kernel, takes
from sparkdl.ops.activation import Array

__all__ = ["relu_grad"]


def relu_grad(y: Array, dy: Array) -> Any:
    """See `sparkdl.ops.activation.relu_grad`."""
    if not takes(y, dy):
        return NotImplemented
    dx = np.empty(y.shape, y.dtype)
    _relu_grad(y.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


@kernel
def _relu_grad(y: Array, dy: Array, dx: Array) -> None:
    zero = dy.dtype.type(0)  # of a plain 0 the result would be float64
    for i in range(y.size):
        dx[i] = dy[i] if y[i] > zero else zero
