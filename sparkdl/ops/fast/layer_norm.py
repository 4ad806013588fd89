"""Compiled twins of the kernels of `sparkdl.ops.layer_norm` over rows: each row passes once through the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Double2, Real, Real1, Real2, kernel, takes
from sparkdl.ops.layer_norm import Array

__all__ = ["layer_norm", "layer_norm_grad"]

ROWS = 32  # rows summed in the dtype of x before they join a sum in float64


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Any:
    """See `sparkdl.ops.layer_norm.layer_norm`."""
    if not takes(x, gamma, beta):
        return NotImplemented
    y, mean, inv = np.empty(x.shape, x.dtype), np.empty((len(x), 1), x.dtype), np.empty((len(x), 1), x.dtype)
    _forward(np.ascontiguousarray(x), gamma, beta, x.dtype.type(eps), y, mean, inv)
    return y, mean, inv


def layer_norm_grad(x: Array, dy: Array, gamma: Array, mean: Array, inv: Array) -> Any:
    """See `sparkdl.ops.layer_norm.layer_norm_grad`."""
    if not takes(x, dy, gamma, mean, inv):
        return NotImplemented
    dx, sums = np.empty(x.shape, x.dtype), np.zeros((2, x.shape[1]))
    _backward(np.ascontiguousarray(x), np.ascontiguousarray(dy), gamma, mean, inv, dx, sums)
    return dx, sums[0].astype(x.dtype), sums[1].astype(x.dtype)


@kernel
def _forward(x: Real2, gamma: Real1, beta: Real1, eps: Real, y: Real2, mean: Real2, inv: Real2) -> None:
    rows, width = x.shape
    zero, share = x.dtype.type(0), x.dtype.type(1) / x.dtype.type(max(1, width))
    for r in range(rows):
        row, out = x[r], y[r]
        total, square = zero, zero
        for c in range(width):
            total += row[c]
        m = total * share
        for c in range(width):
            d = row[c] - m
            square += d * d
        scale = x.dtype.type(1) / np.sqrt(square * share + eps)
        mean[r, 0], inv[r, 0] = m, scale
        for c in range(width):
            out[c] = (row[c] - m) * scale * gamma[c] + beta[c]


@kernel
def _backward(x: Real2, dy: Real2, gamma: Real1, mean: Real2, inv: Real2, dx: Real2, sums: Double2) -> None:
    rows, width = x.shape
    zero, share = x.dtype.type(0), x.dtype.type(1) / x.dtype.type(max(1, width))
    dgamma, dbeta, h = np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(width, x.dtype)
    for start in range(0, rows, ROWS):
        dgamma[:] = 0
        dbeta[:] = 0
        for r in range(start, min(start + ROWS, rows)):
            row, d, out = x[r], dy[r], dx[r]
            m, scale, plain, along = mean[r, 0], inv[r, 0], zero, zero
            for c in range(width):
                h[c] = (row[c] - m) * scale
            for c in range(width):
                dgamma[c] += d[c] * h[c]
                dbeta[c] += d[c]
            for c in range(width):
                plain += d[c] * gamma[c]
                along += d[c] * gamma[c] * h[c]
            plain, along = plain * share, along * share
            for c in range(width):
                out[c] = (d[c] * gamma[c] - plain - h[c] * along) * scale
        for c in range(width):
            sums[0, c] += dgamma[c]
            sums[1, c] += dbeta[c]
