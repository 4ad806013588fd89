"""Compiled twins of the exact kernels of `sparkdl.ops.gelu`, in float32: the same polynomial, in one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import Real1, single_kernel
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
    _gelu(x.reshape(-1), np.array(exponent(SINGLE), np.float32), y.reshape(-1), cdf.reshape(-1))
    return y, cdf


def gelu_grad(x: Array, cdf: Array, dy: Array) -> Any:
    """See `sparkdl.ops.gelu.gelu_grad`."""
    if any(a.dtype != np.float32 for a in (x, cdf, dy)):
        return NotImplemented
    dx = np.empty(x.shape, x.dtype)
    _gelu_grad(x.reshape(-1), cdf.reshape(-1), dy.reshape(-1), dx.reshape(-1))
    return dx


@single_kernel
def _gelu(x: Real1, p: Real1, y: Real1, cdf: Real1) -> None:
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 = p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9]
    for i in range(x.size):
        v = x[i]
        z = abs(v) * ROOT_HALF
        t = TWO / (TWO + z)
        u = max(t, LEAST) * SCALE - SHIFT
        e = (((p0 * u + p1) * u + p2) * u + p3) * u + p4
        e = ((((e * u + p5) * u + p6) * u + p7) * u + p8) * u + p9
        tail = exp(e - z * z) * t * HALF
        share = tail if v < 0 else ONE - tail
        cdf[i] = share
        y[i] = v * share


@single_kernel
def _gelu_grad(x: Real1, cdf: Real1, dy: Real1, dx: Real1) -> None:
    for i in range(x.size):
        dx[i] = dy[i] * (cdf[i] + x[i] * exp(-HALF * x[i] * x[i]) * DENSITY)
