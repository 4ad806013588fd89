"""Inception v3."""

from __future__ import annotations

from sparkdl.nn.containers import Concat, Sequential
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.pool import AvgPool2D, GlobalAvgPool, MaxPool2D
from sparkdl.nn.window import PairLike
from sparkdl.nn.zoo.parts import checked, conv_bn_relu, dropped, is_small
from sparkdl.ops.window import Padding

__all__ = ["inception_v3"]


def inception_v3(in_shape: Shape, classes: int, dropout: float = 0.5) -> Layer:
    """Inception v3 (Szegedy et al. 2016), without the auxiliary classifier: 23,834,568 parameters; logits (classes,).

    The stem brings the paper's 299x299 images down to 35x35; images (H, W, C) need sides of at least 75. With a side
    under 64, the stem keeps its convolutions but has no strides and no pooling, and pads: the modules then see about
    what they see in the paper.
    """
    layers = [*_small_stem()] if is_small(in_shape) else [*_stem()]
    layers += map(_module_a, (32, 64, 64))
    layers += [_reduction_b(), *map(_module_c, (128, 160, 160, 192))]
    layers += [_reduction_d(), _module_e(), _module_e()]
    return checked([*layers, GlobalAvgPool(), *dropped(dropout), Dense(classes)], in_shape)


def _stem() -> list[Layer]:
    first = [*_conv(32, 3, 2), *_conv(32, 3), *_conv(64, 3, 1, 1), MaxPool2D(3, 2)]
    return [*first, *_conv(80, 1), *_conv(192, 3), MaxPool2D(3, 2)]


def _small_stem() -> list[Layer]:
    first = [*_conv(32, 3, 1, 1), *_conv(32, 3, 1, 1), *_conv(64, 3, 1, 1)]
    return [*first, *_conv(80, 1), *_conv(192, 3, 1, 1)]


def _module_a(pooled: int) -> Layer:
    return Concat(
        [
            Sequential(_conv(64, 1)),
            Sequential([*_conv(48, 1), *_conv(64, 5, 1, 2)]),
            Sequential([*_conv(64, 1), *_conv(96, 3, 1, 1), *_conv(96, 3, 1, 1)]),
            _pooled(pooled),
        ]
    )


def _reduction_b() -> Layer:
    double = [*_conv(64, 1), *_conv(96, 3, 1, 1), *_conv(96, 3, 2)]
    return Concat([Sequential(_conv(384, 3, 2)), Sequential(double), MaxPool2D(3, 2)])


def _module_c(width: int) -> Layer:
    double = [*_conv(width, 1), *_tall(width), *_wide(width), *_tall(width), *_wide(192)]
    return Concat(
        [
            Sequential(_conv(192, 1)),
            Sequential([*_conv(width, 1), *_wide(width), *_tall(192)]),
            Sequential(double),
            _pooled(192),
        ]
    )


def _reduction_d() -> Layer:
    three = [*_conv(192, 1), *_conv(320, 3, 2)]
    seven = [*_conv(192, 1), *_wide(192), *_tall(192), *_conv(192, 3, 2)]
    return Concat([Sequential(three), Sequential(seven), MaxPool2D(3, 2)])


def _module_e() -> Layer:
    both = Concat([Sequential(_wide(384, 3)), Sequential(_tall(384, 3))])
    return Concat(
        [
            Sequential(_conv(320, 1)),
            Sequential([*_conv(384, 1), both]),
            Sequential([*_conv(448, 1), *_conv(384, 3, 1, 1), both]),
            _pooled(192),
        ]
    )


def _pooled(filters: int) -> Layer:
    return Sequential([AvgPool2D(3, 1, 1, count_include_pad=True), *_conv(filters, 1)])


def _wide(filters: int, kernel: int = 7) -> list[Layer]:
    return _conv(filters, (1, kernel), 1, (0, kernel // 2))


def _tall(filters: int, kernel: int = 7) -> list[Layer]:
    return _conv(filters, (kernel, 1), 1, (kernel // 2, 0))


def _conv(filters: int, kernel: PairLike, stride: int = 1, padding: Padding = 0) -> list[Layer]:
    return conv_bn_relu(filters, kernel, stride, padding, eps=1e-3)
