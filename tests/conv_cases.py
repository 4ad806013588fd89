"""Convolutions of all kinds, and their definition as plain loops: what every algorithm is held against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from sparkdl.ops.window import Window

RNG = np.random.default_rng(5)


class Case(NamedTuple):
    """A window over images of `size`, with C = channels and F = filters."""

    size: tuple[int, int]
    win: Window
    channels: int = 3
    filters: int = 4
    groups: int = 1

    def arrays(self, rows: int = 3, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shapes = (
            (rows, *self.size, self.channels),
            (*self.win.kernel, self.channels // self.groups, self.filters),
            (rows, *self.win.out_size(self.size), self.filters),
        )
        x, W, dy = (RNG.standard_normal(shape).astype(dtype) for shape in shapes)
        return x, W, dy


CASES = {
    "3x3": Case((6, 7), Window((3, 3), pads=((1, 1), (1, 1)))),
    "valid": Case((6, 7), Window((3, 3))),
    "1x1": Case((4, 5), Window((1, 1))),
    "1x1-padded": Case((4, 5), Window((1, 1), pads=((1, 0), (0, 2)))),
    "1x1-stride": Case((4, 5), Window((1, 1), (2, 3))),
    "stride": Case((8, 7), Window((3, 3), (2, 2), pads=((0, 1), (1, 1)))),
    "stride-beyond-kernel": Case((9, 11), Window((2, 2), (3, 4))),
    "rest": Case((8, 9), Window((3, 3), (3, 2))),
    "dilation": Case((9, 8), Window((3, 2), (1, 1), (2, 3), ((2, 2), (1, 2)))),
    "dilation-and-stride": Case((12, 11), Window((3, 4), (2, 3), (2, 2), ((1, 2), (3, 3)))),
    "dilation-coprime-to-stride": Case((12, 11), Window((3, 3), (2, 3), (3, 2), ((3, 3), (2, 2)))),
    "rectangular": Case((9, 5), Window((5, 2), (1, 2), pads=((4, 0), (0, 1)))),
    "mostly-padding": Case((3, 2), Window((3, 3), pads=((5, 4), (6, 2)))),
    "few-channels": Case((8, 8), Window((5, 5), pads=((2, 2), (2, 2))), channels=1, filters=6),
    "many-channels": Case((5, 5), Window((3, 3), pads=((1, 1), (1, 1))), channels=20, filters=24),
    "groups": Case((6, 5), Window((3, 3), (2, 1), pads=((1, 1), (1, 1))), channels=6, filters=4, groups=2),
    "groups-wide": Case((5, 5), Window((3, 3), pads=((1, 1), (1, 1))), channels=32, filters=36, groups=2),
    "groups-1x1": Case((4, 5), Window((1, 1)), channels=6, filters=9, groups=3),
    "depthwise": Case((6, 7), Window((3, 3), pads=((1, 1), (1, 1))), channels=16, filters=16, groups=16),
    "depthwise-stride": Case((7, 6), Window((3, 3), (2, 2), pads=((1, 1), (0, 1))), channels=18, filters=18, groups=18),
    "depthwise-few": Case((6, 7), Window((3, 3), pads=((1, 1), (1, 1))), channels=4, filters=4, groups=4),
    "depthwise-multiplier": Case((6, 5), Window((3, 3), pads=((1, 1), (1, 1))), channels=16, filters=32, groups=16),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def by_loops(x: np.ndarray, W: np.ndarray, win: Window, groups: int) -> np.ndarray:
    """The definition, one output of all images at a time."""
    (kh, kw, k, filters), (sh, sw), (dh, dw) = W.shape, win.stride, win.dilation
    padded = np.pad(x, ((0, 0), *win.pads, (0, 0)))
    oh, ow = ((n - e) // s + 1 for n, e, s in zip(padded.shape[1:3], win.extent, win.stride, strict=True))
    y = np.zeros((len(x), oh, ow, filters))
    for h, w, f in np.ndindex(oh, ow, filters):
        first = f // (filters // groups) * k
        for i, j in np.ndindex(kh, kw):
            y[:, h, w, f] += padded[:, h * sh + i * dh, w * sw + j * dw, first : first + k] @ W[i, j, :, f]
    return y
