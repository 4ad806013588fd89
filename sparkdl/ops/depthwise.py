"""Depthwise convolution: each channel has one filter of its own. x (N, H, W, C), filters (kh, kw, C), y (N, OH, OW, C).

y[n, h, w, c] = sum_ij x[n, h*sh - top + i*dh, w*sw - left + j*dw, c] filters[i, j, c]
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.window import Array, Block, Pair, Shape, Window, blocks, patch, taps, windows

__all__ = ["depthwise", "depthwise_grad_data", "depthwise_grad_weights"]

BLOCK_ELEMENTS = 1 << 17  # of outputs


@twin("sparkdl.ops.fast.depthwise")
def depthwise(x: Array, filters: Array, win: Window) -> Array:
    """y in the dtype of the filters."""
    y = np.empty((len(x), *win.out_size((x.shape[1], x.shape[2])), x.shape[3]), filters.dtype)
    for block, seen in _seen(x, y.shape, win):
        np.einsum("nhwijc,ijc->nhwc", seen, filters, out=y[block])
    return y


@twin("sparkdl.ops.fast.depthwise")
def depthwise_grad_weights(x: Array, dy: Array, win: Window) -> Array:
    """The gradient of the filters (kh, kw, C)."""
    total = np.zeros((*win.kernel, x.shape[3]), dy.dtype)
    for block, seen in _seen(x, dy.shape, win):
        total += np.einsum("nhwijc,nhwc->ijc", seen, dy[block])
    return total


@twin("sparkdl.ops.fast.depthwise")
def depthwise_grad_data(dy: Array, filters: Array, size: Pair, win: Window) -> Array:
    """The gradient of x (N, H, W, C); size = (H, W)."""
    dx, kw = np.zeros((len(dy), *size, dy.shape[3]), filters.dtype), win.kernel[1]
    images = max(1, BLOCK_ELEMENTS // max(1, dy[:1].size))
    for start in range(0, len(dy), images):
        part, slopes = dx[start : start + images], dy[start : start + images]
        for tap in taps(size, (dy.shape[1], dy.shape[2]), win):
            part[:, *tap.inside] += slopes[:, *tap.out] * filters[tap.place // kw, tap.place % kw]
    return dx


def _seen(x: Array, out_shape: Shape, win: Window) -> Iterator[tuple[Block, Array]]:
    """Per block of output pixels: its index into (N, OH), and a view of its windows (n, oh, ow, kh, kw, C)."""
    for block in blocks(out_shape, BLOCK_ELEMENTS // x.shape[3]):
        yield block, windows(patch(x, block, win, out_shape[2]), win)
