"""Depthwise convolution: each channel has one filter of its own. One block of images at a time.

seen (n, h, w, C) is what a block of outputs sees of the padded input, filters (kh, kw, C), out and dy (n, oh, ow, C).
"""

from __future__ import annotations

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.window import Array, Window, taps, windows

__all__ = ["correlate", "scatter", "weigh"]


@twin("sparkdl.ops.fast.depthwise")
def weigh(seen: Array, filters: Array, win: Window, out: Array) -> None:
    """out[n, h, w, c] = sum_ij seen[n, h sh + i dh, w sw + j dw, c] filters[i, j, c], in place."""
    np.einsum("nhwijc,ijc->nhwc", windows(seen, win), filters, out=out)


@twin("sparkdl.ops.fast.depthwise")
def correlate(seen: Array, dy: Array, win: Window, out: Array) -> None:
    """Add the gradient of the filters (kh, kw, C) into out, in place."""
    out += np.einsum("nhwijc,nhwc->ijc", windows(seen, win), dy)


@twin("sparkdl.ops.fast.depthwise")
def scatter(dy: Array, filters: Array, win: Window, seen: Array) -> None:
    """Add the gradient of what was seen into seen, in place."""
    inner, (kw, size) = win._replace(pads=((0, 0), (0, 0))), (win.kernel[1], (seen.shape[1], seen.shape[2]))
    for tap in taps(size, (dy.shape[1], dy.shape[2]), inner):
        seen[:, *tap.inside] += dy[:, *tap.out] * filters[tap.place // kw, tap.place % kw]
