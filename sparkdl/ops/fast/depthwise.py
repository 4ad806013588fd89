"""Compiled twins of the depthwise kernels of `sparkdl.ops.depthwise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import kernel, takes
from sparkdl.ops.window import Array, Window

__all__ = ["correlate", "scatter", "weigh"]


def weigh(seen: Array, filters: Array, win: Window, out: Array) -> Any:
    """See `sparkdl.ops.depthwise.weigh`."""
    if not takes(seen, filters, out) or not out.flags.c_contiguous:
        return NotImplemented
    return _weigh(np.ascontiguousarray(seen), np.ascontiguousarray(filters), *win.stride, *win.dilation, out)


def correlate(seen: Array, dy: Array, win: Window, out: Array) -> Any:
    """See `sparkdl.ops.depthwise.correlate`."""
    if not takes(seen, dy, out):
        return NotImplemented
    return _correlate(np.ascontiguousarray(seen), np.ascontiguousarray(dy), *win.stride, *win.dilation, out)


def scatter(dy: Array, filters: Array, win: Window, seen: Array) -> Any:
    """See `sparkdl.ops.depthwise.scatter`."""
    if not takes(dy, filters, seen):
        return NotImplemented
    return _scatter(np.ascontiguousarray(dy), np.ascontiguousarray(filters), *win.stride, *win.dilation, seen)


@kernel
def _weigh(seen: Array, filters: Array, sh: int, sw: int, dh: int, dw: int, out: Array) -> None:
    n, oh, ow, channels = out.shape
    kh, kw, _ = filters.shape
    for image in range(n):
        for h in range(oh):
            for w in range(ow):
                y = out[image, h, w]
                y[:] = 0
                for i in range(kh):
                    line = seen[image, h * sh + i * dh, w * sw :]
                    j = 0
                    while j + 3 <= kw:  # three taps at a time: fewer passes over y
                        x0, x1, x2 = line[j * dw], line[(j + 1) * dw], line[(j + 2) * dw]
                        k0, k1, k2 = filters[i, j], filters[i, j + 1], filters[i, j + 2]
                        for c in range(channels):
                            y[c] += x0[c] * k0[c] + x1[c] * k1[c] + x2[c] * k2[c]
                        j += 3
                    while j < kw:
                        x0, k0 = line[j * dw], filters[i, j]
                        for c in range(channels):
                            y[c] += x0[c] * k0[c]
                        j += 1


@kernel
def _correlate(seen: Array, dy: Array, sh: int, sw: int, dh: int, dw: int, out: Array) -> None:
    n, oh, ow, channels = dy.shape
    kh, kw, _ = out.shape
    total = np.empty(channels, dy.dtype)
    for image in range(n):
        for i in range(kh):
            for j in range(kw):
                total[:] = 0
                for h in range(oh):
                    line = seen[image, h * sh + i * dh]
                    for w in range(ow):
                        x, d = line[w * sw + j * dw], dy[image, h, w]
                        for c in range(channels):
                            total[c] += x[c] * d[c]
                slope = out[i, j]
                for c in range(channels):
                    slope[c] += total[c]


@kernel
def _scatter(dy: Array, filters: Array, sh: int, sw: int, dh: int, dw: int, seen: Array) -> None:
    n, oh, ow, channels = dy.shape
    kh, kw, _ = filters.shape
    for image in range(n):
        for h in range(oh):
            for w in range(ow):
                d = dy[image, h, w]
                for i in range(kh):
                    line = seen[image, h * sh + i * dh]
                    for j in range(kw):
                        x, k = line[w * sw + j * dw], filters[i, j]
                        for c in range(channels):
                            x[c] += d[c] * k[c]
