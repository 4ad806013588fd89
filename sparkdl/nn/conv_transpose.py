"""Transposed convolution over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost, tree
from sparkdl.nn.initializers import HeNormal, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.nn.window import PairLike, check_image, image_window, positive
from sparkdl.ops.conv_transpose import conv2d_transpose, conv2d_transpose_grad_data, conv2d_transpose_grad_weights
from sparkdl.ops.norm import channel_sum
from sparkdl.ops.window import Padding, Pair, Window, pair

__all__ = ["Conv2DTranspose"]


@dataclass(frozen=True)
class Conv2DTranspose(Layer):
    """x (N, H, W, C) -> y (N, OH, OW, filters); W (kh, kw, C/groups, filters), b (filters,), absent unless `bias`.

        y[n, h*sh - top + i*dh, w*sw - left + j*dw, f] += sum_c x[n, h, w, c] W[i, j, c, f],   and y += b

    the adjoint of a convolution from y to x with the same options (Zeiler et al. 2010). `padding` "same" gives
    OH = H * sh. Otherwise padding is what that convolution pads, so it crops here:
    OH = (H - 1) sh - top - bottom + (kh - 1) dh + 1 + `output_padding`, where output_padding, less than the stride,
    tells apart the image sizes that the convolution maps to one H.
    """

    filters: int
    kernel: PairLike
    stride: PairLike = 1
    padding: Padding = "same"
    output_padding: PairLike = 0
    dilation: PairLike = 1
    groups: int = 1
    bias: bool = True
    init: Initializer = HeNormal()

    def __post_init__(self) -> None:
        positive("Conv2DTranspose", "filters", self.filters)
        positive("Conv2DTranspose", "groups", self.groups)
        if self.filters % self.groups:
            raise ValueError(
                f"Conv2DTranspose(filters={self.filters}, groups={self.groups}): filters must be a multiple of groups."
            )
        win, extra = self._window((1, 1)), self._extra()
        if any(e >= s for e, s in zip(extra, win.stride, strict=True)):
            raise ValueError(
                f"Conv2DTranspose(output_padding={self.output_padding}) must be less than the stride {win.stride}: "
                f"a whole stride more is another row of x."
            )
        if self.padding == "same" and extra != (0, 0):
            raise ValueError('Conv2DTranspose: "same" fixes the output size; leave output_padding at 0.')

    def out_shape(self, in_shape: Shape) -> Shape:
        self._check(in_shape)
        size = self._size((in_shape[0], in_shape[1]))
        if min(size) < 1:
            raise ValueError(f"Conv2DTranspose: padding {self.padding} crops all of the output of samples {in_shape}.")
        return (*size, self.filters)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        self._check(in_shape)
        kernel = self._window((1, 1)).kernel
        specs = {"W": ParamSpec((*kernel, in_shape[2] // self.groups, self.filters), self.init)}
        if self.bias:
            specs["b"] = ParamSpec((self.filters,), Zeros())
        return specs

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        W, (oh, ow, _) = p["W"], self.out_shape(x.shape[1:])
        if x.shape[3] != W.shape[2] * self.groups:
            raise ValueError(
                f"Conv2DTranspose(filters={self.filters}, groups={self.groups}) expects x of shape (N, H, W, "
                f"{W.shape[2] * self.groups}), as its weights {W.shape} say; got {x.shape}. Channels go last."
            )
        x = np.ascontiguousarray(x, W.dtype)
        bias = p["b"] if self.bias else None
        return conv2d_transpose(x, W, (oh, ow), self._window((oh, ow)), self.groups, bias), x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        dy = np.ascontiguousarray(dy)
        win = self._window((dy.shape[1], dy.shape[2]))
        g["W"][...] += conv2d_transpose_grad_weights(cache, dy, win, self.groups)
        if self.bias:
            g["b"][...] += channel_sum(dy)
        return conv2d_transpose_grad_data(dy, p["W"], win, self.groups) if ctx.dx else dy

    def cost(self, in_shape: Shape) -> Cost:
        """Every product is added to an output that starts at the bias or at zero."""
        win = self._window((1, 1))
        madds = math.prod(in_shape) * math.prod(win.kernel) * self.filters // self.groups
        # The elements of a window that meet in one output lie stride / gcd(stride, dilation) apart.
        axes = zip(in_shape, win.kernel, win.stride, win.dilation, strict=False)
        meeting = math.prod(min(n, -(-k * math.gcd(s, d) // s)) for n, k, s, d in axes) * in_shape[2] // self.groups
        return priced(self, in_shape, Cost(madds, 2 * madds, 1 + tree(meeting + 1)))

    def _check(self, in_shape: Shape) -> None:
        check_image("Conv2DTranspose", in_shape)
        if in_shape[2] % self.groups:
            raise ValueError(
                f"Conv2DTranspose(groups={self.groups}): the channels must be a multiple of groups; "
                f"samples are {in_shape}."
            )

    def _extra(self) -> Pair:
        return pair("Conv2DTranspose: output_padding", self.output_padding, 0)

    def _window(self, out_size: Pair) -> Window:
        """The window of the convolution from an output (OH, OW) back to the input."""
        return image_window("Conv2DTranspose", (*out_size, 1), self.kernel, self.stride, self.padding, self.dilation)

    def _size(self, size: Pair) -> Pair:
        win = self._window((1, 1))
        if self.padding == "same":
            return size[0] * win.stride[0], size[1] * win.stride[1]
        axes = zip(size, win.stride, win.pads, win.extent, self._extra(), strict=True)
        oh, ow = ((n - 1) * s - sum(pads) + e + extra for n, s, pads, e, extra in axes)
        return oh, ow
