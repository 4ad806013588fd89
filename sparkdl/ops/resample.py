"""Enlarging images by whole factors. x (N, H, W, C), y (N, sh H, sw W, C)."""

from __future__ import annotations

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.window import Array, Pair

__all__ = ["along_axes", "bilinear", "bilinear_grad", "nearest", "nearest_grad"]


def nearest(x: Array, scale: Pair) -> Array:
    """Every pixel becomes a block of `scale` equal ones."""
    return x.repeat(scale[0], axis=1).repeat(scale[1], axis=2)


@twin("sparkdl.ops.fast.resample")
def nearest_grad(dy: Array, scale: Pair) -> Array:
    """dx: the sum over each block of dy."""
    n, h, w, c = dy.shape
    dx: Array = dy.reshape(n, h // scale[0], scale[0], w // scale[1], scale[1], c).sum(axis=(2, 4))
    return dx


def bilinear(x: Array, scale: Pair) -> Array:
    """Linear between the centres of the pixels, constant beyond the outermost ones.

    Output pixel i has its centre at (i + 1/2) / s - 1/2 of the input: PyTorch's align_corners=False, ONNX's half_pixel.
    The map is linear in each axis: y = A_h x A_w^T for each image and channel.
    """
    return along_axes(x, _weights(x.shape[1], scale[0], x), _weights(x.shape[2], scale[1], x))


def bilinear_grad(dy: Array, scale: Pair) -> Array:
    """dx = A_h^T dy A_w."""
    rows, cols = (_weights(n // s, s, dy) for n, s in zip(dy.shape[1:3], scale, strict=True))
    return along_axes(dy, rows.T, cols.T)


def _weights(size: int, scale: int, like: Array) -> Array:
    """A (scale * size, size): the shares of the two nearest pixels in each output pixel."""
    at = ((np.arange(scale * size) + 0.5) / scale - 0.5).clip(0, size - 1)
    share: Array = 1 - np.abs(at[:, None] - np.arange(size))
    return share.clip(0).astype(like.dtype)


@twin("sparkdl.ops.fast.resample")
def along_axes(x: Array, rows: Array, cols: Array) -> Array:
    """y = rows x cols^T for each image and channel. rows (OH, H), cols (OW, W), y (N, OH, OW, C)."""
    n, h, w, c = x.shape
    tall = rows @ x.reshape(n, h, w * c)
    y: Array = cols @ tall.reshape(n, len(rows), w, c)
    return y
