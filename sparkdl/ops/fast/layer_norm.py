"""Compiled twins of the kernels of `sparkdl.ops.layer_norm`: each row, or sample, passes once through the cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import Double2, Real, Real1, Real2, Real3, inline, kernel, takes
from sparkdl.ops.layer_norm import Array
from sparkdl.ops.norm import ROW_ELEMENTS, repeat, unfold

__all__ = ["group_norm", "group_norm_grad", "layer_norm", "layer_norm_grad"]

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


def group_norm(x: Array, groups: int, gamma: Array, beta: Array, eps: float) -> Any:
    """See `sparkdl.ops.layer_norm.group_norm`."""
    if not takes(x, gamma, beta):
        return NotImplemented
    n, _, c = x.shape
    wide = _fold(x)
    y, mean, inv = np.empty(wide.shape, x.dtype), np.empty((n, c), x.dtype), np.empty((n, c), x.dtype)
    _groups(wide, groups, repeat(gamma, wide), repeat(beta, wide), x.dtype.type(eps), y, mean, inv)
    return y.reshape(x.shape), mean[:, None], inv[:, None]


def group_norm_grad(x: Array, dy: Array, groups: int, gamma: Array, mean: Array, inv: Array) -> Any:
    """See `sparkdl.ops.layer_norm.group_norm_grad`."""
    if not takes(x, dy, gamma, mean, inv):
        return NotImplemented
    c, wide = x.shape[2], _fold(x)
    dx, sums = np.empty(wide.shape, x.dtype), np.zeros((2, wide.shape[2]))
    _groups_back(wide, _fold(dy), groups, repeat(gamma, wide), mean[:, 0], inv[:, 0], dx, sums)
    dgamma, dbeta = unfold(sums, c).astype(x.dtype)
    return dx.reshape(x.shape), dgamma, dbeta


def _fold(x: Array) -> Array:
    """(N, P, C) -> (N, P/r, r C): several pixels of a sample to a row, as `sparkdl.ops.norm.fold` takes them."""
    n, pixels, c = x.shape
    r = math.gcd(pixels, 1 << max(0, (ROW_ELEMENTS // c).bit_length() - 1))
    return np.ascontiguousarray(x).reshape(n, pixels // r, r * c)


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


@inline
def _to_group_means(s: Any, channels: int, groups: int, share: Any) -> None:
    """Put share times the sum over each group of channels in place of all of its sums, which repeat every C."""
    size = channels // groups
    for group in range(groups):
        total = share * 0
        for start in range(group * size, s.size, channels):
            for c in range(start, start + size):
                total += s[c]
        for start in range(group * size, s.size, channels):
            for c in range(start, start + size):
                s[c] = total * share


@kernel
def _groups(x: Real3, groups: int, gamma: Real1, beta: Real1, eps: Real, y: Real3, mean: Real2, inv: Real2) -> None:
    n, rows, width = x.shape
    channels = mean.shape[1]
    one, share = x.dtype.type(1), x.dtype.type(groups) / x.dtype.type(max(1, rows * width))
    m, q = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for image in range(n):
        m[:] = 0
        q[:] = 0
        for r in range(rows):
            row = x[image, r]
            for k in range(width):
                m[k] += row[k]
        _to_group_means(m, channels, groups, share)
        for r in range(rows):
            row = x[image, r]
            for k in range(width):
                d = row[k] - m[k]
                q[k] += d * d
        _to_group_means(q, channels, groups, share)
        for k in range(width):
            q[k] = one / np.sqrt(q[k] + eps)
        for c in range(channels):
            mean[image, c], inv[image, c] = m[c], q[c]
        for r in range(rows):
            row, out = x[image, r], y[image, r]
            for k in range(width):
                out[k] = (row[k] - m[k]) * q[k] * gamma[k] + beta[k]


@kernel
def _groups_back(
    x: Real3, dy: Real3, groups: int, gamma: Real1, mean: Real2, inv: Real2, dx: Real3, sums: Double2
) -> None:
    n, rows, width = x.shape
    channels, share = mean.shape[1], x.dtype.type(groups) / x.dtype.type(max(1, rows * width))
    m, a, s, q = np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(width, x.dtype)
    for image in range(n):
        for k in range(width):
            m[k], a[k] = mean[image, k % channels], inv[image, k % channels]
        s[:] = 0
        q[:] = 0
        for r in range(rows):
            row, d = x[image, r], dy[image, r]
            for k in range(width):
                s[k] += d[k]
                q[k] += d[k] * (row[k] - m[k])
        for k in range(width):
            q[k] *= a[k]
            sums[0, k] += q[k]
            sums[1, k] += s[k]
            q[k] *= gamma[k]
            s[k] *= gamma[k]
        _to_group_means(s, channels, groups, share)
        _to_group_means(q, channels, groups, share)
        for k in range(width):  # dx = d (gamma inv) - (x - mean) (inv^2 <d h>) - inv <d>
            q[k] *= a[k] * a[k]
            s[k] *= a[k]
            a[k] *= gamma[k]
        for r in range(rows):
            row, d, out = x[image, r], dy[image, r], dx[image, r]
            for k in range(width):
                out[k] = d[k] * a[k] - (row[k] - m[k]) * q[k] - s[k]
