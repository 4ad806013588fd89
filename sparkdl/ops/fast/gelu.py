"""Compiled twins of the exact kernels of `sparkdl.ops.gelu`, in float32: the same polynomial, in one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import kernel
from sparkdl.ops.fast.elementary import HALF, ONE, TWO, exp
from sparkdl.ops.gelu import LEAST_T, SINGLE, Array, exponent

__all__ = ["gelu", "gelu_grad"]

ROOT_HALF, DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
LEAST, SCALE = np.float32(LEAST_T), np.float32(2 / (1 - LEAST_T))
SHIFT = np.float32((1 + LEAST_T) / (1 - LEAST_T))


def gelu(x: Array) -> Any:
    """See `sparkdl.ops.gelu.gelu`."""
    if x.dtype != np.float32:
        return NotImplemented
    y, cdf = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    _gelu(x.reshape(-1), tuple(map(np.float32, exponent(SINGLE))), y.reshape(-1), cdf.reshape(-1))
    return y, cdf


def gelu_grad(x: Array, cdf: Array, dy: Array) -> Any:
    """See `sparkdl.ops.gelu.gelu_grad`."""
    if any(a.dtype != np.float32 for a in (x, cdf, dy)):
        return NotImplemented
    dx = np.empty(x.shape, x.dtype)
    _gelu_grad(x.reshape(-1), cdf.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


@kernel
def _gelu(x: Array, p: Any, y: Array, cdf: Array) -> None:
    for i in range(x.size):
        v = x[i]
        z = abs(v) * ROOT_HALF
        t = TWO / (TWO + z)
        u = max(t, LEAST) * SCALE - SHIFT
        e = (((p[0] * u + p[1]) * u + p[2]) * u + p[3]) * u + p[4]
        e = ((((e * u + p[5]) * u + p[6]) * u + p[7]) * u + p[8]) * u + p[9]
        tail = exp(e - z * z) * t * HALF
        share = tail if v < 0 else ONE - tail
        cdf[i] = share
        y[i] = v * share


@kernel
def _gelu_grad(x: Array, cdf: Array, dy: Array, dx: Array) -> None:
    for i in range(x.size):
        dx[i] = dy[i] * (cdf[i] + x[i] * exp(-HALF * x[i] * x[i]) * DENSITY)
