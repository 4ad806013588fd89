"""Sums per channel, and batch normalisation built on them.

x, y, dy, dx (N, ..., C); channel c is summed over all other axes, n values in all. What later meets other rows is
returned as *sums* in float64, which add up over blocks and over shards: a synchronised normalisation has only to
reduce them between two of these functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = [
    "batch_norm",
    "batch_norm_grad",
    "batch_norm_grad_sums",
    "channel_sum",
    "fold",
    "mean_var",
    "moment_sums",
    "repeat",
    "unfold",
]

Array = np.ndarray[Any, np.dtype[Any]]

Gate = tuple[Array, Array]

ROW_ELEMENTS = 1024  # pixels are taken together up to rows of this length: NumPy is slow on short ones
BLOCK_ELEMENTS = 1 << 17  # a block and its temporaries stay in the cache


@twin("sparkdl.ops.fast.norm")
def channel_sum(x: Array) -> Array:
    """x (N, ..., C) -> (C,), in the dtype of x."""
    return unfold(fold(x).sum(axis=0), x.shape[-1])


@twin("sparkdl.ops.fast.norm")
def moment_sums(x: Array) -> Array:
    """x (N, ..., C) -> (2, C): the sums of x and of x^2.

    What is summed in the dtype of x are deviations d from a value p within its range, so that a variance small beside
    the squared mean survives; sum x = n p + sum d, sum x^2 = n p^2 + 2 p sum d + sum d^2 follow in float64.
    """
    c = x.shape[-1]
    n, wide = x.size // c, fold(x)
    p = channel_sum(x[:1]) / max(1, x[:1].size // c)
    sums, pivot = np.zeros((2, wide.shape[1])), repeat(p, wide)
    for (block,) in _blocks(wide):
        d = block - pivot
        sums += d.sum(axis=0), np.einsum("rc,rc->c", d, d)
    d1, d2 = unfold(sums, c)
    p = p.astype(np.float64)
    return np.stack((n * p + d1, (n * p + 2 * d1) * p + d2))


def mean_var(sums: Array, n: int) -> tuple[Array, Array]:
    """Moment sums (2, C) of n values -> mean (C,), biased variance (C,), float64; zeros where n = 0."""
    mean, square = sums / max(1, n)
    return mean, np.maximum(square - mean * mean, 0)


@twin("sparkdl.ops.fast.norm")
def batch_norm(x: Array, mean: Array, scale: Array, shift: Array, relu: bool = False) -> Array:
    """y = (x - mean) scale + shift, or with `relu` max(y, 0), in the dtype of x; mean, scale, shift (C,)."""
    wide = fold(x)
    y = np.empty_like(wide)
    m, a, b = (repeat(v, wide) for v in (mean, scale, shift))
    for block, out in _blocks(wide, y):
        np.subtract(block, m, out=out)
        out *= a
        out += b
        if relu:
            np.maximum(out, 0, out=out)
    return y.reshape(x.shape)


@twin("sparkdl.ops.fast.norm")
def batch_norm_grad_sums(x: Array, dy: Array, mean: Array, relu: Gate | None = None) -> Array:
    """x, dy (N, ..., C), mean (C,) -> (2, C): the sums of dy and of dy (x - mean).

    After a ReLU, dy counts where (x - mean) scale + shift > 0 with (scale, shift) = relu.
    """
    wide = fold(x)
    m, sums = repeat(mean, wide), np.zeros((2, wide.shape[1]))
    gate = None if relu is None else [repeat(v, wide) for v in relu]
    for block, d in _blocks(wide, fold(dy)):
        away = block - m
        d = _gated(d, away, gate)
        sums += d.sum(axis=0), np.einsum("rc,rc->c", away, d)
    return unfold(sums, x.shape[-1])


@twin("sparkdl.ops.fast.norm")
def batch_norm_grad(
    x: Array, dy: Array, mean: Array, inv: Array, scale: Array, sums: Array, n: int, relu: Gate | None = None
) -> Array:
    """The gradient of `batch_norm` where mean and var are those of the n values that gave `batch_norm_grad_sums`.

    dx = scale (dy - sum(dy) / n - (x - mean) inv^2 sum(dy (x - mean)) / n), inv = 1 / sqrt(var + eps) (C,)
    (Ioffe & Szegedy 2015, section 3).
    """
    wide = fold(x)
    dx = np.empty_like(wide)
    offset, slope = sums / max(1, n) * (np.ones_like(inv), inv**2)
    m, a, k, c = (repeat(v, wide) for v in (mean, scale, slope * scale, offset * scale))
    gate = None if relu is None else [repeat(v, wide) for v in relu]
    for block, d, out in _blocks(wide, fold(dy), dx):
        away = block - m
        np.multiply(_gated(d, away, gate), a, out=out)
        away *= k
        out -= away
        out -= c
    return dx.reshape(x.shape)


def _gated(d: Array, away: Array, gate: list[Array] | None) -> Array:
    """d where away scale + shift > 0 with (scale, shift) = gate, else 0; all of d without a gate."""
    return d if gate is None else d * (away * gate[0] + gate[1] > 0)


def fold(x: Array) -> Array:
    """(N, ..., C) -> (n/r, r C): r pixels to a row, as many as divide n and make the rows long enough for NumPy."""
    c = x.shape[-1]
    n = x.size // c
    r = math.gcd(n, 1 << max(0, (ROW_ELEMENTS // c).bit_length() - 1)) or 1
    return x.reshape(n // r, r * c)


def repeat(v: Array, wide: Array) -> Array:
    """(C,) -> one row of the folded x (..., r C), in its dtype."""
    row = np.empty((wide.shape[-1] // len(v), len(v)), wide.dtype)
    row[...] = v  # a third of the time that np.tile takes, which small layers notice
    return row.reshape(-1)


def unfold(rows: Array, c: int) -> Array:
    """Sums over a folded x, (..., r C) -> (..., C)."""
    total: Array = rows.reshape(*rows.shape[:-1], -1, c).sum(axis=-2)
    return total


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The same few rows of all of them, in turn."""
    rows, length = arrays[0].shape
    step = max(1, BLOCK_ELEMENTS // length)
    for start in range(0, rows, step):
        yield tuple(a[start : start + step] for a in arrays)
