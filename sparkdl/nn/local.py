"""Locally connected layers over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost, sums_of_products
from sparkdl.nn.drawing import EachPlace
from sparkdl.nn.initializers import HeNormal, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.nn.window import PairLike, image_window, out_size, positive
from sparkdl.ops.local import local2d, local2d_grad_data, local2d_grad_weights
from sparkdl.ops.window import Padding, Window

__all__ = ["LocallyConnected2D"]


@dataclass(frozen=True)
class LocallyConnected2D(Layer):
    """x (N, H, W, C) -> y (N, OH, OW, filters): a convolution with other filters at every place (LeCun 1989).

        y[n, h, w, f] = b[h, w, f] + sum_ijc x[n, h*sh - top + i*dh, w*sw - left + j*dw, c] W[h, w, i, j, c, f]

    W (OH, OW, kh, kw, C, filters), b (OH, OW, filters), absent unless `bias`. Options are those of `Conv2D`.
    """

    filters: int
    kernel: PairLike
    stride: PairLike = 1
    padding: Padding = "valid"
    dilation: PairLike = 1
    bias: bool = True
    init: Initializer = HeNormal()

    def __post_init__(self) -> None:
        positive("LocallyConnected2D", "filters", self.filters)
        self._window((1, 1, 1))

    def out_shape(self, in_shape: Shape) -> Shape:
        return (*out_size("LocallyConnected2D", in_shape, self._window(in_shape)), self.filters)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        y, window = self.out_shape(in_shape), (*self._window(in_shape).kernel, in_shape[2])
        specs = {"W": ParamSpec((*y[:2], *window, self.filters), EachPlace(self.init))}
        if self.bias:
            specs["b"] = ParamSpec(y, Zeros())
        return specs

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        W, win = p["W"], self._window(x.shape[1:])
        if (*out_size("LocallyConnected2D", x.shape[1:], win), x.shape[3]) != (*W.shape[:2], W.shape[4]):
            raise ValueError(
                f"LocallyConnected2D: weights {W.shape} are not those of x {x.shape}; the size of the images is fixed "
                f"when the parameters are made."
            )
        y = local2d(np.asarray(x, W.dtype), W, win)
        if self.bias:
            y += p["b"]
        return y, x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        x, win = cache, self._window(cache.shape[1:])
        g["W"][...] += local2d_grad_weights(x, dy, win)
        if self.bias:
            g["b"][...] += dy.sum(axis=0)
        return local2d_grad_data(dy, p["W"], (x.shape[1], x.shape[2]), win) if ctx.dx else dy

    def cost(self, in_shape: Shape) -> Cost:
        taps = math.prod(self._window(in_shape).kernel) * in_shape[2]
        return priced(self, in_shape, sums_of_products(math.prod(self.out_shape(in_shape)), taps, self.bias))

    def _window(self, in_shape: Shape) -> Window:
        return image_window("LocallyConnected2D", in_shape, self.kernel, self.stride, self.padding, self.dilation)
