"""Compiled twins of the kernels of `sparkdl.ops.resample`: a matrix for each axis, of which few entries are not 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Index2, Real2, kernel, takes
from sparkdl.ops.fast.order import blocks, take
from sparkdl.ops.window import Array, Pair

__all__ = ["along_axes", "nearest_grad"]


def nearest_grad(dy: Array, scale: Pair) -> Any:
    """See `sparkdl.ops.resample.nearest_grad`."""
    sizes = [n // s for n, s in zip(dy.shape[1:3], scale, strict=True)]
    rows, cols = (np.eye(n, dtype=dy.dtype).repeat(s, axis=1) for n, s in zip(sizes, scale, strict=True))
    return along_axes(dy, rows, cols)


def along_axes(x: Array, rows: Array, cols: Array) -> Any:
    """See `sparkdl.ops.resample.along_axes`."""
    if not takes(x, rows, cols):
        return NotImplemented
    n, h, w, c = x.shape
    y = np.empty((n, len(rows), len(cols), c), x.dtype)
    (row, share), (pixel, weight) = _entries(rows), _entries(cols)
    starts = np.stack([blocks(v, c) for v in pixel.T])
    flat = np.ascontiguousarray(x).reshape(n * h, w * c)
    _apply(flat, h, row, share, starts, weight.T.repeat(c, axis=1), y.reshape(n * len(rows), len(cols) * c))
    return y


def _entries(matrix: Array) -> tuple[Array, Array]:
    """Where each row's entries are not 0, and they: (rows, most entries of a row), filled up with zeros."""
    used = matrix != 0
    most = int(used.sum(axis=1).max(initial=0))
    at = np.argsort(~used, axis=1, kind="stable")[:, :most]
    entries = np.take_along_axis(matrix, at, axis=1)
    return np.where(entries == 0, at[:, :1], at), entries  # a zero goes with a number that counts anyway


@kernel
def _apply(x: Real2, height: int, row: Index2, share: Real2, starts: Index2, weight: Real2, y: Real2) -> None:
    out, line, moved = len(row), np.empty(x.shape[1], x.dtype), np.empty(y.shape[1], x.dtype)
    for r in range(len(y)):
        image, h, target = r // out, r % out, y[r]
        line[:] = 0
        for t in range(row.shape[1]):
            source, s = x[image * height + row[h, t]], share[h, t]
            for k in range(len(line)):
                line[k] += s * source[k]
        target[:] = 0
        for t in range(len(starts)):
            take(line, starts[t], moved)
            w = weight[t]
            for k in range(len(target)):
                target[k] += w[k] * moved[k]
