"""GoogLeNet."""

from __future__ import annotations

from sparkdl.nn.containers import Concat, Sequential
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.pool import GlobalAvgPool, MaxPool2D
from sparkdl.nn.window import PairLike
from sparkdl.nn.zoo.parts import checked, conv_bn_relu, dropped, is_small

__all__ = ["googlenet"]

# Filters of the inception modules: 1x1; 1x1 and 3x3; 1x1 and 3x3; 1x1 after pooling. Modules of a row share one size.
MODULES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(in_shape: Shape, classes: int, dropout: float = 0.2) -> Layer:
    """GoogLeNet (Szegedy et al. 2015), without the auxiliary classifiers: 6,624,904 parameters; logits (classes,).

    As it is trained today: convolutions are normalised, and what was 5x5 is 3x3. The stem's 7x7 convolution has stride
    2, as have the max poolings after it and after its 3x3 convolution; for images (H, W, C) with a side under 64 the
    first is 3x3 with stride 1, and there is no pooling before the first module.
    """
    small = is_small(in_shape)
    halved = [] if small else [MaxPool2D(3, 2, ceil_mode=True)]
    layers = [*(_conv(64, 3, 1, 1) if small else _conv(64, 7, 2, 3)), *halved]
    layers += [*_conv(64, 1), *_conv(192, 3, 1, 1), *halved]
    layers += map(_inception, MODULES[0])
    layers += [MaxPool2D(3, 2, ceil_mode=True), *map(_inception, MODULES[1])]
    layers += [MaxPool2D(2, 2, ceil_mode=True), *map(_inception, MODULES[2])]
    return checked([*layers, GlobalAvgPool(), *dropped(dropout), Dense(classes)], in_shape)


def _inception(filters: tuple[int, int, int, int, int, int]) -> Layer:
    one, three_in, three, five_in, five, pooled = filters
    return Concat(
        [
            Sequential(_conv(one, 1)),
            Sequential([*_conv(three_in, 1), *_conv(three, 3, 1, 1)]),
            Sequential([*_conv(five_in, 1), *_conv(five, 3, 1, 1)]),
            Sequential([MaxPool2D(3, 1, 1), *_conv(pooled, 1)]),
        ]
    )


def _conv(filters: int, kernel: PairLike, stride: int = 1, padding: int = 0) -> list[Layer]:
    return conv_bn_relu(filters, kernel, stride, padding, eps=1e-3)
