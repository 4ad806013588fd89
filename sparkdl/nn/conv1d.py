"""Convolution and pooling over sequences: those over images of one row."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.nn.conv import Conv2D
from sparkdl.nn.cost import Cost
from sparkdl.nn.initializers import HeNormal
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape
from sparkdl.nn.pool import AvgPool2D, MaxPool2D
from sparkdl.nn.window import SidePadding, as_image, positive, side_padding
from sparkdl.ops.pad import PaddingMode
from sparkdl.ops.window import Padding, Pair

__all__ = ["AvgPool1D", "Conv1D", "MaxPool1D"]


@dataclass(frozen=True)
class Conv1D(Layer):
    """x (N, T, C) -> y (N, OT, filters); W (k, C/groups, filters), b (filters,), absent unless `bias`.

        y[n, t, f] = b[f] + sum_ic x[n, t*stride - left + i*dilation, c] W[i, c, f]

    Options are those of `Conv2D`. `padding` is "same", "valid", p, (left, right), or "causal": all on the left, so
    that y[t] sees nothing after x[t * stride].
    """

    filters: int
    kernel: int
    stride: int = 1
    padding: SidePadding = "same"
    dilation: int = 1
    groups: int = 1
    bias: bool = True
    init: Initializer = HeNormal()
    padding_mode: PaddingMode = "zeros"

    def __post_init__(self) -> None:
        for name in ("kernel", "stride", "dilation"):
            positive("Conv1D", name, getattr(self, name))
        try:
            _ = self._image
        except ValueError as e:
            raise ValueError(str(e).replace("Conv2D", "Conv1D")) from None

    def out_shape(self, in_shape: Shape) -> Shape:
        return self._image.out_shape(as_image("Conv1D", in_shape))[1:]

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        specs = self._image.specs(as_image("Conv1D", in_shape))
        return specs | {"W": specs["W"]._replace(shape=specs["W"].shape[1:])}

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array, Pair]]:
        as_image("Conv1D", x.shape[1:])
        y, cache = self._image.forward(_with_row(p), x[:, None], ctx)
        return y[:, 0], cache

    def backward(self, p: Params, cache: tuple[Array, Pair], dy: Array, g: Params, ctx: Ctx) -> Array:
        return self._image.backward(_with_row(p), cache, dy[:, None], _with_row(g), ctx)[:, 0]

    def cost(self, in_shape: Shape) -> Cost:
        return self._image.cost(as_image("Conv1D", in_shape))

    @property
    def _image(self) -> Conv2D:
        padding: Padding = (0, 0), (self.dilation * (self.kernel - 1), 0)
        if self.padding != "causal":
            padding = side_padding(self.padding)
        return Conv2D(
            self.filters,
            (1, self.kernel),
            (1, self.stride),
            padding,
            (1, self.dilation),
            self.groups,
            self.bias,
            self.init,
            self.padding_mode,
        )


@dataclass(frozen=True)
class MaxPool1D(Layer):
    """x (N, T, C) -> y (N, OT, C): the largest value of each window; options as for `MaxPool2D`."""

    size: int = 2
    stride: int | None = None
    padding: SidePadding = "valid"
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        _check_pool(self)

    def out_shape(self, in_shape: Shape) -> Shape:
        return self._image.out_shape(as_image("MaxPool1D", in_shape))[1:]

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array, Pair]]:
        as_image("MaxPool1D", x.shape[1:])
        y, cache = self._image.forward(p, x[:, None], ctx)
        return y[:, 0], cache

    def backward(self, p: Params, cache: tuple[Array, Pair], dy: Array, g: Params, ctx: Ctx) -> Array:
        return self._image.backward(p, cache, dy[:, None], g, ctx)[:, 0]

    def cost(self, in_shape: Shape) -> Cost:
        return self._image.cost(as_image("MaxPool1D", in_shape))

    @property
    def _image(self) -> MaxPool2D:
        return MaxPool2D(*_pool_options(self), self.ceil_mode)


@dataclass(frozen=True)
class AvgPool1D(Layer):
    """x (N, T, C) -> y (N, OT, C): the mean of each window; options as for `AvgPool2D`."""

    size: int = 2
    stride: int | None = None
    padding: SidePadding = "valid"
    ceil_mode: bool = False
    count_include_pad: bool = False

    def __post_init__(self) -> None:
        _check_pool(self)

    def out_shape(self, in_shape: Shape) -> Shape:
        return self._image.out_shape(as_image("AvgPool1D", in_shape))[1:]

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Pair]:
        as_image("AvgPool1D", x.shape[1:])
        y, cache = self._image.forward(p, x[:, None], ctx)
        return y[:, 0], cache

    def backward(self, p: Params, cache: Pair, dy: Array, g: Params, ctx: Ctx) -> Array:
        return self._image.backward(p, cache, dy[:, None], g, ctx)[:, 0]

    def cost(self, in_shape: Shape) -> Cost:
        return self._image.cost(as_image("AvgPool1D", in_shape))

    @property
    def _image(self) -> AvgPool2D:
        return AvgPool2D(*_pool_options(self), self.ceil_mode, self.count_include_pad)


def _pool_options(layer: MaxPool1D | AvgPool1D) -> tuple[Pair, Pair, Padding]:
    """Size, stride and padding of the pooling over images of one row."""
    return (1, layer.size), (1, layer.size if layer.stride is None else layer.stride), side_padding(layer.padding)


def _check_pool(layer: MaxPool1D | AvgPool1D) -> None:
    name = type(layer).__name__
    positive(name, "size", layer.size)
    positive(name, "stride", layer.size if layer.stride is None else layer.stride)
    try:
        _ = layer._image
    except ValueError as e:
        raise ValueError(str(e).replace("Pool2D", "Pool1D")) from None


def _with_row(p: Params) -> Params:
    """The parameters of a convolution over sequences as those over images: W (1, k, ...), a view."""
    return {**p, "W": p["W"][None]}
