"""Compiled twins of `sparkdl.ops.depthwise`: tiles of outputs side by side, a vector of channels each."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real3, Real4, kernel, takes
from sparkdl.ops.fast.images import place
from sparkdl.ops.fast.products import lanewise_products
from sparkdl.ops.phases import phases
from sparkdl.ops.window import Array, Pair, Window

__all__ = ["depthwise", "depthwise_grad_data", "depthwise_grad_weights"]


def depthwise(x: Array, filters: Array, win: Window) -> Any:
    """See `sparkdl.ops.depthwise.depthwise`."""
    if not takes(x, filters):
        return NotImplemented
    size = win.out_size((x.shape[1], x.shape[2]))
    y = np.empty((len(x), *size, x.shape[3]), filters.dtype)
    _forward(np.ascontiguousarray(x), np.ascontiguousarray(filters), *_steps(win), y, 0, 0, 1, 1, *size)
    return y


def depthwise_grad_weights(x: Array, dy: Array, win: Window) -> Any:
    """See `sparkdl.ops.depthwise.depthwise_grad_weights`."""
    if not takes(x, dy):
        return NotImplemented
    total = np.zeros((*win.kernel, x.shape[3]), dy.dtype)
    _weights(np.ascontiguousarray(x), np.ascontiguousarray(dy), *_steps(win), total)
    return total


def depthwise_grad_data(dy: Array, filters: Array, size: Pair, win: Window) -> Any:
    """See `sparkdl.ops.depthwise.depthwise_grad_data`: dy under the filters reversed, several times at a stride."""
    if not takes(dy, filters):
        return NotImplemented
    dx, dy = np.zeros((len(dy), *size, dy.shape[3]), filters.dtype), np.ascontiguousarray(dy)
    rows, cols = phases(size, (dy.shape[1], dy.shape[2]), win)
    for r in rows:
        for c in cols:
            taps = np.ascontiguousarray(filters[r.taps, c.taps][::-1, ::-1])
            count = len(range(r.start, size[0], win.stride[0])), len(range(c.start, size[1], win.stride[1]))
            part = 1, 1, r.dilation, c.dilation, r.pads[0], c.pads[0]
            _forward(dy, taps, *part, dx, r.start, c.start, *win.stride, *count)
    return dx


def _steps(win: Window) -> tuple[int, int, int, int, int, int]:
    (top, _), (left, _) = win.pads
    return (*win.stride, *win.dilation, top, left)


@kernel
def _forward(
    x: Real4, filters: Real3, sh: int, sw: int, dh: int, dw: int, top: int, left: int, y: Real4,
    h0: int, w0: int, hs: int, ws: int, oh: int, ow: int,
) -> None:  # fmt: skip
    n, _, _, channels = x.shape
    kh, kw, _ = filters.shape
    _, rows, cols, _ = y.shape
    padded = np.zeros(((oh - 1) * sh + (kh - 1) * dh + 1, ((ow - 1) * sw + (kw - 1) * dw + 1) * channels), x.dtype)
    line, none = padded.shape[1], np.zeros(channels, x.dtype)
    seen, taps, out = padded.reshape(-1), filters.reshape(-1), y.reshape(-1)
    for image in range(n):
        place(x[image], padded, top, left)
        for h in range(oh):
            start = ((image * rows + h0 + h * hs) * cols + w0) * channels
            lanewise_products(
                (seen, h * sh * line, sw * channels, dh * line, dw * channels),
                (taps, 0, kw * channels, channels),
                (out, start, ws * channels),
                (none, 0, 0),
                (kh, kw),
                ow,
                channels,
            )


@kernel
def _weights(x: Real4, dy: Real4, sh: int, sw: int, dh: int, dw: int, top: int, left: int, total: Real3) -> None:
    n, oh, ow, channels = dy.shape
    kh, kw, _ = total.shape
    padded = np.zeros(((oh - 1) * sh + (kh - 1) * dh + 1, ((ow - 1) * sw + (kw - 1) * dw + 1) * channels), x.dtype)
    line, none, one = padded.shape[1], np.zeros(channels, x.dtype), np.empty(total.size, x.dtype)
    seen, slopes, whole = padded.reshape(-1), dy.reshape(-1), total.reshape(-1)
    for image in range(n):  # a sum for each, so that no sum has too many terms
        place(x[image], padded, top, left)
        for i in range(kh):
            lanewise_products(
                (seen, i * dh * line, dw * channels, sh * line, sw * channels),
                (slopes, image * oh * ow * channels, ow * channels, channels),
                (one, i * kw * channels, channels),
                (none, 0, 0),
                (oh, ow),
                kw,
                channels,
            )
        for p in range(len(whole)):
            whole[p] += one[p]
