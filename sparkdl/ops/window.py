"""Sliding windows over images: sizes, padding, and the blocks of pixels that convolution and pooling work through."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

__all__ = [
    "Array",
    "Block",
    "Padding",
    "Pads",
    "Pair",
    "Shape",
    "Tap",
    "Window",
    "blocks",
    "pair",
    "patch",
    "resolve_padding",
    "taps",
    "windows",
]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Block = tuple[slice, slice]  # images, rows of a block of an output (N, OH, ...)
Pair = tuple[int, int]  # over (height, width)
Pads = tuple[Pair, Pair]  # ((top, bottom), (left, right))
Padding = str | int | Pair | Pads


class Tap(NamedTuple):
    """Element i * kw + j = `place` of every window: the outputs for which it lies on the input, and where it lies."""

    place: int
    out: tuple[slice, slice]
    inside: tuple[slice, slice]


class Window(NamedTuple):
    """kernel (kh, kw) elements, `dilation` apart, moved by `stride` over an input that is wider by `pads`.

    Output row h sees the input rows h * stride - top + i * dilation, i < kh; columns likewise. A negative pad crops.
    """

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pads: Pads = ((0, 0), (0, 0))

    @property
    def extent(self) -> Pair:
        """Rows and columns from the first to the last element of one window."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    def out_size(self, size: Pair) -> Pair:
        """(H, W) -> (OH, OW) = floor((size + pads - extent) / stride) + 1; below 1 where no window fits."""
        h, w = ((n + sum(p) - e) // s + 1 for n, p, e, s in zip(size, self.pads, self.extent, self.stride, strict=True))
        return h, w


def pair(name: str, value: Any, least: int = 1) -> Pair:
    """An integer or two of them, each at least `least`, as (over height, over width)."""
    try:
        first, second = value if isinstance(value, tuple | list) else (value, value)
        result = operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        result = (least - 1, least - 1)
    if min(result) < least:
        raise ValueError(f"{name} must be an integer >= {least} or two of them, (height, width); got {value!r}")
    return result


def resolve_padding(padding: Padding, size: Pair, kernel: Pair, stride: Pair, dilation: Pair = (1, 1)) -> Pads:
    """Padding as users write it, for an input `size` = (H, W) -> ((top, bottom), (left, right)).

    "valid": none. "same": OH = ceil(H / stride), the odd element goes to the bottom and right (SAME_UPPER of ONNX,
    "SAME" of TensorFlow). p: on every side. (ph, pw): top and bottom, left and right.
    """
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        rows, cols = (_same(*axis) for axis in zip(size, kernel, stride, dilation, strict=True))
        return rows, cols
    sides: Any = padding
    try:
        if isinstance(sides, tuple | list) and any(isinstance(side, tuple | list) for side in sides):
            (top, bottom), (left, right) = sides
            return pair("padding", (top, bottom), 0), pair("padding", (left, right), 0)
        ph, pw = pair("padding", sides, 0)
    except (TypeError, ValueError):
        raise ValueError(
            f'padding must be "same", "valid", p, (ph, pw) or ((top, bottom), (left, right)), all >= 0; got {padding!r}'
        ) from None
    return (ph, ph), (pw, pw)


def _same(size: int, kernel: int, stride: int, dilation: int) -> Pair:
    out = -(-size // stride)
    total = max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def blocks(shape: Shape, pixels: int) -> Iterator[Block]:
    """Cuts an output (N, OH, OW, ...) into index pairs (images, rows) of about `pixels` pixels each.

    A block is several whole images or some rows of one, so its part of a C-ordered array is contiguous.
    """
    n, oh, ow = shape[:3]
    images, rows = max(1, pixels // max(1, oh * ow)), min(oh, max(1, pixels // max(1, ow)))
    for first in range(0, n, images):
        for top in range(0, oh, rows):
            yield slice(first, min(first + images, n)), slice(top, min(top + rows, oh))


def patch(x: Array, block: Block, win: Window, width: int, fill: float = 0.0) -> Array:
    """What a block of output rows, `width` pixels wide, sees of the padded x (N, H, W, C): (n, h, w, C).

    A view of x where the block needs no padding; only the block, never the whole batch, is copied where it does.
    """
    images, rows = block
    (sh, sw), (eh, ew), ((top, _), (left, _)) = win.stride, win.extent, win.pads
    h0, h1 = rows.start * sh - top, (rows.stop - 1) * sh - top + eh
    w0, w1 = -left, (width - 1) * sw - left + ew
    (a0, a1), (b0, b1) = _clip(h0, h1, x.shape[1]), _clip(w0, w1, x.shape[2])
    inside = x[images, a0:a1, b0:b1]
    if inside.shape[1:3] == (h1 - h0, w1 - w0):
        return inside
    padded = np.full((len(inside), h1 - h0, w1 - w0, x.shape[3]), fill, x.dtype)
    padded[:, a0 - h0 : a1 - h0, b0 - w0 : b1 - w0] = inside
    return padded


def _clip(start: int, stop: int, size: int) -> Pair:
    return min(max(start, 0), size), min(max(stop, 0), size)


def windows(seen: Array, win: Window) -> Array:
    """What a block sees (n, h, w, C) -> its windows (n, oh, ow, kh, kw, C), a read-only view."""
    n, h, w, c = seen.shape
    (sh, sw), (dh, dw), (eh, ew) = win.stride, win.dilation, win.extent
    sn, sr, sc, se = seen.strides
    shape = (n, (h - eh) // sh + 1, (w - ew) // sw + 1, *win.kernel, c)
    return as_strided(seen, shape, (sn, sr * sh, sc * sw, sr * dh, sc * dw, se), writeable=False)


def taps(size: Pair, out_size: Pair, win: Window) -> Iterator[Tap]:
    """The elements of a window over an input (H, W) with outputs (OH, OW), in order: for all n, c

    y[n, tap.out, c] sees x[n, tap.inside, c], two views of the same shape.
    """
    axes = zip(size, out_size, win.kernel, win.stride, win.dilation, win.pads, strict=True)
    rows, cols = ([_span(n, out, i * d - p[0], s) for i in range(k)] for n, out, k, s, d, p in axes)
    for i, (row_out, row_in) in enumerate(rows):
        for j, (col_out, col_in) in enumerate(cols):
            yield Tap(i * win.kernel[1] + j, (row_out, col_out), (row_in, col_in))


def _span(size: int, out: int, offset: int, stride: int) -> tuple[slice, slice]:
    """The h < out with 0 <= h * stride + offset < size, and these positions."""
    first = min(max(0, -(offset // stride)), out)
    count = max(0, min(out, (size - 1 - offset) // stride + 1) - first)
    start = first * stride + offset
    return slice(first, first + count), slice(start, start + count * stride, stride)
