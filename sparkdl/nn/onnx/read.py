"""From ONNX to a network and its parameters."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.containers import Sequential
from sparkdl.nn.graph import WHOLE, Graph
from sparkdl.nn.layer import Array, Layer, Shape, kind_of
from sparkdl.nn.layout import Layout
from sparkdl.nn.onnx.common import DOMAIN, Value, channels_first, library, plain
from sparkdl.nn.onnx.reader import Operator, Reader
from sparkdl.nn.onnx.take import TAKERS
from sparkdl.nn.onnx.take_shape import SHAPE_TAKERS, take_function

__all__ = ["Imported", "from_onnx"]


class Imported(NamedTuple):
    """A network, the shape of its samples, and its parameters (size of its layout,) in float32."""

    net: Layer
    in_shape: Shape
    params: Array


def from_onnx(source: Any, in_shape: Shape | None = None, channels_last: bool = False) -> Imported:
    """The network of an ONNX model: a file's path, its bytes, or a ModelProto.

    The model has one input, whose first axis is that of the rows, and one output. `in_shape` gives the sizes of a
    sample, in ONNX's order of axes, where the model leaves them open. Samples are what they are in ONNX, unless
    `channels_last`: then images (C, H, W) become (H, W, C), as all layers here have them, and no Permute is needed.
    A chain of layers becomes a Sequential, anything else a Graph. What was written by `to_onnx` gives the same
    outputs again; stacked recurrent layers come back one by one.

    Raises ValueError, naming the operator, for what has no counterpart here. Raises ImportError where the extra
    `onnx` is missing.
    """
    model = _load(source)
    graph, onnx = model.graph, library()
    opset = next((v.version for v in model.opset_import if v.domain in ("", "ai.onnx")), 1)
    uses = Counter(name for node in graph.node for name in node.input) + Counter(o.name for o in graph.output)
    reader = Reader({t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}, uses, opset)
    x = _input(graph, reader, in_shape, channels_last)
    for proto in graph.node:
        op = Operator(proto)
        if op.kind == "Constant":
            reader.constants[op.outputs[0]] = _constant(op)
            continue
        taker = take_function if op.domain == DOMAIN else {**TAKERS, **SHAPE_TAKERS}.get(op.kind)
        if taker is None or op.domain not in ("", "ai.onnx", DOMAIN):
            raise op.refused(f"it has no counterpart here. Known: {', '.join(sorted({**TAKERS, **SHAPE_TAKERS}))}.")
        taker(reader, op)
    if len(graph.output) != 1:
        raise ValueError(f"from_onnx: the model has {len(graph.output)} outputs; a network has one.")
    end = Operator(onnx.helper.make_node("output", [graph.output[0].name], []))
    y = reader.plain(end, reader.value(end))
    return _built(reader, x, y)


def _load(source: Any) -> Any:
    onnx = library()
    if isinstance(source, bytes):
        return onnx.load_model_from_string(source)
    if isinstance(source, str | os.PathLike):
        return onnx.load(source)
    return source


def _input(graph: Any, reader: Reader, in_shape: Shape | None, channels_last: bool) -> Value:
    inputs = [i for i in graph.input if i.name not in reader.constants]
    if len(inputs) != 1:
        raise ValueError(f"from_onnx: the model has the inputs {', '.join(i.name for i in inputs)}; a network has one.")
    dims = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim][1:]
    shape = tuple(in_shape) if in_shape is not None else tuple(dims)
    if not all(shape):
        raise ValueError(f"from_onnx: {inputs[0].name} leaves sizes open (0 in {dims}). Give in_shape.")
    x = Value(WHOLE, shape, plain(shape))
    if channels_last and len(shape) > 1:
        x = Value(WHOLE, (*shape[1:], shape[0]), channels_first(shape))
    reader.values[inputs[0].name] = x
    return x


def _constant(op: Operator) -> Array:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if op.option(name) is not None:
            return np.asarray(op.option(name))
    array: Array = library().numpy_helper.to_array(op.option("value"))
    return array


def _built(reader: Reader, x: Value, y: Value) -> Imported:
    """The network of the nodes that y depends on."""
    needed = {y.name}
    for node in reversed(reader.nodes.values()):
        if node.name in needed:
            needed.update(node.inputs)
    nodes = [node for node in reader.nodes.values() if node.name in needed]
    net: Layer
    before = [x.name, *(node.name for node in nodes)]
    layers = [node.layer for node, last in zip(nodes, before, strict=False) if node.layer and node.inputs == (last,)]
    if len(layers) == len(nodes):
        net = Sequential(layers)
        kinds = [f"{kind_of(type(layer))}_{i}" for i, layer in enumerate(layers)]  # as Sequential names them
        names = dict(zip((node.name for node in nodes), kinds, strict=True))
    else:
        net, names = Graph(nodes, y.name, reader.inputs), {node.name: node.name for node in nodes}
    layout = Layout(net.specs(x.shape))
    vec = np.empty(layout.size, np.float32)
    found = {f"{names[n]}/{key}": a for n in names for key, a in reader.params.get(n, {}).items()}
    for name, view in layout.views(vec).items():
        if found[name].shape != view.shape:
            raise ValueError(f"from_onnx: {name} is of shape {found[name].shape}; the layer has {view.shape}.")
        view[...] = found[name]
    return Imported(net, x.shape, vec)
