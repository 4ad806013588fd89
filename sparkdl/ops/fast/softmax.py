"""Compiled twins of the kernels of `sparkdl.ops.softmax` and `sparkdl.ops.attention`, in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import Double1, Index1, Real, Real1, Real2, inline, single_kernel
from sparkdl.ops.fast.elementary import ONE, ZERO, exp
from sparkdl.ops.softmax import Array

__all__ = ["cross_entropy", "log_softmax", "scores_grad", "softmax", "to_probabilities"]


def softmax(z: Array) -> Any:
    """See `sparkdl.ops.softmax.softmax`."""
    if z.dtype != np.float32 or not z.size:
        return NotImplemented
    y = np.empty(z.shape, z.dtype)
    np.copyto(y, z)
    _exponentials(_rows(y), ONE, z.max(axis=-1).reshape(-1))
    return y


def log_softmax(z: Array) -> Any:
    """See `sparkdl.ops.softmax.log_softmax`."""
    if z.dtype != np.float32 or not z.size:
        return NotImplemented
    y = np.empty(z.shape, z.dtype)
    np.copyto(y, z)
    _logarithms(_rows(y), z.max(axis=-1).reshape(-1))
    return y


def cross_entropy(z: Array, y: Array, a: Array, w: Array, u: Array | None) -> Any:
    """See `sparkdl.ops.softmax.cross_entropy`."""
    if z.dtype != np.float32:
        return NotImplemented
    dz, u = np.empty(z.shape, z.dtype), np.zeros(0) if u is None else u
    z, y, a, w = map(np.ascontiguousarray, (z, y.astype(np.int64, copy=False), a, w))
    return _cross_entropy(z, y, a, w, u, dz), dz


def to_probabilities(S: Array, scale: float) -> Any:
    """See `sparkdl.ops.attention.to_probabilities`."""
    if S.dtype != np.float32 or not S.size or not S.flags.c_contiguous:
        return NotImplemented
    _exponentials(_rows(S), np.float32(scale), S.max(axis=-1).reshape(-1))
    return None


def scores_grad(S: Array, P: Array, scale: float) -> Any:
    """See `sparkdl.ops.attention.scores_grad`."""
    if S.dtype != np.float32 or P.dtype != np.float32 or not (S.flags.c_contiguous and P.flags.c_contiguous):
        return NotImplemented
    _slopes(_rows(S), _rows(P), np.float32(scale))
    return None


def _rows(a: Array) -> Array:
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


@single_kernel
def _exponentials(S: Real2, scale: Real, top: Real1) -> None:
    rows, width = S.shape
    for r in range(rows):
        row, total = S[r], ZERO
        most = top[r] if top[r] > -np.inf else ZERO  # of a row where nothing counts
        for k in range(width):
            row[k] = exp((row[k] - most) * scale)
        for k in range(width):
            total += row[k]
        share = ONE / total if total != ZERO else ONE
        for k in range(width):
            row[k] *= share


@single_kernel
def _logarithms(z: Real2, top: Real1) -> None:
    rows, width = z.shape
    for r in range(rows):
        row, total = z[r], ZERO
        for k in range(width):
            row[k] -= top[r]
        for k in range(width):
            total += exp(row[k])
        rest = np.log(total)
        for k in range(width):
            row[k] -= rest


@single_kernel
def _cross_entropy(z: Real2, y: Index1, a: Double1, w: Double1, u: Double1, dz: Real2) -> float:
    rows, width = z.shape
    loss, smooth = 0.0, u.sum()
    for r in range(rows):
        row, out, total, along = z[r], dz[r], ZERO, 0.0
        top = _largest(row, out)
        for k in range(width):
            out[k] = exp(row[k] - top)
        for k in range(width):
            total += out[k]
        for k in range(u.size):
            along += u[k] * (row[k] - top)
        scale, rest = a[r] + w[r] * smooth, np.log(np.float64(total))
        loss += scale * rest - a[r] * (row[y[r]] - top) - w[r] * along
        share, part = np.float32(scale / total), np.float32(w[r])
        for k in range(width):
            out[k] *= share
        for k in range(u.size):
            out[k] -= part * np.float32(u[k])
        out[y[r]] -= np.float32(a[r])
    return loss


@inline
def _largest(row: Any, work: Any) -> Any:
    """The largest number of a row, halves held against each other in `work`; NaN may get lost."""
    for k in range(row.size):
        work[k] = row[k]
    n = row.size
    while n > 1:
        half = n // 2
        low, high = work[:half], work[n - half : n]
        for k in range(half):
            low[k] = high[k] if high[k] > low[k] else low[k]
        n -= half
    return work[0]


@single_kernel
def _slopes(S: Real2, P: Real2, scale: Real) -> None:
    rows, width = S.shape
    for r in range(rows):
        row, p, along = S[r], P[r], ZERO
        for k in range(width):
            along += row[k] * p[k]
        for k in range(width):
            row[k] = (row[k] - along) * p[k] * scale
