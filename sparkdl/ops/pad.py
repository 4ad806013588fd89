"""Padding and cropping of images, with the adjoint of each way of filling the margin.

x (N, H, W, C), y (N, top + H + bottom, left + W + right, C). Modes, along one axis a b c d padded by 2:

    zeros       0 0 a b c d 0 0        reflect     c b a b c d c b
    replicate   a a a b c d d d        circular    c d a b c d a b
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from sparkdl.ops.window import Array, Pads, Pair

__all__ = ["MODES", "PaddingMode", "crop2d", "pad2d", "pad2d_grad", "source"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
MODES: tuple[str, ...] = get_args(PaddingMode)

_NUMPY = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def source(size: int, pads: Pair, mode: str) -> Array:
    """Which of `size` positions each position of the padded axis repeats. Raises ValueError where there is none."""
    most = size - 1 if mode == "reflect" else size
    if mode != "replicate" and max(pads) > most:
        raise ValueError(f"{mode} padding of {size} positions reaches {most} at most on a side; got {pads}")
    at: Array = np.pad(np.arange(size), pads, _NUMPY[mode])  # type: ignore[call-overload]
    return at


def pad2d(x: Array, pads: Pads, mode: str = "zeros") -> Array:
    """x (N, H, W, C) -> y, wider by `pads`, its margin filled as `mode` says."""
    if mode == "zeros":
        return np.pad(x, ((0, 0), *pads, (0, 0)))
    rows, cols = (source(n, p, mode) for n, p in zip(x.shape[1:3], pads, strict=True))
    y: Array = x.take(rows, axis=1).take(cols, axis=2)
    return y


def pad2d_grad(dy: Array, size: Pair, pads: Pads, mode: str = "zeros") -> Array:
    """dy, wider by `pads` than (H, W) = size -> dx (N, H, W, C): each position gets what its copies got."""
    if mode == "zeros":
        return crop2d(dy, pads)
    return _fold(_fold(dy, 1, size[0], pads[0], mode), 2, size[1], pads[1], mode)


def crop2d(x: Array, pads: Pads) -> Array:
    """x (N, H, W, C) -> a view of it without `pads` on its sides."""
    (top, bottom), (left, right) = pads
    return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right]


def _fold(dy: Array, axis: int, size: int, pads: Pair, mode: str) -> Array:
    at, dy = source(size, pads, mode), np.moveaxis(dy, axis, 0)
    dx = dy[pads[0] : pads[0] + size].copy()
    for margin in (*range(pads[0]), *range(pads[0] + size, len(at))):  # few, and several may repeat one position
        dx[at[margin]] += dy[margin]
    return np.moveaxis(dx, 0, axis)
