"""From a model to ONNX: containers are walked, every layer is written by an emitter of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sparkdl.nn.checkpointed import Checkpointed
from sparkdl.nn.containers import Concat, Residual, Sequential
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.graph import WHOLE, Graph
from sparkdl.nn.layer import Array, Layer, Params, kind_of
from sparkdl.nn.model import Model
from sparkdl.nn.onnx.common import Value, plain
from sparkdl.nn.onnx.emit import EMITTERS
from sparkdl.nn.onnx.emit_sequence import SEQUENCE_EMITTERS
from sparkdl.nn.onnx.writer import Writer, refused
from sparkdl.nn.transformer import STAGES, TransformerBlock

__all__ = ["to_onnx"]

Walker = Callable[[Writer, Any, Params, Value, str], Value]
MERGES = {"add": "Add", "subtract": "Sub", "multiply": "Mul"}


def to_onnx(model: Model, params: Array) -> Any:
    """The model as an onnx.ModelProto of float32, for opset 21: input (N, *in_shape), output z (N, *out_shape).

    It says what `Model.outputs` computes, so z are logits where the loss takes them; dropout is left out. Images stay
    channels last outside; inside, a Transpose stands only where an operator calls for another order. For attention,
    SiLU and log-sigmoid, which have no operators in this opset, the model brings functions along. A file is made by
    `onnx.save(to_onnx(model, params), path)`.

    Raises ValueError where ONNX has no words for a layer: masked steps, locally connected layers, layers of one's own.
    Raises ImportError where the extra `onnx` is missing.
    """
    writer = Writer()
    x = Value("input", model.in_shape, plain(model.in_shape))
    return writer.model(x, _write(writer, model.net, model.layout.tree(params), x, ""))


def _write(w: Writer, layer: Layer, p: Params, x: Value, path: str) -> Value:
    """layer(x). Adds to the writer."""
    walker = CONTAINERS.get(type(layer)) or EMITTERS.get(type(layer)) or SEQUENCE_EMITTERS.get(type(layer))
    if walker is None:
        raise refused(layer, f"ONNX has no operator for it. Known: {', '.join(sorted(_known()))}.")
    y: Value = walker(w, layer, p, x, path or kind_of(type(layer)))
    return y


def _known() -> list[str]:
    return [cls.__name__ for cls in (*CONTAINERS, *EMITTERS, *SEQUENCE_EMITTERS)]


def _sequential(w: Writer, layer: Sequential, p: Params, x: Value, path: str) -> Value:
    for name, inner, _ in layer.children(x.shape):
        x = _write(w, inner, p.get(name, {}), x, f"{path}/{name}")
    return x


def _residual(w: Writer, layer: Residual, p: Params, x: Value, path: str) -> Value:
    ys = [_write(w, inner, p.get(name, {}), x, f"{path}/{name}") for name, inner, _ in layer.children(x.shape)]
    return w.combined("Add", ys if layer.shortcut is not None else [*ys, x])


def _concat(w: Writer, layer: Concat, p: Params, x: Value, path: str) -> Value:
    ys = [_write(w, inner, p.get(name, {}), x, f"{path}/{name}") for name, inner, _ in layer.children(x.shape)]
    return ys[0] if len(ys) == 1 else w.joined(ys)


def _checkpointed(w: Writer, layer: Checkpointed, p: Params, x: Value, path: str) -> Value:
    return _write(w, layer.block, p.get("block", {}), x, f"{path}/block")


def _graph(w: Writer, layer: Graph, p: Params, x: Value, path: str) -> Value:
    layers = {node.name: node.layer for node in layer.nodes}
    values = {WHOLE: x}
    if layer.inputs:
        x, widths = w.plain(x), [math.prod(i.shape) for i in layer.inputs]
        kinds = [((width,), (0, 1)) for width in widths]
        parts = w.outputs("Split", [x.name, w.integers(*widths)], kinds, axis=1) if len(kinds) > 1 else [x]
        values = {i.name: w.reshaped(part, i.shape) for i, part in zip(layer.inputs, parts, strict=True)}
    for node in layer.nodes:
        ys = [values[name] for name in node.inputs]
        y = ys[0]
        if len(ys) > 1:
            y = w.joined(ys) if node.merge == "concat" else w.combined(MERGES[node.merge], ys)
        owner = node.name if node.layer is not None else node.shares
        inner = layers.get(owner or "")
        if owner and inner is not None:
            y = _write(w, inner, p.get(owner, {}), y, f"{path}/{owner}")
        values[node.name] = y
    outs = [values[name] for name in layer.outputs]
    return outs[0] if len(outs) == 1 else w.joined([w.reshaped(y, (math.prod(y.shape),)) for y in outs])


def _transformer(w: Writer, layer: TransformerBlock, p: Params, x: Value, path: str) -> Value:
    if layer.mask_value is not None:
        raise refused(layer, "ONNX has no word for steps that do not count. Leave out mask_value?")
    parts = {name: inner for name, inner, _ in layer.children(x.shape)}

    def run(name: str, x: Value) -> Value:
        inner = parts.get(name, Dropout(0))
        return _write(w, inner, p.get(name, {}), x, f"{path}/{name}")

    for norm, body, _ in STAGES:
        if layer.pre_norm:
            x = w.combined("Add", [x, run(body, run(norm, x))])
        else:
            x = run(norm, w.combined("Add", [x, run(body, x)]))
    return x


CONTAINERS: dict[type[Layer], Walker] = {
    Checkpointed: _checkpointed,
    Concat: _concat,
    Graph: _graph,
    Residual: _residual,
    Sequential: _sequential,
    TransformerBlock: _transformer,
}
