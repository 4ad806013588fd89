"""Compiled twins of the kernels of `sparkdl.ops.direct`: windows are read where they lie in the padded image.

A window's row of kw C elements lies contiguous there, and the next output's begins sw C elements further on: an output
row is a product of matrices whose first has rows that overlap. The gradient of the filters is one whose first is the
same, transposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real1, Real4, kernel, takes
from sparkdl.ops.fast.images import place
from sparkdl.ops.fast.products import products
from sparkdl.ops.window import Array, Pair, Window

__all__ = ["correlate", "direct_grad_weights"]


def correlate(x: Array, W: Array, win: Window, b: Array | None, y: Array, first: Pair, step: Pair, size: Pair) -> Any:
    """See `sparkdl.ops.direct.correlate`."""
    if win.dilation[1] != 1 or not takes(x, W, y) or not y.flags.c_contiguous:
        return NotImplemented
    bias = np.zeros(W.shape[3], W.dtype) if b is None else np.ascontiguousarray(b)
    (sh, sw), dh, ((top, _), (left, _)) = win.stride, win.dilation[0], win.pads
    x, W = np.ascontiguousarray(x), np.ascontiguousarray(W)
    _forward(x, W, bias, sh, sw, dh, top, left, y, *first, *step, *size)
    return y


def direct_grad_weights(x: Array, dy: Array, win: Window) -> Any:
    """See `sparkdl.ops.direct.direct_grad_weights`."""
    if win.dilation[1] != 1 or not takes(x, dy):
        return NotImplemented
    (sh, sw), dh, ((top, _), (left, _)) = win.stride, win.dilation[0], win.pads
    total = np.zeros((*win.kernel, x.shape[3], dy.shape[3]), dy.dtype)
    _weights(np.ascontiguousarray(x), np.ascontiguousarray(dy), sh, sw, dh, top, left, total)
    return total


@kernel
def _forward(
    x: Real4, W: Real4, b: Real1, sh: int, sw: int, dh: int, top: int, left: int, y: Real4,
    h0: int, w0: int, hs: int, ws: int, oh: int, ow: int,
) -> None:  # fmt: skip
    n, _, _, c = x.shape
    kh, kw, _, f = W.shape
    _, rows, cols, _ = y.shape
    padded = np.zeros(((oh - 1) * sh + (kh - 1) * dh + 1, ((ow - 1) * sw + kw) * c), x.dtype)
    line, seen, filters, out = padded.shape[1], padded.reshape(-1), W.reshape(-1), y.reshape(-1)
    for image in range(n):
        place(x[image], padded, top, left)
        for h in range(oh):
            products(
                (seen, h * sh * line, sw * c, dh * line, 1),
                (filters, 0, kw * c * f, f),
                (out, ((image * rows + h0 + h * hs) * cols + w0) * f, ws * f),
                (b, 0, 0),
                (kh, kw * c),
                ow,
                f,
            )


@kernel
def _weights(x: Real4, dy: Real4, sh: int, sw: int, dh: int, top: int, left: int, total: Real4) -> None:
    n, oh, ow, f = dy.shape
    kh, kw, c, _ = total.shape
    padded = np.zeros(((oh - 1) * sh + (kh - 1) * dh + 1, ((ow - 1) * sw + kw) * c), x.dtype)
    line, seen, slopes = padded.shape[1], padded.reshape(-1), dy.reshape(-1)
    whole, one, none = total.reshape(-1), np.empty(total.size, dy.dtype), np.zeros(f, dy.dtype)
    for image in range(n):  # a sum for each, so that no sum has too many terms
        place(x[image], padded, top, left)
        for i in range(kh):
            products(
                (seen, i * dh * line, 1, sh * line, sw * c),
                (slopes, image * oh * ow * f, ow * f, f),
                (one, i * kw * c * f, f),
                (none, 0, 0),
                (oh, ow),
                kw * c,
                f,
            )
        for p in range(len(whole)):
            whole[p] += one[p]
