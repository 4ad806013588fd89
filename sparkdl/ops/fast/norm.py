"""Compiled twins of the kernels of `sparkdl.ops.norm`: each passes once over its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Double1, Double2, Real1, Real2, kernel, takes
from sparkdl.ops.norm import Array, Gate, fold, repeat, unfold

__all__ = ["batch_norm", "batch_norm_grad", "batch_norm_grad_sums", "channel_sum", "moment_sums"]

ROWS = 32  # rows summed in the dtype of x before they join a sum in float64


def channel_sum(x: Array) -> Any:
    """See `sparkdl.ops.norm.channel_sum`."""
    if not takes(x):
        return NotImplemented
    wide = fold(x)
    total = np.zeros(wide.shape[1])
    _sums(wide, total)
    return unfold(total, x.shape[-1]).astype(x.dtype)


def moment_sums(x: Array) -> Any:
    """See `sparkdl.ops.norm.moment_sums`."""
    if not takes(x):
        return NotImplemented
    c = x.shape[-1]
    n, wide = x.size // c, fold(x)
    p = channel_sum(x[:1]) / max(1, x[:1].size // c)
    sums = np.zeros((2, wide.shape[1]))
    _moments(wide, repeat(p, wide), sums)
    d1, d2 = unfold(sums, c)
    p = p.astype(np.float64)
    return np.stack((n * p + d1, (n * p + 2 * d1) * p + d2))


def batch_norm(x: Array, mean: Array, scale: Array, shift: Array, relu: bool = False) -> Any:
    """See `sparkdl.ops.norm.batch_norm`."""
    if not takes(x):
        return NotImplemented
    wide = fold(x)
    y = np.empty(wide.shape, wide.dtype)
    run = _normalise_relu if relu else _normalise
    run(wide, repeat(mean, wide), repeat(scale, wide), repeat(shift, wide), y)
    return y.reshape(x.shape)


def batch_norm_grad_sums(x: Array, dy: Array, mean: Array, relu: Gate | None = None) -> Any:
    """See `sparkdl.ops.norm.batch_norm_grad_sums`."""
    if not takes(x, dy):
        return NotImplemented
    wide = fold(x)
    sums = np.zeros((2, wide.shape[1]))
    if relu is None:
        _slope_sums(wide, fold(dy), repeat(mean, wide), sums)
    else:
        scale, shift = (repeat(v, wide) for v in relu)
        _slope_sums_relu(wide, fold(dy), repeat(mean, wide), scale, shift, sums)
    return unfold(sums, x.shape[-1])


def batch_norm_grad(
    x: Array, dy: Array, mean: Array, inv: Array, scale: Array, sums: Array, n: int, relu: Gate | None = None
) -> Any:
    """See `sparkdl.ops.norm.batch_norm_grad`."""
    if not takes(x, dy):
        return NotImplemented
    wide = fold(x)
    dx = np.empty(wide.shape, wide.dtype)
    offset, slope = sums / max(1, n) * (np.ones_like(inv), inv**2)
    m, a, k, b = (repeat(v, wide) for v in (mean, scale, slope * scale, offset * scale))
    if relu is None:
        _slopes(wide, fold(dy), m, a, k, b, dx)
    else:
        _slopes_relu(wide, fold(dy), m, a, k, b, repeat(relu[1], wide), dx)
    return dx.reshape(x.shape)


@kernel
def _sums(x: Real2, total: Double1) -> None:
    rows, width = x.shape
    s = np.empty(width, x.dtype)
    for start in range(0, rows, ROWS):
        s[:] = 0
        for r in range(start, min(start + ROWS, rows)):
            row = x[r]
            for c in range(width):
                s[c] += row[c]
        for c in range(width):
            total[c] += s[c]


@kernel
def _moments(x: Real2, pivot: Real1, sums: Double2) -> None:
    rows, width = x.shape
    s, q = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for start in range(0, rows, ROWS):
        s[:] = 0
        q[:] = 0
        for r in range(start, min(start + ROWS, rows)):
            row = x[r]
            for c in range(width):
                d = row[c] - pivot[c]
                s[c] += d
                q[c] += d * d
        for c in range(width):
            sums[0, c] += s[c]
            sums[1, c] += q[c]


@kernel
def _normalise(x: Real2, mean: Real1, scale: Real1, shift: Real1, y: Real2) -> None:
    rows, width = x.shape
    for r in range(rows):
        row, out = x[r], y[r]
        for c in range(width):
            out[c] = (row[c] - mean[c]) * scale[c] + shift[c]


@kernel
def _slope_sums(x: Real2, dy: Real2, mean: Real1, sums: Double2) -> None:
    rows, width = x.shape
    s, q = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for start in range(0, rows, ROWS):
        s[:] = 0
        q[:] = 0
        for r in range(start, min(start + ROWS, rows)):
            row, d = x[r], dy[r]
            for c in range(width):
                s[c] += d[c]
                q[c] += (row[c] - mean[c]) * d[c]
        for c in range(width):
            sums[0, c] += s[c]
            sums[1, c] += q[c]


@kernel
def _slopes(x: Real2, dy: Real2, mean: Real1, scale: Real1, slope: Real1, offset: Real1, dx: Real2) -> None:
    rows, width = x.shape
    for r in range(rows):
        row, d, out = x[r], dy[r], dx[r]
        for c in range(width):
            out[c] = d[c] * scale[c] - (row[c] - mean[c]) * slope[c] - offset[c]


@kernel
def _normalise_relu(x: Real2, mean: Real1, scale: Real1, shift: Real1, y: Real2) -> None:
    rows, width = x.shape
    zero = x.dtype.type(0)
    for r in range(rows):
        row, out = x[r], y[r]
        for c in range(width):
            v = (row[c] - mean[c]) * scale[c] + shift[c]
            out[c] = zero if v < zero else v  # NaN stays


@kernel
def _slope_sums_relu(x: Real2, dy: Real2, mean: Real1, scale: Real1, shift: Real1, sums: Double2) -> None:
    rows, width = x.shape
    zero = x.dtype.type(0)
    s, q = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for start in range(0, rows, ROWS):
        s[:] = 0
        q[:] = 0
        for r in range(start, min(start + ROWS, rows)):
            row, d = x[r], dy[r]
            for c in range(width):
                away = row[c] - mean[c]
                slope = d[c] if away * scale[c] + shift[c] > zero else zero
                s[c] += slope
                q[c] += away * slope
        for c in range(width):
            sums[0, c] += s[c]
            sums[1, c] += q[c]


@kernel
def _slopes_relu(
    x: Real2, dy: Real2, mean: Real1, scale: Real1, slope: Real1, offset: Real1, shift: Real1, dx: Real2
) -> None:
    rows, width = x.shape
    zero = x.dtype.type(0)
    for r in range(rows):
        row, d, out = x[r], dy[r], dx[r]
        for c in range(width):
            away = row[c] - mean[c]
            inside = d[c] if away * scale[c] + shift[c] > zero else zero
            out[c] = inside * scale[c] - away * slope[c] - offset[c]
