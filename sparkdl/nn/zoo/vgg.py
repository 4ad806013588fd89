"""The networks of the Visual Geometry Group, with and without batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.nn.activation import ReLU
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.pool import MaxPool2D
from sparkdl.nn.shape import Flatten
from sparkdl.nn.zoo.parts import checked, dense_relu, is_small

__all__ = ["vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"]

FILTERS = (64, 128, 256, 512, 512)
Stages = tuple[int, int, int, int, int]  # convolutions before each pooling


def vgg11(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """VGG-11 (Simonyan & Zisserman 2015, A): 132,863,336 parameters for 224x224; logits (classes,).

    3x3 convolutions in five stages, each ending in a 2x2 max pooling that rounds up, so that 28x28 has room for all of
    them. `hidden` are the units of the dense layers before the last, each with ReLU and dropout; if none are given, two
    of 4096, or one of 512 for images (H, W, C) with a side under 64.
    """
    return _vgg(in_shape, classes, (1, 1, 2, 2, 2), False, hidden, dropout)


def vgg11_bn(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """`vgg11` with each convolution normalised: 132,868,840 parameters for 224x224."""
    return _vgg(in_shape, classes, (1, 1, 2, 2, 2), True, hidden, dropout)


def vgg13(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """VGG-13 (Simonyan & Zisserman 2015, B): 133,047,848 parameters for 224x224; otherwise as `vgg11`."""
    return _vgg(in_shape, classes, (2, 2, 2, 2, 2), False, hidden, dropout)


def vgg13_bn(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """`vgg13` with each convolution normalised: 133,053,736 parameters for 224x224."""
    return _vgg(in_shape, classes, (2, 2, 2, 2, 2), True, hidden, dropout)


def vgg16(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """VGG-16 (Simonyan & Zisserman 2015, D): 138,357,544 parameters for 224x224; otherwise as `vgg11`."""
    return _vgg(in_shape, classes, (2, 2, 3, 3, 3), False, hidden, dropout)


def vgg16_bn(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """`vgg16` with each convolution normalised: 138,365,992 parameters for 224x224."""
    return _vgg(in_shape, classes, (2, 2, 3, 3, 3), True, hidden, dropout)


def vgg19(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """VGG-19 (Simonyan & Zisserman 2015, E): 143,667,240 parameters for 224x224; otherwise as `vgg11`."""
    return _vgg(in_shape, classes, (2, 2, 4, 4, 4), False, hidden, dropout)


def vgg19_bn(in_shape: Shape, classes: int, hidden: Sequence[int] = (), dropout: float = 0.5) -> Layer:
    """`vgg19` with each convolution normalised: 143,678,248 parameters for 224x224."""
    return _vgg(in_shape, classes, (2, 2, 4, 4, 4), True, hidden, dropout)


def _vgg(in_shape: Shape, classes: int, stages: Stages, norm: bool, hidden: Sequence[int], dropout: float) -> Layer:
    layers: list[Layer] = []
    for filters, convolutions in zip(FILTERS, stages, strict=True):
        for _ in range(convolutions):
            layers += [Conv2D(filters, 3, padding=1), *([BatchNorm()] if norm else []), ReLU()]
        layers.append(MaxPool2D(ceil_mode=True))
    layers.append(Flatten())
    for units in hidden or ((512,) if is_small(in_shape) else (4096, 4096)):
        layers += dense_relu(units, dropout)
    return checked([*layers, Dense(classes)], in_shape)
