"""Small convolutional networks for small images."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.nn.activation import ReLU, Tanh
from sparkdl.nn.containers import Sequential
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.dense import Dense
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.initializers import HeNormal
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.pool import AvgPool2D, MaxPool2D
from sparkdl.nn.shape import Flatten

__all__ = ["cnn", "lenet5"]


def cnn(
    in_shape: Shape,
    classes: int,
    filters: Sequence[int] = (32, 64),
    hidden: int = 128,
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> Layer:
    """A 3x3 convolution, ReLU and 2x2 max pooling for each of `filters`; a hidden dense layer; logits (classes,).

    in_shape (H, W, C); every pooling halves H and W, so both must be at least 2^len(filters). With `batch_norm` each
    convolution is normalised before its ReLU and has no bias of its own.
    """
    layers: list[Layer] = []
    for f in filters:
        layers.append(Conv2D(f, 3, bias=not batch_norm))
        if batch_norm:
            layers.append(BatchNorm())
        layers += [ReLU(), MaxPool2D()]
    layers += [Flatten(), Dense(hidden, init=HeNormal()), ReLU()]
    if dropout:
        layers.append(Dropout(dropout))
    net = Sequential([*layers, Dense(classes)])
    net.out_shape(in_shape)  # an unfit in_shape is refused here
    return net


def lenet5(in_shape: Shape, classes: int) -> Layer:
    """LeNet-5 (LeCun et al. 1998) with tanh, average pooling and logits (classes,) at its end; in_shape (H, W, C).

    The paper's 28x28 digits stand in a frame of 32x32. Images smaller than that get the frame from the first
    convolution's padding.
    """
    frame = "valid" if min(in_shape[:2], default=0) >= 32 else "same"
    net = Sequential(
        [
            *(Conv2D(6, 5, padding=frame), Tanh(), AvgPool2D()),
            *(Conv2D(16, 5, padding="valid"), Tanh(), AvgPool2D()),
            *(Flatten(), Dense(120), Tanh(), Dense(84), Tanh(), Dense(classes)),
        ]
    )
    net.out_shape(in_shape)  # an unfit in_shape is refused here
    return net
