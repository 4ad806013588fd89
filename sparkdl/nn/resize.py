"""Layers that change the size of images without parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sparkdl.nn.cost import Cost
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape, priced
from sparkdl.nn.window import PairLike, check_image, one_of
from sparkdl.ops.pad import crop2d, pad2d
from sparkdl.ops.resample import bilinear, bilinear_grad, nearest, nearest_grad
from sparkdl.ops.window import Padding, Pads, Pair, pair, resolve_padding

__all__ = ["Crop2D", "PadChannels", "UpSample2D", "ZeroPad2D"]

Interpolation = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class ZeroPad2D(Layer):
    """x (N, H, W, C) -> y (N, top + H + bottom, left + W + right, C), zero in the margin.

    `padding` is p, (ph, pw) or ((top, bottom), (left, right)).
    """

    padding: int | Pair | Pads = 1

    def __post_init__(self) -> None:
        _sides("ZeroPad2D", self.padding)

    def out_shape(self, in_shape: Shape) -> Shape:
        check_image("ZeroPad2D", in_shape)
        rows, cols = _sides("ZeroPad2D", self.padding)
        return in_shape[0] + sum(rows), in_shape[1] + sum(cols), in_shape[2]

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, None]:
        self.out_shape(x.shape[1:])
        return pad2d(x, _sides("ZeroPad2D", self.padding)), None

    def backward(self, p: Params, cache: None, dy: Array, g: Params, ctx: Ctx) -> Array:
        return crop2d(dy, _sides("ZeroPad2D", self.padding))

    def cost(self, in_shape: Shape) -> Cost:
        return priced(self, in_shape, Cost())


@dataclass(frozen=True)
class Crop2D(Layer):
    """x (N, H, W, C) -> y (N, H - top - bottom, W - left - right, C); `crop` as the padding of `ZeroPad2D`."""

    crop: int | Pair | Pads = 1

    def __post_init__(self) -> None:
        _sides("Crop2D", self.crop)

    def out_shape(self, in_shape: Shape) -> Shape:
        check_image("Crop2D", in_shape)
        rows, cols = _sides("Crop2D", self.crop)
        h, w = in_shape[0] - sum(rows), in_shape[1] - sum(cols)
        if min(h, w) < 1:
            raise ValueError(f"Crop2D(crop={self.crop}) leaves nothing of samples of shape {tuple(in_shape)}.")
        return h, w, in_shape[2]

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, None]:
        self.out_shape(x.shape[1:])
        return crop2d(x, _sides("Crop2D", self.crop)), None

    def backward(self, p: Params, cache: None, dy: Array, g: Params, ctx: Ctx) -> Array:
        return pad2d(dy, _sides("Crop2D", self.crop))

    def cost(self, in_shape: Shape) -> Cost:
        return Cost()  # a view


@dataclass(frozen=True)
class PadChannels(Layer):
    """x (N, ..., C) -> y (N, ..., before + C + after), zero in the new channels."""

    before: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in (self.before, self.after)):
            raise ValueError(f"{self}: the numbers of new channels must be integers of at least 0.")

    def out_shape(self, in_shape: Shape) -> Shape:
        if not in_shape:
            raise ValueError("PadChannels expects samples of shape (..., C); got (). Add a channel axis?")
        return (*in_shape[:-1], self.before + in_shape[-1] + self.after)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, None]:
        self.out_shape(x.shape[1:])
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(self.before, self.after)]), None

    def backward(self, p: Params, cache: None, dy: Array, g: Params, ctx: Ctx) -> Array:
        return dy[..., self.before : dy.shape[-1] - self.after]

    def cost(self, in_shape: Shape) -> Cost:
        return priced(self, in_shape, Cost())


@dataclass(frozen=True)
class UpSample2D(Layer):
    """x (N, H, W, C) -> y (N, sh H, sw W, C), enlarged by whole factors `scale` = s or (sh, sw).

    `mode` "nearest" repeats pixels; "bilinear" is linear between the pixels' centres (align_corners=False in PyTorch).
    """

    scale: PairLike = 2
    mode: Interpolation = "nearest"

    def __post_init__(self) -> None:
        one_of("UpSample2D", "mode", self.mode, get_args(Interpolation))
        self._factors()

    def out_shape(self, in_shape: Shape) -> Shape:
        check_image("UpSample2D", in_shape)
        sh, sw = self._factors()
        return sh * in_shape[0], sw * in_shape[1], in_shape[2]

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, None]:
        check_image("UpSample2D", x.shape[1:])
        return (nearest if self.mode == "nearest" else bilinear)(x, self._factors()), None

    def backward(self, p: Params, cache: None, dy: Array, g: Params, ctx: Ctx) -> Array:
        return (nearest_grad if self.mode == "nearest" else bilinear_grad)(dy, self._factors())

    def cost(self, in_shape: Shape) -> Cost:
        """Bilinear, a number is a x + b y along the rows, then along the columns."""
        y = self.out_shape(in_shape)
        if self.mode == "nearest":
            return priced(self, in_shape, Cost())
        return priced(self, in_shape, Cost(work=3 * (y[0] * in_shape[1] * y[2] + math.prod(y)), depth=4))

    def _factors(self) -> Pair:
        return pair("UpSample2D: scale", self.scale)


def _sides(layer: str, sides: Padding) -> Pads:
    """p, (ph, pw) or ((top, bottom), (left, right)) -> the last of these. Raises ValueError for anything else."""
    try:
        if isinstance(sides, str):
            raise ValueError(f"sides must be numbers of pixels; got {sides!r}")
        return resolve_padding(sides, (1, 1), (1, 1), (1, 1))
    except ValueError as e:
        raise ValueError(f"{layer}: {e}.") from None
