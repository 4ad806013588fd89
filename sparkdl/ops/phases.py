"""The gradient of a strided convolution's input as several convolutions at stride 1, interleaved."""

from __future__ import annotations

import math
from typing import NamedTuple

from sparkdl.ops.window import Pair, Window

__all__ = ["Phase", "phases"]


class Phase(NamedTuple):
    """Along one axis: positions start, start + stride, ... of dx, the filter taps they see, and how these lie on dy."""

    start: int
    taps: slice
    dilation: int
    pads: Pair


def phases(size: Pair, out: Pair, win: Window) -> tuple[list[Phase], list[Phase]]:
    """The phases of rows and of columns that any tap reaches, for dx of size (H, W) and dy of size out (OH, OW)."""
    rows, cols = (
        _phases(*axis) for axis in zip(size, out, win.kernel, win.stride, win.dilation, win.pads, strict=True)
    )
    return rows, cols


def _phases(size: int, out: int, kernel: int, stride: int, dilation: int, pads: Pair) -> list[Phase]:
    """Those of one axis.

    Tap i of output h reads position r = h * stride - pad + i * dilation. For the r = start + m * stride these are the
    taps i = first + t * step, at h = m + shift - t * spread: a convolution over m with the taps in reverse.
    """
    step = stride // math.gcd(stride, dilation)
    spread = step * dilation // stride
    found = []
    for first in range(min(step, kernel)):
        start = (first * dilation - pads[0]) % stride
        shift = (start + pads[0] - first * dilation) // stride
        reach = (len(range(first, kernel, step)) - 1) * spread
        if start < size:
            padding = (reach - shift, len(range(start, size, stride)) + shift - out)
            found.append(Phase(start, slice(first, kernel, step), spread, padding))
    return found
