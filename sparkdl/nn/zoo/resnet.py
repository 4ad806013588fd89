"""Residual networks: those for ImageNet, and the slim ones for small images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkdl.nn.activation import ReLU
from sparkdl.nn.containers import Residual, Sequential
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.pool import GlobalAvgPool, MaxPool2D
from sparkdl.nn.resize import PadChannels
from sparkdl.nn.zoo.parts import checked, conv_bn, conv_bn_relu, is_small

__all__ = [
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet101",
    "resnet110",
    "resnet152",
]

Body = Callable[[int, int, bool], list[Layer]]  # (width, stride, zero_init) -> the layers beside the shortcut


def resnet18(in_shape: Shape, classes: int, zero_init: bool = False) -> Layer:
    """ResNet-18 (He et al. 2016): 11,689,512 parameters; logits (classes,).

    The stem is a 7x7 convolution and a 3x3 max pooling, both with stride 2; for images (H, W, C) with a side under 64
    it is one 3x3 convolution with stride 1. With `zero_init` the last gamma of each block starts at 0, so that the
    block starts as its shortcut (Goyal et al. 2017).
    """
    return _imagenet(in_shape, classes, _basic, 1, (2, 2, 2, 2), zero_init)


def resnet34(in_shape: Shape, classes: int, zero_init: bool = False) -> Layer:
    """ResNet-34: 21,797,672 parameters; otherwise as `resnet18`."""
    return _imagenet(in_shape, classes, _basic, 1, (3, 4, 6, 3), zero_init)


def resnet50(in_shape: Shape, classes: int, zero_init: bool = False) -> Layer:
    """ResNet-50, of bottlenecks with the stride in their 3x3 convolution: 25,557,032 parameters; else as `resnet18`."""
    return _imagenet(in_shape, classes, _bottleneck, 4, (3, 4, 6, 3), zero_init)


def resnet101(in_shape: Shape, classes: int, zero_init: bool = False) -> Layer:
    """ResNet-101: 44,549,160 parameters; otherwise as `resnet50`."""
    return _imagenet(in_shape, classes, _bottleneck, 4, (3, 4, 23, 3), zero_init)


def resnet152(in_shape: Shape, classes: int, zero_init: bool = False) -> Layer:
    """ResNet-152: 60,192,808 parameters; otherwise as `resnet50`."""
    return _imagenet(in_shape, classes, _bottleneck, 4, (3, 8, 36, 3), zero_init)


def resnet20(in_shape: Shape, classes: int, zero_init: bool = False, projection: bool = False) -> Layer:
    """ResNet-20 for small images (He et al. 2016, section 4.2): 269,722 parameters for 10 classes; logits (classes,).

    Three stages of 16, 32 and 64 filters. Where a stage begins, the shortcut takes every second pixel and pads the new
    channels with zeros, half of them on each side; with `projection` it is a normalised 1x1 convolution. `zero_init`
    as for `resnet18`.
    """
    return _cifar(in_shape, classes, 3, zero_init, projection)


def resnet32(in_shape: Shape, classes: int, zero_init: bool = False, projection: bool = False) -> Layer:
    """ResNet-32 for small images: 464,154 parameters for 10 classes; otherwise as `resnet20`."""
    return _cifar(in_shape, classes, 5, zero_init, projection)


def resnet44(in_shape: Shape, classes: int, zero_init: bool = False, projection: bool = False) -> Layer:
    """ResNet-44 for small images: 658,586 parameters for 10 classes; otherwise as `resnet20`."""
    return _cifar(in_shape, classes, 7, zero_init, projection)


def resnet56(in_shape: Shape, classes: int, zero_init: bool = False, projection: bool = False) -> Layer:
    """ResNet-56 for small images: 853,018 parameters for 10 classes; otherwise as `resnet20`."""
    return _cifar(in_shape, classes, 9, zero_init, projection)


def resnet110(in_shape: Shape, classes: int, zero_init: bool = False, projection: bool = False) -> Layer:
    """ResNet-110 for small images: 1,727,962 parameters for 10 classes; otherwise as `resnet20`."""
    return _cifar(in_shape, classes, 18, zero_init, projection)


def _imagenet(
    in_shape: Shape, classes: int, body: Body, expansion: int, blocks: Sequence[int], zero_init: bool
) -> Layer:
    small = is_small(in_shape)
    layers = conv_bn_relu(64, 3, 1, 1) if small else [*conv_bn_relu(64, 7, 2, 3), MaxPool2D(3, 2, 1)]
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            out = width * expansion
            shortcut = Sequential(conv_bn(out, 1, stride)) if stride != 1 or channels != out else None
            layers += [Residual(Sequential(body(width, stride, zero_init)), shortcut), ReLU()]
            channels = out
    return checked([*layers, GlobalAvgPool(), Dense(classes)], in_shape)


def _cifar(in_shape: Shape, classes: int, blocks: int, zero_init: bool, projection: bool) -> Layer:
    layers = conv_bn_relu(16, 3, 1, 1)
    for width in (16, 32, 64):
        for block in range(blocks):
            stride, shortcut = 1, None
            if width > 16 and not block:
                stride = 2
                every_second = [MaxPool2D(1, stride), PadChannels(width // 4, width // 4)]
                shortcut = Sequential(conv_bn(width, 1, stride) if projection else every_second)
            layers += [Residual(Sequential(_basic(width, stride, zero_init)), shortcut), ReLU()]
    return checked([*layers, GlobalAvgPool(), Dense(classes)], in_shape)


def _basic(width: int, stride: int, zero_init: bool) -> list[Layer]:
    return [*conv_bn_relu(width, 3, stride, 1), *conv_bn(width, 3, 1, 1, zero_init=zero_init)]


def _bottleneck(width: int, stride: int, zero_init: bool) -> list[Layer]:
    return [
        *conv_bn_relu(width, 1),
        *conv_bn_relu(width, 3, stride, 1),
        *conv_bn(4 * width, 1, zero_init=zero_init),
    ]
