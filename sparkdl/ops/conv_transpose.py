"""Transposed convolution: the adjoint of a convolution's map from images to images, used forward.

x (N, H, W, C), W (kh, kw, C/groups, F), y (N, OH, OW, F). Within group k of the channels and of the filters every
input pixel adds a window to the output:

    y[n, h*sh - top + i*dh, w*sw - left + j*dw, f] += sum_c x[n, h, w, c] W[i, j, c, f]

With channels and filters swapped, W belongs to the convolution `win` from (OH, OW) to (H, W) whose adjoint this is;
so its three kernels are those of convolution in another order.
"""

from __future__ import annotations

from sparkdl.ops.conv import conv2d, conv2d_grad_data, conv2d_grad_weights
from sparkdl.ops.window import Array, Pair, Window

__all__ = ["conv2d_transpose", "conv2d_transpose_grad_data", "conv2d_transpose_grad_weights"]


def conv2d_transpose(x: Array, W: Array, size: Pair, win: Window, groups: int = 1, b: Array | None = None) -> Array:
    """x (N, H, W, C), W (kh, kw, C/groups, F), b (F,) or None, size = (OH, OW) -> y (N, OH, OW, F)."""
    y = conv2d_grad_data(x, _swapped(W, groups), size, win, groups)
    if b is not None:
        y += b
    return y


def conv2d_transpose_grad_data(dy: Array, W: Array, win: Window, groups: int = 1) -> Array:
    """dy (N, OH, OW, F), W (kh, kw, C/groups, F) -> dx (N, H, W, C)."""
    return conv2d(dy, _swapped(W, groups), win, groups)


def conv2d_transpose_grad_weights(x: Array, dy: Array, win: Window, groups: int = 1) -> Array:
    """x (N, H, W, C), dy (N, OH, OW, F) -> dW (kh, kw, C/groups, F)."""
    return _swapped(conv2d_grad_weights(dy, x, win, groups), groups)


def _swapped(W: Array, groups: int) -> Array:
    """(kh, kw, C/groups, F) -> (kh, kw, F/groups, C), group by group; its own inverse."""
    kh, kw, c, f = W.shape
    swapped = W.reshape(kh, kw, c, groups, f // groups).transpose(0, 1, 4, 3, 2)
    return swapped.reshape(kh, kw, f // groups, groups * c)
