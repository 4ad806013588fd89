"""A graph of ONNX that is being read, as nodes of a `Graph` with their parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.graph import Input, Node
from sparkdl.nn.layer import Array, Layer, Shape, kind_of
from sparkdl.nn.onnx.common import Order, Value, library, plain
from sparkdl.nn.shape import Flatten, Permute, Reshape

__all__ = ["Margin", "Operator", "Reader"]


class Margin(NamedTuple):
    """A value whose sides are to be filled in a way that here only a convolution knows."""

    of: Value
    sides: dict[int, tuple[int, int]]
    mode: str


class Operator:
    """One node of ONNX: its inputs and options."""

    def __init__(self, proto: Any) -> None:
        get = library().helper.get_attribute_value
        self.kind, self.inputs, self.outputs = proto.op_type, list(proto.input), list(proto.output)
        self.domain = proto.domain
        self._options = {a.name: get(a) for a in proto.attribute}
        self.name = proto.name or (self.outputs or [""])[0]

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option; text as text."""
        value = self._options.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def has(self, i: int) -> bool:
        """Whether the i-th input is given."""
        return i < len(self.inputs) and bool(self.inputs[i])

    def refused(self, why: str) -> ValueError:
        """The error for what has no counterpart here."""
        return ValueError(f"from_onnx: {self.kind} ({self.name}) cannot be read: {why}")


class Reader:
    """Values, constants, nodes and parameters so far; its methods add to them."""

    def __init__(self, constants: Mapping[str, Array], uses: Mapping[str, int], opset: int) -> None:
        self.constants, self.uses, self.opset = dict(constants), uses, opset
        self.values: dict[str, Value | Margin] = {}
        self.nodes: dict[str, Node] = {}
        self.params: dict[str, dict[str, Array]] = {}
        self.inputs: list[Input] = []  # the parts of the model's input, where it is split first
        self._sources: dict[str, Value] = {}  # of what is only reshaped
        self._turned: dict[tuple[str, Order], Value] = {}
        self._kinds: Counter[str] = Counter()

    def value(self, op: Operator, i: int = 0) -> Value:
        """The i-th input, which must be computed."""
        name = op.inputs[i] if op.has(i) else ""
        found = self.values.get(name)
        if isinstance(found, Margin):
            raise op.refused(f"padding of mode {found.mode!r} is known before a convolution only.")
        if found is None:
            what = "is a constant" if name in self.constants else "is missing"
            raise op.refused(f"its input {i} {what}; it must be computed from the model's input.")
        return found

    def constant(self, op: Operator, i: int, default: Array | None = None) -> Array:
        """The i-th input, which must be a constant."""
        if not op.has(i) and default is not None:
            return default
        name = op.inputs[i] if op.has(i) else ""
        if name not in self.constants:
            raise op.refused(f"its input {i} must be a constant. Fold constants when the model is exported?")
        return self.constants[name]

    def integers(self, op: Operator, i: int, default: Sequence[int] = ()) -> list[int]:
        """The i-th input, constant integers."""
        return [int(n) for n in np.ravel(self.constant(op, i, np.array(default, np.int64)))]

    def is_computed(self, op: Operator, i: int) -> bool:
        """Whether the i-th input depends on the model's input."""
        return op.has(i) and op.inputs[i] in self.values

    def put(self, op: Operator, value: Value | Margin, output: int = 0) -> None:
        """Make it the operator's output."""
        self.values[op.outputs[output]] = value

    def layer(
        self,
        op: Operator,
        layer: Layer,
        x: Value,
        params: Mapping[str, Array] | None = None,
        order: Order | None = None,
    ) -> Value:
        """layer(x), which is expected in the right order; the tensor of y has the order of x unless told otherwise."""
        try:
            shape = layer.out_shape(x.shape)
        except ValueError as e:
            raise op.refused(str(e)) from e
        name, order = self._name(kind_of(type(layer))), order or x.order
        self.nodes[name], self.params[name] = Node(name, x.name, layer), dict(params or {})
        return Value(name, shape, order if len(order) == len(shape) + 1 else plain(shape))

    def merged(self, op: Operator, xs: Sequence[Value], how: Any) -> Value:
        """Several values as one."""
        order = Counter(x.order for x in xs).most_common(1)[0][0]
        xs = [self.turned(op, x, order) for x in xs]
        shape = xs[0].shape
        if how == "concat":
            shape = (*shape[:-1], sum(x.shape[-1] for x in xs))
        name = self._name(how)
        self.nodes[name] = Node(name, tuple(x.name for x in xs), merge=how)
        return Value(name, shape, order)

    def turned(self, op: Operator, x: Value, order: Order) -> Value:
        """x such that its tensor is of this order: the same numbers in ONNX, other axes here."""
        if x.order == order:
            return x
        if len(order) != len(x.order):
            raise op.refused(f"it takes {len(order)} axes; got {len(x.order)}.")
        # Axis i of the new value is the axis of x that the same axis of the tensor is.
        perm = [x.order[order.index(i)] for i in range(len(order))]
        if perm[0] != 0:
            raise op.refused("rows must stay on the first axis; it needs them elsewhere.")
        key = x.name, tuple(perm)
        if key not in self._turned:
            self._turned[key] = self.layer(op, Permute([axis - 1 for axis in perm[1:]]), x)
        return self._turned[key]._replace(order=order)

    def with_last(self, op: Operator, x: Value, axis: int) -> Value:
        """x such that this axis of its tensor is the last one here."""
        rows = x.order.index(0)
        if axis == rows:
            raise op.refused("it works along the rows.")
        if x.order[axis] == len(x.shape):
            return x
        ours = [rows, *(i for i in range(len(x.order)) if i not in (rows, axis)), axis]
        return self.turned(op, x, tuple(ours.index(i) for i in range(len(ours))))

    def plain(self, op: Operator, x: Value) -> Value:
        """x such that its tensor is what it is here."""
        return self.turned(op, x, plain(x.shape))

    def reshaped(self, op: Operator, x: Value, shape: Shape, order: Order | None = None) -> Value:
        """The numbers of x as its tensor has them, in samples of another shape."""
        if math.prod(shape) != math.prod(x.shape):
            raise op.refused(f"the rows must stay as they are; samples {x.shape} do not become {shape}.")
        x = x if x.in_order else self.plain(op, x)
        source = self._sources.get(x.name, x)
        order = order or plain(shape)
        if shape == source.shape:
            return Value(source.name, shape, order)
        y = self.layer(op, Flatten() if len(shape) == 1 else Reshape(shape), source, order=order)
        self._sources[y.name] = source
        return y

    def is_alone(self, op: Operator, i: int) -> bool:
        """Whether nothing but this operator reads the node that its i-th input comes from."""
        name = self.value(op, i).name
        tensors = [tensor for tensor, value in self.values.items() if isinstance(value, Value) and value.name == name]
        return len(tensors) == 1 and self.uses[tensors[0]] == 1

    def amended(self, x: Value, change: Callable[[Layer], Layer], params: Mapping[str, Array]) -> None:
        """Change the layer of the node that x comes from, and add parameters."""
        node = self.nodes[x.name]
        assert node.layer is not None
        self.nodes[x.name] = Node(node.name, node.inputs, change(node.layer))
        self.params[x.name] |= dict(params)

    def _name(self, kind: str) -> str:
        self._kinds[kind] += 1
        return f"{kind}_{self._kinds[kind]}"
