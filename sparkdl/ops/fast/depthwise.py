"""Compiled twins of the kernels of `sparkdl.ops.depthwise`: no padding is ever made."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real3, Real4, inline, kernel, takes
from sparkdl.ops.window import Array, Pair, Window

__all__ = ["depthwise", "depthwise_grad_data", "depthwise_grad_weights"]


def depthwise(x: Array, filters: Array, win: Window) -> Any:
    """See `sparkdl.ops.depthwise.depthwise`."""
    if not takes(x, filters):
        return NotImplemented
    y = np.empty((len(x), *win.out_size((x.shape[1], x.shape[2])), x.shape[3]), filters.dtype)
    _forward(np.ascontiguousarray(x), np.ascontiguousarray(filters), *_steps(win), y)
    return y


def depthwise_grad_weights(x: Array, dy: Array, win: Window) -> Any:
    """See `sparkdl.ops.depthwise.depthwise_grad_weights`."""
    if not takes(x, dy):
        return NotImplemented
    total = np.zeros((*win.kernel, x.shape[3]), dy.dtype)
    _weights(np.ascontiguousarray(x), np.ascontiguousarray(dy), *_steps(win), total)
    return total


def depthwise_grad_data(dy: Array, filters: Array, size: Pair, win: Window) -> Any:
    """See `sparkdl.ops.depthwise.depthwise_grad_data`."""
    if not takes(dy, filters):
        return NotImplemented
    dx = np.zeros((len(dy), *size, dy.shape[3]), filters.dtype)
    _data(np.ascontiguousarray(dy), np.ascontiguousarray(filters), *_steps(win), dx)
    return dx


def _steps(win: Window) -> tuple[int, int, int, int, int, int]:
    (top, _), (left, _) = win.pads
    return (*win.stride, *win.dilation, top, left)


@inline
def _within(start: int, dilation: int, kernel: int, size: int) -> tuple[int, int]:
    """The taps i of 0..kernel for which start + i dilation lies in 0..size, as first and last + 1."""
    first = (-start + dilation - 1) // dilation if start < 0 else 0
    last = (size - start + dilation - 1) // dilation
    return min(first, kernel), max(min(first, kernel), min(kernel, last))


@kernel
def _forward(x: Real4, filters: Real3, sh: int, sw: int, dh: int, dw: int, top: int, left: int, out: Real4) -> None:
    n, oh, ow, channels = out.shape
    kh, kw, _ = filters.shape
    for image in range(n):
        for h in range(oh):
            i0, i1 = _within(h * sh - top, dh, kh, x.shape[1])
            for w in range(ow):
                j0, j1 = _within(w * sw - left, dw, kw, x.shape[2])
                y = out[image, h, w]
                y[:] = 0
                for i in range(i0, i1):
                    row, at = x[image, h * sh - top + i * dh], w * sw - left
                    j = j0
                    while j + 3 <= j1:  # three taps at a time: fewer passes over y
                        x0, x1, x2 = row[at + j * dw], row[at + (j + 1) * dw], row[at + (j + 2) * dw]
                        k0, k1, k2 = filters[i, j], filters[i, j + 1], filters[i, j + 2]
                        for c in range(channels):
                            y[c] += x0[c] * k0[c] + x1[c] * k1[c] + x2[c] * k2[c]
                        j += 3
                    while j < j1:
                        x0, k0 = row[at + j * dw], filters[i, j]
                        for c in range(channels):
                            y[c] += x0[c] * k0[c]
                        j += 1


@kernel
def _weights(x: Real4, dy: Real4, sh: int, sw: int, dh: int, dw: int, top: int, left: int, total: Real3) -> None:
    n, oh, ow, channels = dy.shape
    kh, kw, _ = total.shape
    sums = np.empty((kh, kw, channels), dy.dtype)  # of one image: fewer terms in the dtype of dy to a sum
    for image in range(n):
        sums[:] = 0
        for h in range(oh):
            i0, i1 = _within(h * sh - top, dh, kh, x.shape[1])
            for i in range(i0, i1):
                row = x[image, h * sh - top + i * dh]
                for w in range(ow):
                    d, at = dy[image, h, w], w * sw - left
                    j0, j1 = _within(at, dw, kw, x.shape[2])
                    for j in range(j0, j1):
                        seen, s = row[at + j * dw], sums[i, j]
                        for c in range(channels):
                            s[c] += seen[c] * d[c]
        for i in range(kh):
            for j in range(kw):
                t, s = total[i, j], sums[i, j]
                for c in range(channels):
                    t[c] += s[c]


@kernel
def _data(dy: Real4, filters: Real3, sh: int, sw: int, dh: int, dw: int, top: int, left: int, dx: Real4) -> None:
    n, oh, ow, channels = dy.shape
    kh, kw, _ = filters.shape
    for image in range(n):
        for h in range(oh):
            i0, i1 = _within(h * sh - top, dh, kh, dx.shape[1])
            for w in range(ow):
                d, at = dy[image, h, w], w * sw - left
                j0, j1 = _within(at, dw, kw, dx.shape[2])
                for i in range(i0, i1):
                    row = dx[image, h * sh - top + i * dh]
                    for j in range(j0, j1):
                        target, k = row[at + j * dw], filters[i, j]
                        for c in range(channels):
                            target[c] += d[c] * k[c]
