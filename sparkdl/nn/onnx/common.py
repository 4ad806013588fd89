"""What reading and writing share: where axes lie, what stands for a layer that ONNX has no operator for."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from sparkdl.nn.activation import ReLU, Sigmoid, Tanh
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.rectifier import Arctan, Arctanh, Log, Softplus
from sparkdl.nn.recurrent import GRU, LSTM, SimpleRNN

__all__ = [
    "DOMAIN",
    "ELEMENTWISE",
    "LAYOUTS",
    "OPSET",
    "GateLayout",
    "Order",
    "Value",
    "channels_first",
    "library",
    "plain",
    "steps_first",
]

OPSET = 21
DOMAIN = "sparkdl"  # of the functions that a written model brings along
Order = tuple[int, ...]

ELEMENTWISE: dict[type[Layer], str] = {
    Arctan: "Atan",
    Arctanh: "Atanh",
    Log: "Log",
    ReLU: "Relu",
    Sigmoid: "Sigmoid",
    Softplus: "Softplus",
    Tanh: "Tanh",
}


class GateLayout(NamedTuple):
    """A recurrent operator, its gates each by their place among ours, and the options it needs."""

    op: str
    gates: tuple[int, ...]
    options: dict[str, int]


LAYOUTS: dict[type[Layer], GateLayout] = {
    SimpleRNN: GateLayout("RNN", (0,), {}),
    LSTM: GateLayout("LSTM", (1, 0, 2, 3), {}),  # o, i, f, g here; i, o, f, c there
    GRU: GateLayout("GRU", (1, 0, 2), {"linear_before_reset": 1}),  # r, z, n here; z, r, h there
}


class Value(NamedTuple):
    """One value, whose samples have `shape` here. Axis i of its tensor in ONNX is axis order[i] of (N, *shape).

    With the order kept aside, a Transpose is written, or becomes a Permute, only where another order is called for.
    """

    name: str
    shape: Shape
    order: Order

    @property
    def tensor_shape(self) -> Shape:
        """The shape in ONNX, -1 for the rows."""
        shape = (-1, *self.shape)
        return tuple(shape[axis] for axis in self.order)

    def axis(self, ours: int) -> int:
        """The tensor's axis for ours (0 is that of the rows, -1 the last)."""
        return self.order.index(ours % len(self.order))

    @property
    def in_order(self) -> bool:
        """Whether the tensor holds its numbers in our order: axes of length 1 may stand anywhere."""
        shape = (0, *self.shape)
        moving = [axis for axis in self.order if shape[axis] != 1]
        return moving == sorted(moving)


def plain(shape: Shape) -> Order:
    """The order of tensors that look as they do here."""
    return tuple(range(len(shape) + 1))


def channels_first(shape: Shape) -> Order:
    """(N, C, ...) for samples (..., C), the layout of most operators on images and sequences."""
    return (0, len(shape), *range(1, len(shape)))


def steps_first(shape: Shape) -> Order:
    """(T, N, ...) for sequences (T, ...), the layout of recurrent operators."""
    return (1, 0, *range(2, len(shape) + 1))


@functools.cache
def library() -> Any:
    """The package onnx. Raises ImportError with the remedy where it is missing."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as e:
        raise ImportError("Reading and writing ONNX needs onnx: pip install 'sparkdl-train[onnx]'.") from e
    return onnx
