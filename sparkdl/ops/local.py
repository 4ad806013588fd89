"""Locally connected layers: a convolution whose filters differ from place to place.

x (N, H, W, C), W (OH, OW, kh, kw, C, F), y (N, OH, OW, F):

    y[n, h, w, f] = sum_ijc x[n, h*sh - top + i*dh, w*sw - left + j*dw, c] W[h, w, i, j, c, f]

Each output pixel is a product of its own, (N, kh*kw*C) by (kh*kw*C, F); a row of the image makes one batched call, so
that the windows of a whole batch never exist at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sparkdl.ops.window import Array, Pair, Window, patch, taps, windows

__all__ = ["local2d", "local2d_grad_data", "local2d_grad_weights"]


def local2d(x: Array, W: Array, win: Window) -> Array:
    """x (N, H, W, C), W (OH, OW, kh, kw, C, F) -> y (N, OH, OW, F)."""
    oh, ow, f = W.shape[0], W.shape[1], W.shape[5]
    y = np.empty((len(x), oh, ow, f), W.dtype)
    for h, rows in _rows(x, (oh, ow), win):
        np.matmul(rows, W[h].reshape(ow, -1, f), out=y[:, h].transpose(1, 0, 2))
    return y


def local2d_grad_weights(x: Array, dy: Array, win: Window) -> Array:
    """x (N, H, W, C), dy (N, OH, OW, F) -> dW (OH, OW, kh, kw, C, F)."""
    _, oh, ow, f = dy.shape
    dW = np.empty((oh, ow, *win.kernel, x.shape[3], f), dy.dtype)
    for h, rows in _rows(x, (oh, ow), win):
        np.matmul(rows.transpose(0, 2, 1), dy[:, h].transpose(1, 0, 2), out=dW[h].reshape(ow, -1, f))
    return dW


def local2d_grad_data(dy: Array, W: Array, size: Pair, win: Window) -> Array:
    """dy (N, OH, OW, F), W (OH, OW, kh, kw, C, F), size = (H, W) -> dx (N, H, W, C)."""
    oh, ow, _, kw, c, _ = W.shape
    dx = np.zeros((len(dy), *size, c), W.dtype)
    for tap in taps(size, (oh, ow), win):
        filters = W[:, :, tap.place // kw, tap.place % kw][tap.out]  # (h, w, C, F) of the outputs that see the image
        seen = dy[:, *tap.out].transpose(1, 2, 0, 3)
        dx[:, *tap.inside] += (seen @ filters.transpose(0, 1, 3, 2)).transpose(2, 0, 1, 3)
    return dx


def _rows(x: Array, out_size: Pair, win: Window) -> Iterator[tuple[int, Array]]:
    """Per row of the output: its index, and its windows (OW, N, kh*kw*C)."""
    oh, ow = out_size
    k = math.prod(win.kernel) * x.shape[3]
    for h in range(oh):
        seen = windows(patch(x, (slice(0, len(x)), slice(h, h + 1)), win, ow), win)[:, 0]
        yield h, seen.transpose(1, 0, 2, 3, 4).reshape(ow, len(x), k)
