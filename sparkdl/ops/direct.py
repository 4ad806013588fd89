"""Convolution without gathering windows: one matrix product of the shifted image for each filter tap.

With the padded images of a block as rows X (n Hp Wp, C), one a pixel, tap (i, j) sees X from row o = i dh Wp + j dw on:

    y = sum_ij X[o_ij:] W[i, j]

At stride 1 outputs whose window would wrap around the edge are computed as well and dropped; nothing is copied but the
padding, which pays where the channels are few, so that gathering costs as much as multiplying. Compiled, the sums of a
tile of outputs stay in registers over all taps, for any stride, and the product with the filters costs no more than
BLAS's: then it is the fastest by definition wherever the filters fit the cache.

Largest error in float32, against float64 and as a share of the largest result, over 16 to 512 channels of normal
numbers: 7e-7, as im2row's; compiled, where the terms of a sum are added one after another, 1.3e-6 up to 128 channels
and 3e-6 up to 512.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparkdl.compiled import enabled, twin
from sparkdl.ops.conv import conv2d_grad_data
from sparkdl.ops.phases import phases
from sparkdl.ops.window import Array, Block, Pair, Shape, Window, blocks, patch

__all__ = ["applies", "correlate", "direct", "direct_grad_data", "direct_grad_weights"]

BLOCK_ELEMENTS = 1 << 16  # of padded images in one block
FEW_CHANNELS, FEW_STRIDED = 8, 64  # of dx: below, registers stand half empty, and adding up rows of dy W^T is faster


def applies(win: Window, groups: int) -> bool:
    """Whether this is a convolution that can be computed so."""
    return groups == 1


def direct(x: Array, W: Array, win: Window, b: Array | None = None) -> Array:
    """x (N, H, W, C), W (kh, kw, C, F), b (F,) or None -> y (N, OH, OW, F) in the dtype of W."""
    size = win.out_size((x.shape[1], x.shape[2]))
    y = np.empty((len(x), *size, W.shape[3]), W.dtype)
    return correlate(x, W, win, b, y, (0, 0), (1, 1), size)


def direct_grad_data(dy: Array, W: Array, size: Pair, win: Window) -> Array:
    """dy (N, OH, OW, F), W (kh, kw, C, F), size = (H, W) -> dx (N, H, W, C): dy under the filters reversed.

    With a stride, that is several convolutions of dy, each by some of the taps, whose results lie interleaved in dx.
    Compiled, im2row does it where C is so small that it is faster.
    """
    if enabled() and W.shape[2] < (FEW_CHANNELS if win.stride == (1, 1) else FEW_STRIDED):
        return conv2d_grad_data(dy, W, size, win)
    reached = all(k >= s for k, s in zip(win.kernel, win.stride, strict=True)) and max(win.dilation) == 1
    shape = (len(dy), *size, W.shape[2])
    dx = np.empty(shape, W.dtype) if reached else np.zeros(shape, W.dtype)
    rows, cols = phases(size, (dy.shape[1], dy.shape[2]), win)
    for r in rows:
        for c in cols:
            filters = np.ascontiguousarray(W[r.taps, c.taps][::-1, ::-1].transpose(0, 1, 3, 2))
            part = Window(filters.shape[:2], dilation=(r.dilation, c.dilation), pads=(r.pads, c.pads))
            count = len(range(r.start, size[0], win.stride[0])), len(range(c.start, size[1], win.stride[1]))
            correlate(dy, filters, part, None, dx, (r.start, c.start), win.stride, count)
    return dx


@twin("sparkdl.ops.fast.direct")
def correlate(x: Array, W: Array, win: Window, b: Array | None, y: Array, first: Pair, step: Pair, size: Pair) -> Array:
    """The convolution, of `size` = (OH, OW), into the pixels first, first + step, ... of y (N, ..., ..., F); returns y.

    x (N, H, W, C), W (kh, kw, C, F), b (F,) or None.
    """
    place = y[:, first[0] :: step[0], first[1] :: step[1]][:, : size[0], : size[1]]
    for block, seen in _blocks(x, (len(x), *size), win):
        out = place[block]
        total = np.zeros((*_grid(seen, out.shape, win), W.shape[3]), W.dtype)
        flat = total.reshape(-1, W.shape[3])
        for rows, taps in zip(_shifted(seen, out.shape, win), W.reshape(-1, *W.shape[2:]), strict=True):
            flat[: len(rows)] += rows @ taps
        out[...] = total[:, : out.shape[1], : out.shape[2]]
        if b is not None:
            out += b
    return y


@twin("sparkdl.ops.fast.direct")
def direct_grad_weights(x: Array, dy: Array, win: Window) -> Array:
    """x (N, H, W, C), dy (N, OH, OW, F) -> dW (kh, kw, C, F)."""
    c, f = x.shape[3], dy.shape[3]
    dW = np.zeros((win.kernel[0] * win.kernel[1], c, f), dy.dtype)
    for block, seen in _blocks(x, dy.shape, win):
        part = dy[block]
        slopes = np.zeros((*_grid(seen, part.shape, win), f), dy.dtype)  # 0 where no output is
        slopes[:, : part.shape[1], : part.shape[2]] = part
        flat = slopes.reshape(-1, f)
        for rows, taps in zip(_shifted(seen, part.shape, win), dW, strict=True):
            taps += rows.T @ flat[: len(rows)]
    return dW.reshape(*win.kernel, c, f)


def _grid(seen: Array, out: Shape, win: Window) -> Shape:
    """(n, rows, columns) of what is computed for an output (n, OH, OW, F): at stride 1 for all pixels that are seen."""
    return seen.shape[:3] if win.stride == (1, 1) else out[:3]


def _shifted(seen: Array, out: Shape, win: Window) -> Iterator[Array]:
    """For each tap, what the first pixels of the grid see through it: (T, C)."""
    (kh, kw), (sh, sw), (dh, dw) = win.kernel, win.stride, win.dilation
    flat, width = seen.reshape(-1, seen.shape[3]), seen.shape[2]
    count = len(flat) - (kh - 1) * dh * width - (kw - 1) * dw
    for i in range(kh):
        for j in range(kw):
            if win.stride == (1, 1):
                start = i * dh * width + j * dw
                yield flat[start : start + count]
            else:
                strided = seen[:, i * dh :: sh, j * dw :: sw]
                yield strided[:, : out[1], : out[2]].reshape(-1, seen.shape[3])


def _blocks(x: Array, out_shape: Shape, win: Window) -> Iterator[tuple[Block, Array]]:
    """Whole images or rows of one: their place in (N, OH), and what they see of the padded x, contiguous."""
    for block in blocks(out_shape, max(1, BLOCK_ELEMENTS // x.shape[3])):
        yield block, np.ascontiguousarray(patch(x, block, win, out_shape[2]))
