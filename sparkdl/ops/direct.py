"""Convolution at stride 1 without gathering windows: one matrix product of the shifted image for each filter tap.

With the padded images of a block as rows X (n Hp Wp, C), one a pixel, tap (i, j) sees X from row o = i dh Wp + j dw on:

    y = sum_ij X[o_ij:] W[i, j]

Outputs whose window would wrap around the edge are computed as well and dropped. Nothing is copied but the padding,
which pays where the channels are few, so that gathering costs as much as multiplying.

Largest error in float32, against float64 and as a share of the largest result, over 16 to 512 channels of normal
numbers: 7e-7, as im2row's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparkdl.ops.window import Array, Block, Pair, Shape, Window, blocks, patch

__all__ = ["applies", "direct", "direct_grad_data", "direct_grad_weights"]

BLOCK_ELEMENTS = 1 << 16  # of padded images in one block


def applies(win: Window, groups: int) -> bool:
    """Whether this is a convolution that can be computed so."""
    return win.stride == (1, 1) and groups == 1


def direct(x: Array, W: Array, win: Window, b: Array | None = None) -> Array:
    """x (N, H, W, C), W (kh, kw, C, F), b (F,) or None -> y (N, OH, OW, F) in the dtype of W."""
    y = np.empty((len(x), *win.out_size(x.shape[1:3]), W.shape[3]), W.dtype)
    for block, seen in _blocks(x, y.shape, win):
        rows, (n, height, width, c) = seen.reshape(-1, seen.shape[3]), seen.shape
        offsets = list(_offsets(win, width))
        count = len(rows) - offsets[-1]
        total = np.empty((len(rows), W.shape[3]), W.dtype)
        term = np.empty_like(total[:count])
        np.matmul(rows[:count], W[0, 0], out=total[:count])
        for offset, taps in zip(offsets[1:], W.reshape(-1, c, W.shape[3])[1:], strict=True):
            np.matmul(rows[offset : offset + count], taps, out=term)
            total[:count] += term
        out = y[block]
        out[...] = total.reshape(n, height, width, -1)[:, : out.shape[1], : out.shape[2]]
        if b is not None:
            out += b
    return y


def direct_grad_weights(x: Array, dy: Array, win: Window) -> Array:
    """x (N, H, W, C), dy (N, OH, OW, F) -> dW (kh, kw, C, F)."""
    c, f = x.shape[3], dy.shape[3]
    dW = np.zeros((win.kernel[0] * win.kernel[1], c, f), dy.dtype)
    for block, seen in _blocks(x, dy.shape, win):
        rows, part = seen.reshape(-1, c), dy[block]
        slopes = np.zeros((*seen.shape[:3], f), dy.dtype)  # 0 where no output is
        slopes[:, : part.shape[1], : part.shape[2]] = part
        offsets = list(_offsets(win, seen.shape[2]))
        count = len(rows) - offsets[-1]
        flat = slopes.reshape(-1, f)[:count]
        for offset, taps in zip(offsets, dW, strict=True):
            taps += rows[offset : offset + count].T @ flat
    return dW.reshape(*win.kernel, c, f)


def direct_grad_data(dy: Array, W: Array, size: Pair, win: Window) -> Array:
    """dy (N, OH, OW, F), W (kh, kw, C, F), size = (H, W) -> dx (N, H, W, C): dy under the filters reversed."""
    axes = zip(size, dy.shape[1:3], win.extent, win.pads, strict=True)
    rows, cols = ((e - 1 - p[0], n - out + p[0]) for n, out, e, p in axes)
    flipped = np.ascontiguousarray(W[::-1, ::-1].transpose(0, 1, 3, 2))
    return direct(dy, flipped, win._replace(pads=(rows, cols)))


def _offsets(win: Window, width: int) -> Iterator[int]:
    """How many rows of X each tap is ahead."""
    (kh, kw), (dh, dw) = win.kernel, win.dilation
    return (i * dh * width + j * dw for i in range(kh) for j in range(kw))


def _blocks(x: Array, out_shape: Shape, win: Window) -> Iterator[tuple[Block, Array]]:
    """Whole images or rows of one: their place in (N, OH), and what they see of the padded x, contiguous."""
    for block in blocks(out_shape, BLOCK_ELEMENTS // x.shape[3]):
        yield block, np.ascontiguousarray(patch(x, block, win, out_shape[2]))
