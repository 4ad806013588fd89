"""Convolution over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost, sums_of_products
from sparkdl.nn.gradients import add, add_product
from sparkdl.nn.initializers import HeNormal, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.nn.window import NONE, PairLike, check_margin, image_window, one_of, out_size, positive
from sparkdl.ops.algorithms import CHOICES, Algorithm, Problem, choose
from sparkdl.ops.norm import channel_sum
from sparkdl.ops.pad import MODES, PaddingMode, pad2d, pad2d_grad
from sparkdl.ops.window import Padding, Pair, Window

__all__ = ["Conv2D"]


@dataclass(frozen=True)
class Conv2D(Layer):
    """x (N, H, W, C) -> y (N, OH, OW, filters); W (kh, kw, C/groups, filters), b (filters,), absent unless `bias`.

        y[n, h, w, f] = b[f] + sum_ijc x[n, h*sh - top + i*dh, w*sw - left + j*dw, c] W[i, j, c, f]

    `kernel`, `stride` and `dilation` are an integer or (height, width). `padding` is "valid" (none), "same"
    (OH = ceil(H / stride); an odd element goes to the bottom and right, ONNX's SAME_UPPER), p, (ph, pw) or
    ((top, bottom), (left, right)). With `groups`, the k-th of that many equal slices of the channels meets the k-th
    slice of the filters only; groups = C is the depthwise convolution. `padding_mode` says what fills the padding:
    "zeros", "reflect" (mirrored about the edge pixel), "replicate" (the edge pixel) or "circular".

    `algorithm` says how it is computed, not what: "auto" leaves that to a rule that looks at the shapes, "tuned" times
    the candidates once; "im2row", "direct" (stride 1), "fft", "winograd2" and "winograd4" (3x3 at stride 1) take that
    one (see `sparkdl.ops.algorithms`).
    """

    filters: int
    kernel: PairLike
    stride: PairLike = 1
    padding: Padding = "same"
    dilation: PairLike = 1
    groups: int = 1
    bias: bool = True
    init: Initializer = HeNormal()
    padding_mode: PaddingMode = "zeros"
    algorithm: str = "auto"

    def __post_init__(self) -> None:
        positive("Conv2D", "filters", self.filters)
        positive("Conv2D", "groups", self.groups)
        if self.filters % self.groups:
            raise ValueError(
                f"Conv2D(filters={self.filters}, groups={self.groups}): filters must be a multiple of groups."
            )
        one_of("Conv2D", "padding_mode", self.padding_mode, MODES)
        one_of("Conv2D", "algorithm", self.algorithm, CHOICES)
        self._window((1, 1, self.groups))

    def out_shape(self, in_shape: Shape) -> Shape:
        win = self._window(in_shape)
        if self.padding_mode != "zeros":
            check_margin("Conv2D", in_shape, win.pads, self.padding_mode)
        return (*out_size("Conv2D", in_shape, win), self.filters)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        kernel, c = self._window(in_shape).kernel, in_shape[2]
        specs = {"W": ParamSpec((*kernel, c // self.groups, self.filters), self.init)}
        if self.bias:
            specs["b"] = ParamSpec((self.filters,), Zeros())
        return specs

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array, Pair]]:
        W, win = p["W"], self._window(x.shape[1:])
        if x.shape[3] != W.shape[2] * self.groups:
            raise ValueError(
                f"Conv2D(filters={self.filters}, groups={self.groups}) expects x of shape (N, H, W, "
                f"{W.shape[2] * self.groups}), as its weights {W.shape} say; got {x.shape}. Channels go last."
            )
        self.out_shape(x.shape[1:])
        x, size = np.ascontiguousarray(x, W.dtype), (x.shape[1], x.shape[2])
        if self.padding_mode != "zeros":
            x, win = pad2d(x, win.pads, self.padding_mode), win._replace(pads=NONE)
        algorithm = self._algorithm(x, win)
        return algorithm.forward(x, W, win, self.groups, p["b"] if self.bias else None), (x, size)

    def backward(self, p: Params, cache: tuple[Array, Pair], dy: Array, g: Params, ctx: Ctx) -> Array:
        (x, size), dy = cache, np.ascontiguousarray(dy)
        win = image = self._window((*size, x.shape[3]))
        if self.padding_mode != "zeros":
            win = win._replace(pads=NONE)
        algorithm = self._algorithm(x, win)
        if _is_product(win) and self.groups == 1:
            add_product(g["W"], x.reshape(-1, x.shape[3]).T, dy.reshape(-1, self.filters))
        else:
            add(g["W"], algorithm.grad_weights(x, dy, win, self.groups))
        if self.bias:
            add(g["b"], channel_sum(dy))
        if not ctx.dx:
            return dy
        dx = algorithm.grad_data(dy, p["W"], (x.shape[1], x.shape[2]), win, self.groups)
        return dx if win is image else pad2d_grad(dx, size, image.pads, self.padding_mode)

    def cost(self, in_shape: Shape) -> Cost:
        taps = math.prod(self._window(in_shape).kernel) * in_shape[2] // self.groups
        return priced(self, in_shape, sums_of_products(math.prod(self.out_shape(in_shape)), taps, self.bias))

    def _algorithm(self, x: Array, win: Window) -> Algorithm:
        return choose(self.algorithm, Problem(x.shape, self.filters, win, self.groups, x.dtype.str))

    def _window(self, in_shape: Shape) -> Window:
        win = image_window("Conv2D", in_shape, self.kernel, self.stride, self.padding, self.dilation)
        if in_shape[2] % self.groups:
            raise ValueError(
                f"Conv2D(groups={self.groups}): the channels must be a multiple of groups; samples are {in_shape}."
            )
        return win


def _is_product(win: Window) -> bool:
    """Whether the pixels as they lie are the rows of a matrix product."""
    return win == Window((1, 1))
