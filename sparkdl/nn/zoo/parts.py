"""What the builders share."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.nn.activation import ReLU
from sparkdl.nn.containers import Sequential
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.dense import Dense
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.initializers import HeNormal, Ones, Zeros
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.window import PairLike
from sparkdl.ops.window import Padding

__all__ = ["SMALL", "checked", "conv_bn", "conv_bn_relu", "dense_relu", "dropped", "is_small"]

SMALL = 64  # pixels; an image with a shorter side has no room for a stem that halves it twice


def is_small(in_shape: Shape) -> bool:
    """Whether images (H, W, C) get the stem for small images, which keeps their size."""
    return min(in_shape[:2], default=0) < SMALL


def checked(layers: Sequence[Layer], in_shape: Shape) -> Layer:
    """The layers in a row, once they are known to fit in_shape."""
    net = Sequential(layers)
    net.out_shape(in_shape)
    return net


def conv_bn(
    filters: int,
    kernel: PairLike,
    stride: int = 1,
    padding: Padding = 0,
    groups: int = 1,
    eps: float = 1e-5,
    zero_init: bool = False,
) -> list[Layer]:
    """A convolution without bias and its normalisation, whose gamma starts at 0 with `zero_init`."""
    norm = BatchNorm(eps=eps, init=Zeros() if zero_init else Ones())
    return [Conv2D(filters, kernel, stride, padding, groups=groups, bias=False), norm]


def conv_bn_relu(
    filters: int, kernel: PairLike, stride: int = 1, padding: Padding = 0, groups: int = 1, eps: float = 1e-5
) -> list[Layer]:
    """`conv_bn` and a ReLU."""
    return [*conv_bn(filters, kernel, stride, padding, groups, eps), ReLU()]


def dense_relu(units: int, dropout: float) -> list[Layer]:
    """A dense layer with ReLU and, unless it is 0, dropout."""
    return [Dense(units, init=HeNormal()), ReLU(), *dropped(dropout)]


def dropped(rate: float) -> list[Layer]:
    """Dropout, or nothing for rate 0."""
    return [Dropout(rate)] if rate else []
