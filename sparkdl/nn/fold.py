"""Inference without batch normalisation: its scale and shift move into the layer before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparkdl.nn.checkpointed import Checkpointed
from sparkdl.nn.containers import Concat, Residual, Sequential
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.conv1d import Conv1D
from sparkdl.nn.conv_transpose import Conv2DTranspose
from sparkdl.nn.dense import Dense
from sparkdl.nn.graph import Graph
from sparkdl.nn.layer import Array, Layer, Params, kind_of
from sparkdl.nn.model import Model
from sparkdl.nn.norm import BatchNorm

__all__ = ["fold_batch_norm"]

Folded = tuple[Layer, Params]


def fold_batch_norm(model: Model, params: Array) -> tuple[Model, Array]:
    """A model without the BatchNorm layers that follow a dense or convolutional layer, and its parameters.

    Evaluated, it gives what the given model does: with s = gamma / sqrt(var + eps) for each output of that layer,

        W' = W s,   b' = (b - mean) s + beta.

    Other BatchNorm layers stay. The result is for inference; trained on, it is another model.
    """
    net, tree = _fold(model.net, model.layout.tree(params))
    folded = replace(model, net=net)
    values, vec = dict(_flat(tree)), np.empty(folded.layout.size, params.dtype)
    for name, view in folded.layout.views(vec).items():
        view[...] = values[name]
    return folded, vec


def _fold(layer: Layer, p: Params) -> Folded:
    """The layer with everything inside it folded, and its parameters by their new names."""
    if isinstance(layer, Sequential):
        parts = [_fold(part, p.get(_name(part, i), {})) for i, part in enumerate(layer.layers)]
        parts = list(_joined(parts))
        return Sequential([part for part, _ in parts]), _named(parts)
    if isinstance(layer, Concat):
        parts = [_fold(part, p.get(_name(part, i), {})) for i, part in enumerate(layer.branches)]
        return Concat([part for part, _ in parts]), _named(parts)
    if isinstance(layer, Residual):
        body, body_p = _fold(layer.body, p.get("body", {}))
        if layer.shortcut is None:
            return Residual(body), {"body": body_p}
        shortcut, shortcut_p = _fold(layer.shortcut, p.get("shortcut", {}))
        return Residual(body, shortcut), {"body": body_p, "shortcut": shortcut_p}
    if isinstance(layer, Graph):
        inner = {n.name: _fold(n.layer, p.get(n.name, {})) for n in layer.nodes if n.layer is not None}
        nodes = [replace(n, layer=inner[n.name][0]) if n.name in inner else n for n in layer.nodes]
        return replace(layer, nodes=nodes), {name: own for name, (_, own) in inner.items()}
    if isinstance(layer, Checkpointed):
        block, block_p = _fold(layer.block, p.get("block", {}))
        return Checkpointed(block), {"block": block_p}
    return layer, p


def _joined(parts: list[Folded]) -> Iterator[Folded]:
    """The layers of a Sequential, each BatchNorm taken into the linear layer just before it."""
    last: Folded | None = None
    for layer, p in parts:
        if isinstance(layer, BatchNorm) and last and isinstance(last[0], Conv1D | Conv2D | Conv2DTranspose | Dense):
            last = replace(last[0], bias=True), _scaled(last[1], layer, p)
            continue
        if last:
            yield last
        last = layer, p
    if last:
        yield last


def _scaled(linear: Params, norm: BatchNorm, p: Params) -> Params:
    mean, var = (p[name].astype(np.float64) for name in ("mean", "var"))
    gamma, beta = (p["gamma"], p["beta"]) if norm.affine else (1.0, 0.0)
    s = gamma / np.sqrt(var + norm.eps)
    return {"W": linear["W"] * s, "b": (linear.get("b", 0.0) - mean) * s + beta}


def _name(layer: Layer, place: int) -> str:
    return f"{kind_of(type(layer))}_{place}"


def _named(parts: list[Folded]) -> Params:
    return {_name(layer, i): p for i, (layer, p) in enumerate(parts)}


def _flat(tree: Params, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
