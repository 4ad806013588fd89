"""Normalisation within a sample: over the last axis, or over groups of channels.

Rows: x, y, dy, dx (R, D), mean, inv (R, 1). Groups: x, y, dy, dx (N, P, C) of P pixels, mean, inv (N, 1, C), each
channel beside those of its group. inv = 1 / sqrt(var + eps), gamma, beta (D,) or (C,). Variances are the mean squares
of deviations from the mean, so that one small beside the squared mean survives. Work goes on in blocks that fit the
cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = ["group_norm", "group_norm_grad", "layer_norm", "layer_norm_grad"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_ELEMENTS = 1 << 16


@twin("sparkdl.ops.fast.layer_norm")
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array, Array, Array]:
    """y = gamma (x - mean) inv + beta, and mean, inv; over the last axis of x (R, D)."""
    y, mean, inv = np.empty_like(x), np.empty((len(x), 1), x.dtype), np.empty((len(x), 1), x.dtype)
    share = np.full((x.shape[1], 1), 1 / x.shape[1], x.dtype)
    for rows in _blocks(x):
        out = y[rows]
        np.matmul(x[rows], share, out=mean[rows])
        np.subtract(x[rows], mean[rows], out=out)
        var = np.einsum("rd,rd->r", out, out)[:, None] / x.shape[1]
        np.divide(1, np.sqrt(var + eps), out=inv[rows])
        out *= inv[rows]
        out *= gamma
        out += beta
    return y, mean, inv


@twin("sparkdl.ops.fast.layer_norm")
def layer_norm_grad(x: Array, dy: Array, gamma: Array, mean: Array, inv: Array) -> tuple[Array, Array, Array]:
    """dx, dgamma, dbeta (D,). With h = (x - mean) inv and d = gamma dy:

    dx = inv (d - <d> - h <d h>), <> the mean over the row (Ba et al. 2016).
    """
    dx, dgamma, dbeta = np.empty_like(x), np.zeros_like(gamma), np.zeros_like(gamma)
    share = gamma[:, None] / x.shape[1]
    for rows in _blocks(x):
        h, d, out = (x[rows] - mean[rows]) * inv[rows], dy[rows], dx[rows]
        dbeta += d.sum(axis=0)
        np.multiply(d, h, out=out)
        dgamma += out.sum(axis=0)
        h *= out @ share
        h += d @ share
        np.multiply(d, gamma, out=out)
        out -= h
        out *= inv[rows]
    return dx, dgamma, dbeta


@twin("sparkdl.ops.fast.layer_norm")
def group_norm(x: Array, groups: int, gamma: Array, beta: Array, eps: float) -> tuple[Array, Array, Array]:
    """y = gamma (x - mean) inv + beta, and mean, inv; over the pixels and channels of each group of x (N, P, C)."""
    y, shape = np.empty_like(x), (len(x), 1, x.shape[2])
    mean, inv = np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    for rows in _blocks(x):
        mean[rows] = _group_mean(x[rows].sum(axis=1), groups, x.shape[1])
        out = np.subtract(x[rows], mean[rows], out=y[rows])
        var = _group_mean(np.einsum("npc,npc->nc", out, out), groups, x.shape[1])
        np.divide(1, np.sqrt(var + eps), out=inv[rows])
        out *= inv[rows] * gamma
        out += beta
    return y, mean, inv


@twin("sparkdl.ops.fast.layer_norm")
def group_norm_grad(
    x: Array, dy: Array, groups: int, gamma: Array, mean: Array, inv: Array
) -> tuple[Array, Array, Array]:
    """dx, dgamma, dbeta (C,): as `layer_norm_grad`, <> the mean over the group (Wu & He 2018)."""
    dx, dgamma, dbeta = np.empty_like(x), np.zeros_like(gamma), np.zeros_like(gamma)
    for rows in _blocks(x):
        h, d, out = (x[rows] - mean[rows]) * inv[rows], dy[rows], dx[rows]
        d_sum, dh_sum = d.sum(axis=1), np.einsum("npc,npc->nc", d, h)
        dbeta += d_sum.sum(axis=0)
        dgamma += dh_sum.sum(axis=0)
        h *= _group_mean(dh_sum * gamma, groups, x.shape[1])
        np.multiply(d, gamma, out=out)
        out -= h
        out -= _group_mean(d_sum * gamma, groups, x.shape[1])
        out *= inv[rows]
    return dx, dgamma, dbeta


def _group_mean(sums: Array, groups: int, pixels: int) -> Array:
    """Sums of each channel (n, C) -> the mean of each group beside all its channels (n, 1, C)."""
    n, c = sums.shape
    means = sums.reshape(n, groups, c // groups).sum(axis=2) / (pixels * (c // groups))
    beside: Array = means.repeat(c // groups, axis=1)[:, None]
    return beside


def _blocks(x: Array) -> Iterator[slice]:
    """Rows of x, a few at a time."""
    step = max(1, BLOCK_ELEMENTS // max(1, x[:1].size))
    for start in range(0, len(x), step):
        yield slice(start, start + step)
