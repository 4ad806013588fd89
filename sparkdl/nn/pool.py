"""Pooling over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost, tree
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape, priced
from sparkdl.nn.window import PairLike, check_image, counted, image_window, out_size
from sparkdl.ops.pool import avg_pool, avg_pool_grad, coverage, max_pool, max_pool_grad
from sparkdl.ops.window import Padding, Pads, Pair, Window, pair

__all__ = ["AvgPool2D", "GlobalAvgPool", "MaxPool2D"]


@dataclass(frozen=True)
class MaxPool2D(Layer):
    """x (N, H, W, C) -> y (N, OH, OW, C): the largest value of each window.

    `size`, `stride` (`size` if None) and `padding` are as for `Conv2D`. Padding is -inf, and at most half the size on
    a side, so that every window holds a value. NaN gives NaN; the gradient goes to one position of each window, the
    first among equals. With `ceil_mode`, OH and OW round up: a last window may overhang the padded image, unless it
    would start beyond the image.
    """

    size: PairLike = 2
    stride: PairLike | None = None
    padding: Padding = "valid"
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        _window(self, (1, 1, 1))

    def out_shape(self, in_shape: Shape) -> Shape:
        return (*out_size("MaxPool2D", in_shape, _window(self, in_shape)[0]), in_shape[2])

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array, Pair]]:
        win, _ = _window(self, x.shape[1:])
        out_size("MaxPool2D", x.shape[1:], win)
        y, at = max_pool(x, win)
        return y, (at, (x.shape[1], x.shape[2]))

    def backward(self, p: Params, cache: tuple[Array, Pair], dy: Array, g: Params, ctx: Ctx) -> Array:
        at, size = cache
        return max_pool_grad(dy, at, size, _window(self, (*size, 1))[0])

    def cost(self, in_shape: Shape) -> Cost:
        taps = math.prod(_window(self, in_shape)[0].kernel)
        return priced(self, in_shape, Cost(work=(taps - 1) * math.prod(self.out_shape(in_shape)), depth=tree(taps)))


@dataclass(frozen=True)
class AvgPool2D(Layer):
    """x (N, H, W, C) -> y (N, OH, OW, C): the mean of each window.

    Options are those of `MaxPool2D`. The mean is over the elements that lie on the image; with `count_include_pad`
    zeros of the padding count as elements too. What overhangs the padded image in `ceil_mode` never counts.
    """

    size: PairLike = 2
    stride: PairLike | None = None
    padding: Padding = "valid"
    ceil_mode: bool = False
    count_include_pad: bool = False

    def __post_init__(self) -> None:
        _window(self, (1, 1, 1))

    def out_shape(self, in_shape: Shape) -> Shape:
        return (*out_size("AvgPool2D", in_shape, _window(self, in_shape)[0]), in_shape[2])

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Pair]:
        out_size("AvgPool2D", x.shape[1:], _window(self, x.shape[1:])[0])
        size = x.shape[1], x.shape[2]
        return avg_pool(x, *self._counted(size)), size

    def backward(self, p: Params, cache: Pair, dy: Array, g: Params, ctx: Ctx) -> Array:
        return avg_pool_grad(dy, cache, *self._counted(cache))

    def cost(self, in_shape: Shape) -> Cost:
        taps = math.prod(_window(self, in_shape)[0].kernel)
        return priced(self, in_shape, Cost(work=taps * math.prod(self.out_shape(in_shape)), depth=tree(taps) + 1))

    def _counted(self, size: Pair) -> tuple[Window, Array]:
        win, pads = _window(self, (*size, 1))
        return win, coverage(size, win, pads if self.count_include_pad else ((0, 0), (0, 0)))


@dataclass(frozen=True)
class GlobalAvgPool(Layer):
    """x (N, H, W, C) or (N, T, C) -> y (N, C): the mean over each image or sequence.

    Steps of a sequence whose entries all equal `mask_value` do not count; the mean of none is 0.
    """

    mask_value: float | None = None

    def out_shape(self, in_shape: Shape) -> Shape:
        if len(in_shape) != 2:
            check_image("GlobalAvgPool", in_shape)
        if len(in_shape) != 2 and self.mask_value is not None:
            raise ValueError(f"GlobalAvgPool(mask_value={self.mask_value}) takes sequences (T, C); got {in_shape}.")
        return in_shape[-1:]

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Shape, Array | None]]:
        self.out_shape(x.shape[1:])
        keep = counted(x, self.mask_value)
        if keep is None:
            return x.mean(axis=tuple(range(1, x.ndim - 1))), (x.shape, None)
        share = keep / np.maximum(keep.sum(axis=1, keepdims=True), 1).astype(x.dtype)
        return np.einsum("nt,ntc->nc", share, x), (x.shape, share)

    def backward(self, p: Params, cache: tuple[Shape, Array | None], dy: Array, g: Params, ctx: Ctx) -> Array:
        shape, share = cache
        if share is not None:
            dx: Array = share[:, :, None] * dy[:, None]
            return dx
        each = dy / math.prod(shape[1:-1])
        return np.broadcast_to(each.reshape(len(dy), *[1] * (len(shape) - 2), shape[-1]), shape)

    def cost(self, in_shape: Shape) -> Cost:
        self.out_shape(in_shape)
        depth = tree(math.prod(in_shape[:-1])) + 1
        return priced(self, in_shape, Cost(work=math.prod(in_shape), depth=depth))


def _window(layer: MaxPool2D | AvgPool2D, in_shape: Shape) -> tuple[Window, Pads]:
    """The pooling window over samples (H, W, C), its padding widened by what overhangs; and the padding proper."""
    name = type(layer).__name__
    size = pair(f"{name}: size", layer.size)
    win = image_window(name, in_shape, size, size if layer.stride is None else layer.stride, layer.padding)
    if any(2 * max(pads) > k for pads, k in zip(win.pads, win.kernel, strict=True)):
        raise ValueError(
            f"{name}: padding must be at most half the size, or a window could miss the image; "
            f"got padding {win.pads} with size {win.kernel}."
        )
    if not layer.ceil_mode:
        return win, win.pads
    axes = zip(in_shape, win.kernel, win.stride, win.pads, strict=False)
    rows, cols = ((lo, hi + _overhang(n + lo, hi, k, s)) for n, k, s, (lo, hi) in axes)
    return win._replace(pads=(rows, cols)), win.pads


def _overhang(start: int, end: int, kernel: int, stride: int) -> int:
    """Elements that a window more than fits would overhang by; 0 if none would, or it started in the end padding."""
    rest = (start + end - kernel) % stride
    last = start + end - kernel - rest + stride  # where the one more window starts
    return stride - rest if rest and last < start else 0
