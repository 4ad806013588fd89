"""Compiled twins of the kernels of `sparkdl.ops.pool`, for windows that lie on the input as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Byte4, Real4, kernel, takes
from sparkdl.ops.window import Array, Pair, Window

__all__ = ["max_pool", "max_pool_grad"]

LEAST_CHANNELS = 8  # NumPy takes an image's row at a time, which is better where pixels are shorter


def max_pool(x: Array, win: Window) -> Any:
    """See `sparkdl.ops.pool.max_pool`."""
    if not takes(x) or x.shape[3] < LEAST_CHANNELS or win.dilation != (1, 1) or win.kernel[0] * win.kernel[1] > 255:
        return NotImplemented
    y = np.empty((len(x), *win.out_size((x.shape[1], x.shape[2])), x.shape[3]), x.dtype)
    at = np.empty(y.shape, np.uint8)
    _max(np.ascontiguousarray(x), *win.kernel, *win.stride, win.pads[0][0], win.pads[1][0], y, at)
    return y, at


def max_pool_grad(dy: Array, at: Array, size: Pair, win: Window) -> Any:
    """See `sparkdl.ops.pool.max_pool_grad`."""
    if not takes(dy) or dy.shape[3] < LEAST_CHANNELS or at.dtype != np.uint8 or win.dilation != (1, 1):
        return NotImplemented
    dx = np.zeros((len(dy), *size, dy.shape[3]), dy.dtype)
    _max_back(np.ascontiguousarray(dy), at, *win.kernel, *win.stride, win.pads[0][0], win.pads[1][0], dx)
    return dx


@kernel
def _max(x: Real4, kh: int, kw: int, sh: int, sw: int, top: int, left: int, y: Real4, at: Byte4) -> None:
    n, height, width, channels = x.shape
    for image in range(n):
        for h in range(y.shape[1]):
            for w in range(y.shape[2]):
                best, place = y[image, h, w], at[image, h, w]
                best[:] = -np.inf
                place[:] = 0
                for i in range(max(0, top - h * sh), min(kh, height + top - h * sh)):
                    for j in range(max(0, left - w * sw), min(kw, width + left - w * sw)):
                        value, tap = x[image, h * sh - top + i, w * sw - left + j], np.uint8(i * kw + j)
                        for c in range(channels):
                            larger = value[c] > best[c]
                            place[c] = tap if larger else place[c]
                            best[c] = value[c] if larger or value[c] != value[c] else best[c]


@kernel
def _max_back(dy: Real4, at: Byte4, kh: int, kw: int, sh: int, sw: int, top: int, left: int, dx: Real4) -> None:
    n, height, width, channels = dx.shape
    zero = dx.dtype.type(0)
    for image in range(n):
        for h in range(dy.shape[1]):
            for w in range(dy.shape[2]):
                d, place = dy[image, h, w], at[image, h, w]
                for i in range(max(0, top - h * sh), min(kh, height + top - h * sh)):
                    for j in range(max(0, left - w * sw), min(kw, width + left - w * sw)):
                        target, tap = dx[image, h * sh - top + i, w * sw - left + j], np.uint8(i * kw + j)
                        for c in range(channels):
                            target[c] += d[c] if place[c] == tap else zero
