"""Densely connected networks."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.nn.activation import ReLU
from sparkdl.nn.containers import Concat, Sequential
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.pool import AvgPool2D, GlobalAvgPool, MaxPool2D
from sparkdl.nn.zoo.parts import checked, conv_bn_relu, is_small

__all__ = ["densenet121", "densenet169", "densenet201"]

GROWTH = 32


def densenet121(in_shape: Shape, classes: int) -> Layer:
    """DenseNet-121 (Huang et al. 2017): 7,978,856 parameters; logits (classes,).

    The stem is a 7x7 convolution and a 3x3 max pooling, both with stride 2; for images (H, W, C) with a side under 64
    it is one 3x3 convolution with stride 1.
    """
    return _densenet(in_shape, classes, (6, 12, 24, 16))


def densenet169(in_shape: Shape, classes: int) -> Layer:
    """DenseNet-169: 14,149,480 parameters; otherwise as `densenet121`."""
    return _densenet(in_shape, classes, (6, 12, 32, 32))


def densenet201(in_shape: Shape, classes: int) -> Layer:
    """DenseNet-201: 20,013,928 parameters; otherwise as `densenet121`."""
    return _densenet(in_shape, classes, (6, 12, 48, 32))


def _densenet(in_shape: Shape, classes: int, blocks: Sequence[int]) -> Layer:
    channels = 2 * GROWTH
    small = is_small(in_shape)
    layers = conv_bn_relu(channels, 3, 1, 1) if small else [*conv_bn_relu(channels, 7, 2, 3), MaxPool2D(3, 2, 1)]
    for block, count in enumerate(blocks):
        if block:
            channels //= 2
            layers += [*_norm_conv(channels, 1), AvgPool2D()]
        grown = Sequential([*_norm_conv(4 * GROWTH, 1), *_norm_conv(GROWTH, 3)])
        layers += [Concat([Sequential([]), grown])] * count
        channels += count * GROWTH
    return checked([*layers, BatchNorm(), ReLU(), GlobalAvgPool(), Dense(classes)], in_shape)


def _norm_conv(filters: int, kernel: int) -> list[Layer]:
    return [BatchNorm(), ReLU(), Conv2D(filters, kernel, padding=kernel // 2, bias=False)]
