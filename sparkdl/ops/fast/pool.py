"""Compiled twins of the kernels of `sparkdl.ops.pool`: they work over rows of an image, as pixels may be short.

With a stride s a row's columns are put in another order, 0, s, 2 s, ..., then 1, s + 1, ...: what element j of a row's
windows sees lies side by side there. The tables that say where hold offsets of numbers, not of pixels.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from sparkdl.compiled import Byte2, Index1, Index2, Real2, kernel, takes
from sparkdl.ops.fast.order import blocks, take
from sparkdl.ops.pool import row_share
from sparkdl.ops.window import Array, Pair, Window

__all__ = ["avg_pool", "avg_pool_grad", "max_pool", "max_pool_grad"]

LEAST_ROW = 64  # numbers in a row: shorter ones are better taken an image at a time, as NumPy does


class _Columns(NamedTuple):
    """Tables for rows of W pixels and OW windows of C channels."""

    order: Array  # where the blocks of numbers of the other order start in a row; none for stride 1
    back: Array  # the inverse
    runs: Array  # (kw, 3): of element j, where it starts in that order, in which window, and how far it goes


def max_pool(x: Array, win: Window) -> Any:
    """See `sparkdl.ops.pool.max_pool`."""
    if not _serves(x, x.shape[2], win) or win.kernel[0] * win.kernel[1] > 255:
        return NotImplemented
    n, height, width, c = x.shape
    oh, ow = win.out_size((height, width))
    y, at = np.empty((n, oh, ow, c), x.dtype), np.empty((n, oh, ow, c), np.uint8)
    columns = _columns(width, ow, c, win.kernel[1], win.stride[1], win.pads[1][0])
    rows = height, oh, win.kernel[0], win.stride[0], win.pads[0][0]
    _max(_rows(x), *rows, columns.order, columns.runs, _rows(y), _rows(at))
    return y, at


def max_pool_grad(dy: Array, at: Array, size: Pair, win: Window) -> Any:
    """See `sparkdl.ops.pool.max_pool_grad`."""
    if not _serves(dy, size[1], win) or at.dtype != np.uint8:
        return NotImplemented
    n, oh, ow, c = dy.shape
    dx = np.empty((n, *size, c), dy.dtype)
    columns = _columns(size[1], ow, c, win.kernel[1], win.stride[1], win.pads[1][0])
    rows = size[0], oh, win.kernel[0], win.stride[0], win.pads[0][0]
    _max_back(_rows(dy), _rows(at), *rows, columns.back, columns.runs, _rows(dx))
    return dx


def avg_pool(x: Array, win: Window, counts: Array) -> Any:
    """See `sparkdl.ops.pool.avg_pool`."""
    if not _serves(x, x.shape[2], win):
        return NotImplemented
    n, height, width, c = x.shape
    oh, ow = win.out_size((height, width))
    y = np.empty((n, oh, ow, c), x.dtype)
    columns = _columns(width, ow, c, win.kernel[1], win.stride[1], win.pads[1][0])
    rows = height, oh, win.kernel[0], win.stride[0], win.pads[0][0]
    _avg(_rows(x), row_share(counts, y), *rows, columns.order, columns.runs, _rows(y))
    return y


def avg_pool_grad(dy: Array, size: Pair, win: Window, counts: Array) -> Any:
    """See `sparkdl.ops.pool.avg_pool_grad`."""
    if not _serves(dy, size[1], win):
        return NotImplemented
    n, oh, ow, c = dy.shape
    dx = np.empty((n, *size, c), dy.dtype)
    columns = _columns(size[1], ow, c, win.kernel[1], win.stride[1], win.pads[1][0])
    rows = size[0], oh, win.kernel[0], win.stride[0], win.pads[0][0]
    _avg_back(_rows(dy), row_share(counts, dy), *rows, columns.back, columns.runs, _rows(dx))
    return dx


def _serves(x: Array, width: int, win: Window) -> bool:
    return takes(x) and win.dilation == (1, 1) and width * x.shape[3] >= LEAST_ROW


def _rows(x: Array) -> Array:
    """(N, H, W, C) -> (N H, W C)."""
    n, h, w, c = x.shape
    return np.ascontiguousarray(x).reshape(n * h, w * c)


@functools.lru_cache(64)
def _columns(width: int, out: int, channels: int, kernel: int, stride: int, left: int) -> _Columns:
    order = np.argsort(np.arange(width) % stride, kind="stable")
    place, at = np.argsort(order), np.arange(kernel) - left
    first = np.maximum(0, -(at // stride))
    count = np.maximum(0, np.minimum(out, (width - 1 - at) // stride + 1) - first)
    start = place[np.clip(first * stride + at, 0, width - 1)]
    runs = np.where(count > 0, (start, first, count), 0).T * channels
    there, back = (blocks(v[: width if stride > 1 else 0], channels) for v in (order, place))
    return _Columns(there, back, np.ascontiguousarray(runs))


@kernel
def _max(
    x: Real2, height: int, out: int, kh: int, sh: int, top: int, order: Index1, runs: Index2, y: Real2, at: Byte2
) -> None:
    line, place = np.empty(x.shape[1], x.dtype), np.empty(y.shape[1], x.dtype)
    for r in range(len(y)):
        h = r % out * sh - top
        first_row, best, taken = r // out * height + h, y[r], at[r]
        best[:] = -np.inf
        place[:] = 0
        for i in range(max(0, -h), min(kh, height - h)):
            row = x[first_row + i]
            if order.size:
                take(row, order, line)
                row = line
            for j in range(len(runs)):
                start, first, count = runs[j, 0], runs[j, 1], runs[j, 2]
                value, b, p = row[start : start + count], best[first : first + count], place[first : first + count]
                tap = x.dtype.type(i * len(runs) + j)
                for k in range(count):
                    v, w = value[k], b[k]
                    p[k] = tap if v > w else p[k]
                    b[k] = w if (v <= w) | (w != w) else v
        for k in range(len(place)):
            taken[k] = np.uint8(place[k])


@kernel
def _max_back(
    dy: Real2, at: Byte2, height: int, out: int, kh: int, sh: int, top: int, back: Index1, runs: Index2, dx: Real2
) -> None:
    zero, line = dx.dtype.type(0), np.empty(dx.shape[1], dx.dtype)
    for r in range(len(dx)):
        image, h = r // height, r % height + top
        source = h // sh  # the last row of windows that may see this row, with the first of its elements that do
        i = h - source * sh
        row = line if back.size else dx[r]
        row[:] = 0
        while i < kh:
            if 0 <= source < out:
                d, taken = dy[image * out + source], at[image * out + source]
                for j in range(len(runs)):
                    start, first, count = runs[j, 0], runs[j, 1], runs[j, 2]
                    part, p, target = d[first : first + count], taken[first : first + count], row[start : start + count]
                    tap = np.uint8(i * len(runs) + j)
                    for k in range(count):
                        target[k] += part[k] if p[k] == tap else zero
            i, source = i + sh, source - 1
        take(line, back, dx[r])


@kernel
def _avg(
    x: Real2, share: Real2, height: int, out: int, kh: int, sh: int, top: int, order: Index1, runs: Index2, y: Real2
) -> None:
    total, line = np.empty(x.shape[1], x.dtype), np.empty(x.shape[1], x.dtype)
    for r in range(len(y)):
        image, h = r // out, r % out
        total[:] = 0
        for i in range(max(0, top - h * sh), min(kh, height + top - h * sh)):
            row = x[image * height + h * sh - top + i]
            for k in range(len(row)):
                total[k] += row[k]
        take(total, order, line)
        row, mean, scale = line if order.size else total, y[r], share[h]
        mean[:] = 0
        for j in range(len(runs)):
            start, first, count = runs[j, 0], runs[j, 1], runs[j, 2]
            part, target = row[start : start + count], mean[first : first + count]
            for k in range(count):
                target[k] += part[k]
        for k in range(len(mean)):
            mean[k] *= scale[k]


@kernel
def _avg_back(
    dy: Real2, share: Real2, height: int, out: int, kh: int, sh: int, top: int, back: Index1, runs: Index2, dx: Real2
) -> None:
    total, line = np.empty(dy.shape[1], dx.dtype), np.empty(dx.shape[1], dx.dtype)
    for r in range(len(dx)):
        image, h = r // height, r % height + top
        source = h // sh  # the last row of windows that may see this row, with the first of its elements that do
        i = h - source * sh
        total[:] = 0
        while i < kh:
            if 0 <= source < out:
                d, scale = dy[image * out + source], share[source]
                for k in range(len(d)):
                    total[k] += d[k] * scale[k]
            i, source = i + sh, source - 1
        row = line if back.size else dx[r]
        row[:] = 0
        for j in range(len(runs)):
            start, first, count = runs[j, 0], runs[j, 1], runs[j, 2]
            part, target = total[first : first + count], row[start : start + count]
            for k in range(count):
                target[k] += part[k]
        take(line, back, dx[r])
