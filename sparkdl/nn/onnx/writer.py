"""A graph of ONNX that is being written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.nn.layer import Array, Shape
from sparkdl.nn.onnx.common import DOMAIN, OPSET, Order, Value, library, plain

__all__ = ["Writer", "refused"]


def refused(what: object, why: str) -> ValueError:
    """The error for what ONNX cannot say."""
    return ValueError(f"to_onnx: {what} cannot be written: {why}")


class Writer:
    """Nodes, weights and functions so far; its methods add to them."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.functions: dict[str, Any] = {}
        self._turned: dict[tuple[str, Order], str] = {}  # a tensor and what its axes are permuted by
        self._names: Counter[str] = Counter()

    def node(self, op: str, inputs: Sequence[str], shape: Shape, order: Order | None = None, **options: Any) -> Value:
        """A new value, the first output of `op` on tensors of these names."""
        return self.outputs(op, inputs, [(shape, order or plain(shape))], **options)[0]

    def outputs(
        self, op: str, inputs: Sequence[str], kinds: Sequence[tuple[Shape, Order] | None], **options: Any
    ) -> list[Value]:
        """New values, one for each output of `op`; those that are None are left out."""
        self._names[op] += 1
        base = f"{op}_{self._names[op]}"
        names = [(f"{base}_{i}" if i else base) if kind else "" for i, kind in enumerate(kinds)]
        self.nodes.append(library().helper.make_node(op, list(inputs), names, name=base, **options))
        return [Value(name, *kind) for name, kind in zip(names, kinds, strict=True) if kind]

    def call(self, name: str, inputs: Sequence[str], x: Value, function: Any, **attributes: Any) -> Value:
        """A value of the shape and order of x from a function of ours, which is defined once."""
        self.functions.setdefault(name, function)
        return self.node(name, inputs, x.shape, x.order, domain=DOMAIN, **attributes)

    def weight(self, name: str, array: Array) -> str:
        """The name of a tensor of weights; one name has one value."""
        if name not in self.weights:
            array = array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)
            self.weights[name] = library().numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def integers(self, *values: int) -> str:
        """The name of a constant vector of integers."""
        return self.weight("integers_" + "_".join(map(str, values)).replace("-", "minus"), np.array(values, np.int64))

    def turned(self, x: Value, order: Order) -> Value:
        """x with its axes in this order, by a Transpose unless they are."""
        if x.order == order:
            return x
        perm = tuple(x.order.index(axis) for axis in order)
        if (x.name, perm) not in self._turned:
            self._turned[x.name, perm] = self.node("Transpose", [x.name], x.shape, order, perm=perm).name
        return Value(self._turned[x.name, perm], x.shape, order)

    def plain(self, x: Value) -> Value:
        """x as its samples are here."""
        return self.turned(x, plain(x.shape))

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """The numbers of x, read in our order, as samples of another shape."""
        x = x if x.in_order else self.plain(x)
        if x.shape == shape and x.order == plain(shape):
            return x
        if x.order[0] != 0:  # an axis of length 1 stands before the rows
            return self.node("Reshape", [x.name, self.integers(-1, *shape)], shape)
        if len(shape) == 1:
            return self.node("Flatten", [x.name], shape, axis=1)
        return self.node("Reshape", [x.name, self.integers(0, *shape)], shape)

    def combined(self, op: str, xs: Sequence[Value]) -> Value:
        """op(op(x0, x1), x2) ... of values of one shape."""
        order = _common(xs)
        y, *others = (self.turned(x, order) for x in xs)
        for x in others:
            y = self.node(op, [y.name, x.name], y.shape, order)
        return y

    def joined(self, xs: Sequence[Value]) -> Value:
        """Values side by side along their last axis."""
        order = _common(xs)
        names = [self.turned(x, order).name for x in xs]
        shape = (*xs[0].shape[:-1], sum(x.shape[-1] for x in xs))
        return self.node("Concat", names, shape, order, axis=order.index(len(shape)))

    def model(self, x: Value, y: Value) -> Any:
        """The model that maps x to y."""
        onnx = library()
        self.nodes.append(onnx.helper.make_node("Identity", [self.plain(y).name], ["output"]))
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", *shape])
            for name, shape in ((x.name, x.shape), ("output", y.shape))
        ]
        graph = onnx.helper.make_graph(self.nodes, "sparkdl", infos[:1], infos[1:], list(self.weights.values()))
        versions = [onnx.helper.make_opsetid("", OPSET)]
        if self.functions:
            versions.append(onnx.helper.make_opsetid(DOMAIN, 1))
        model = onnx.helper.make_model(
            graph,
            opset_imports=versions,
            functions=list(self.functions.values()),
            producer_name="sparkdl",
            ir_version=10,
        )
        onnx.checker.check_model(model)
        return model


def _common(xs: Sequence[Value]) -> Order:
    """The order that most of the values have."""
    return Counter(x.order for x in xs).most_common(1)[0][0]
