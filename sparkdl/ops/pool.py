"""Two-dimensional pooling. x, dx (N, H, W, C); y, dy (N, OH, OW, C); every channel on its own.

A window's elements are taken one after the other: element (i, j) of all windows of a block at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.window import Array, Pads, Pair, Shape, Window, blocks, patch, taps, windows

__all__ = ["avg_pool", "avg_pool_grad", "coverage", "max_pool", "max_pool_grad", "row_share"]

BLOCK_ELEMENTS = 1 << 17  # of one block of outputs


@twin("sparkdl.ops.fast.pool")
def max_pool(x: Array, win: Window) -> tuple[Array, Array]:
    """x -> (y: the largest of each window; at: its place i * kw + j, the first among equals). Padding is -inf.

    A window that holds a NaN gives NaN.
    """
    kh, kw = win.kernel
    y = np.empty((len(x), *win.out_size(x.shape[1:3]), x.shape[3]), x.dtype)
    at = np.empty(y.shape, np.min_scalar_type(kh * kw))
    for block in blocks(y.shape, BLOCK_ELEMENTS // y.shape[3]):
        seen = windows(patch(x, block, win, y.shape[2], -np.inf), win)
        best, place = y[block], at[block]
        best[...], place[...] = seen[:, :, :, 0, 0], 0
        for tap in range(1, kh * kw):
            value = seen[:, :, :, tap // kw, tap % kw]
            # Taps ascend, so the last that exceeds all before it is the first of the largest.
            np.maximum(place, np.multiply(value > best, tap, dtype=at.dtype), out=place)
            np.maximum(best, value, out=best)
    return y, at


@twin("sparkdl.ops.fast.pool")
def max_pool_grad(dy: Array, at: Array, size: Pair, win: Window) -> Array:
    """dy, at (N, OH, OW, C), size = (H, W) -> dx: each dy goes to the one position that `max_pool` took."""
    dx = _blank(dy, size, win)
    for images in _images(dy.shape):
        for tap in taps(size, dy.shape[1:3], win):
            taken, target = at[images, *tap.out] == tap.place, dx[images, *tap.inside]
            if _disjoint(win):
                np.multiply(dy[images, *tap.out], taken, out=target)
            else:
                target += dy[images, *tap.out] * taken
    return dx


@twin("sparkdl.ops.fast.pool")
def avg_pool(x: Array, win: Window, counts: Array) -> Array:
    """x -> y: the sum of each window over its entry of counts (OH, OW); padding adds nothing to the sum."""
    kh, kw = win.kernel
    y = np.empty((len(x), *win.out_size(x.shape[1:3]), x.shape[3]), x.dtype)
    share = row_share(counts, y).reshape(*y.shape[1:])
    for block in blocks(y.shape, BLOCK_ELEMENTS // y.shape[3]):
        seen = windows(patch(x, block, win, y.shape[2]), win)
        total = y[block]
        total[...] = seen[:, :, :, 0, 0]
        for tap in range(1, kh * kw):
            total += seen[:, :, :, tap // kw, tap % kw]
        total *= share[block[1]]
    return y


@twin("sparkdl.ops.fast.pool")
def avg_pool_grad(dy: Array, size: Pair, win: Window, counts: Array) -> Array:
    """dy (N, OH, OW, C), size = (H, W), counts (OH, OW) -> dx: dy / count to every position of its window."""
    dx, share = _blank(dy, size, win), row_share(counts, dy).reshape(*dy.shape[1:])
    for images in _images(dy.shape):
        spread = dy[images] * share
        for tap in taps(size, dy.shape[1:3], win):
            target = dx[images, *tap.inside]
            if _disjoint(win):
                target[...] = spread[:, *tap.out]
            else:
                target += spread[:, *tap.out]
    return dx


def coverage(size: Pair, win: Window, margin: Pads = ((0, 0), (0, 0))) -> Array:
    """How many elements of each window lie on an input (H, W) wider by `margin`: (OH, OW), what an average counts."""
    axes = zip(size, win.out_size(size), win.kernel, win.stride, win.dilation, win.pads, margin, strict=True)
    rows, cols = (_covered(*axis) for axis in axes)
    return np.multiply.outer(rows, cols)


def _covered(size: int, out: int, kernel: int, stride: int, dilation: int, pads: Pair, margin: Pair) -> Array:
    at = np.arange(out)[:, None] * stride - pads[0] + np.arange(kernel) * dilation
    count: Array = ((at >= -margin[0]) & (at < size + margin[1])).sum(axis=1)
    return count


def row_share(counts: Array, y: Array) -> Array:
    """1 / counts as (OH, OW C): as long as a row of the image, which NumPy multiplies fastest."""
    return np.repeat((1 / counts).astype(y.dtype), y.shape[3], axis=1)


def _images(shape: Shape) -> Iterator[slice]:
    """Whole images of an output of this shape, a block at a time."""
    pixels = shape[1] * shape[2]
    for images, _ in blocks(shape, max(BLOCK_ELEMENTS // shape[3], pixels)):
        yield images


def _disjoint(win: Window) -> bool:
    """Whether no position lies in two windows."""
    return all(e <= s for e, s in zip(win.extent, win.stride, strict=True))


def _blank(dy: Array, size: Pair, win: Window) -> Array:
    """Memory for dx, zero wherever the gradient does not write, or adds."""
    reach = (o * s - p[0] for o, s, p in zip(dy.shape[1:3], win.stride, win.pads, strict=True))
    tiled = win.kernel == win.stride and all(r >= n for r, n in zip(reach, size, strict=True))
    return (np.empty if tiled else np.zeros)((len(dy), *size, dy.shape[3]), dy.dtype)
