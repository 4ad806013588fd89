"""Compiled twins of the kernels of `sparkdl.ops.gelu`, in one pass; in float32, but for what needs no exponential."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import Real, Real1, kernel, single_kernel, takes
from sparkdl.ops.fast.elementary import HALF, ONE, TWO, exp, tanh
from sparkdl.ops.gelu import CUBIC, LEAST_T, SINGLE, SLOPE, Array, exponent

__all__ = ["gelu", "gelu_grad", "gelu_tanh", "gelu_tanh_grad"]

ROOT_HALF, DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
LEAST, SCALE = np.float32(LEAST_T), np.float32(2 / (1 - LEAST_T))
STEEP, BEND = np.float32(SLOPE), np.float32(SLOPE * CUBIC)
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


def gelu_tanh(x: Array) -> Any:
    """See `sparkdl.ops.gelu.gelu_tanh`."""
    if x.dtype != np.float32:
        return NotImplemented
    y, t = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    _gelu_tanh(x.reshape(-1), y.reshape(-1), t.reshape(-1))
    return y, t


def gelu_tanh_grad(x: Array, t: Array, dy: Array) -> Any:
    """See `sparkdl.ops.gelu.gelu_tanh_grad`."""
    if not takes(x, t, dy):
        return NotImplemented
    dx, slope, bend = np.empty(x.shape, x.dtype), x.dtype.type(SLOPE), x.dtype.type(3 * CUBIC * SLOPE)
    _gelu_tanh_grad(x.reshape(-1), t.reshape(-1), dy.reshape(-1), slope, bend, dx.reshape(-1))
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


@single_kernel
def _gelu_tanh(x: Real1, y: Real1, t: Real1) -> None:
    for i in range(x.size):
        v = x[i]
        share = tanh((BEND * v * v + STEEP) * v)
        t[i] = share
        y[i] = v * (ONE + share) * HALF


@kernel
def _gelu_tanh_grad(x: Real1, t: Real1, dy: Real1, slope: Real, bend: Real, dx: Real1) -> None:
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    for i in range(x.size):
        v, share = x[i], t[i]
        dx[i] = dy[i] * half * (one + share + v * (one - share * share) * (slope + bend * v * v))
