"""AlexNet."""

from __future__ import annotations

from sparkdl.nn.activation import ReLU
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.pool import MaxPool2D
from sparkdl.nn.shape import Flatten
from sparkdl.nn.zoo.parts import checked, dense_relu, dropped, is_small

__all__ = ["alexnet"]


def alexnet(in_shape: Shape, classes: int, dropout: float = 0.5) -> Layer:
    """AlexNet in its form for one device (Krizhevsky 2014), 61,100,840 parameters for 224x224; logits (classes,).

    The first convolution is 11x11 with stride 4; for images (H, W, C) with a side under 64 it is 3x3 with stride 1.
    Dropout stands before each of the two dense layers of 4096 units.
    """
    stem = Conv2D(64, 3, padding=1) if is_small(in_shape) else Conv2D(64, 11, 4, padding=2)
    layers = [
        *(stem, ReLU(), MaxPool2D(3, 2)),
        *(Conv2D(192, 5, padding=2), ReLU(), MaxPool2D(3, 2)),
        *(Conv2D(384, 3, padding=1), ReLU()),
        *(Conv2D(256, 3, padding=1), ReLU()),
        *(Conv2D(256, 3, padding=1), ReLU(), MaxPool2D(3, 2)),
        *(Flatten(), *dropped(dropout)),
        *(*dense_relu(4096, dropout), *dense_relu(4096, 0), Dense(classes)),
    ]
    return checked(layers, in_shape)
