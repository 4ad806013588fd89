"""The multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.nn.activation import ReLU
from sparkdl.nn.containers import Sequential
from sparkdl.nn.dense import Dense
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.initializers import HeNormal
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.shape import Flatten

__all__ = ["mlp"]


def mlp(in_shape: Shape, classes: int, hidden: Sequence[int] = (128,), dropout: float = 0.0) -> Layer:
    """Dense layers of `hidden` units, each with ReLU and, if asked for, dropout, and a last one of logits (classes,).

    Samples of any shape are flattened. `classes=1` makes a regressor or a binary classifier.
    """
    layers: list[Layer] = [Flatten()]
    for units in hidden:
        layers += [Dense(units, init=HeNormal()), ReLU()]
        if dropout:
            layers.append(Dropout(dropout))
    net = Sequential([*layers, Dense(classes)])
    net.out_shape(in_shape)  # an unfit in_shape is refused here
    return net
