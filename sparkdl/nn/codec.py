"""Layers, losses and initializers as plain data for JSON and TOML, and back.

An object becomes `{"kind": "conv2d", "filters": 8, ...}`: the name of its class and the fields that differ from their
defaults, nested objects alike. Only the classes registered here, and those a caller passes, can be named; data never
causes an import or runs anything but a constructor.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import numpy as np

from sparkdl.nn import (
    activation,
    attention,
    checkpointed,
    containers,
    conv,
    conv1d,
    conv_transpose,
    dense,
    dropout,
    embedding,
    graph,
    initializers,
    joint_losses,
    layer_norm,
    local,
    losses,
    margin_losses,
    norm,
    pool,
    rectifier,
    recurrent,
    resize,
    shape,
    transformer,
    vector_losses,
)
from sparkdl.nn.layer import Layer, kind_of
from sparkdl.nn.losses import Loss

__all__ = ["INITIALIZERS", "LAYERS", "LOSSES", "PARTS", "decode_layer", "decode_loss", "encode"]

Data = dict[str, Any]  # what JSON can hold


def _by_kind(*classes: type) -> dict[str, type[Any]]:
    return {kind_of(cls): cls for cls in classes}


LAYERS: dict[str, type[Layer]] = _by_kind(
    activation.LogSoftmax,
    activation.ReLU,
    activation.Sigmoid,
    activation.Softmax,
    activation.Tanh,
    attention.MultiHeadAttention,
    attention.PositionalEncoding,
    checkpointed.Checkpointed,
    containers.Concat,
    containers.Residual,
    containers.Sequential,
    conv.Conv2D,
    conv1d.AvgPool1D,
    conv1d.Conv1D,
    conv1d.MaxPool1D,
    conv_transpose.Conv2DTranspose,
    dense.Dense,
    dropout.Dropout,
    embedding.Embedding,
    graph.Graph,
    layer_norm.GroupNorm,
    layer_norm.LayerNorm,
    local.LocallyConnected2D,
    norm.BatchNorm,
    pool.AvgPool2D,
    pool.GlobalAvgPool,
    pool.MaxPool2D,
    rectifier.ELU,
    rectifier.GELU,
    rectifier.Arctan,
    rectifier.Arctanh,
    rectifier.LeakyReLU,
    rectifier.Log,
    rectifier.LogSigmoid,
    rectifier.SiLU,
    rectifier.Softplus,
    recurrent.GRU,
    recurrent.LSTM,
    recurrent.SimpleRNN,
    resize.Crop2D,
    resize.PadChannels,
    resize.UpSample2D,
    resize.ZeroPad2D,
    shape.Flatten,
    shape.Permute,
    shape.Reshape,
    transformer.TransformerBlock,
)
LOSSES: dict[str, type[Loss]] = _by_kind(
    joint_losses.Joint,
    joint_losses.Reconstruction,
    losses.BinaryCrossEntropy,
    losses.Huber,
    losses.MAE,
    losses.MSE,
    losses.SoftmaxCrossEntropy,
    margin_losses.BinaryHinge,
    margin_losses.Hinge,
    margin_losses.Triplet,
    vector_losses.CosineDistance,
    vector_losses.KLDivergence,
)
INITIALIZERS: dict[str, type[Any]] = _by_kind(
    initializers.Constant,
    initializers.GlorotNormal,
    initializers.GlorotUniform,
    initializers.HeNormal,
    initializers.HeUniform,
    initializers.LecunNormal,
    initializers.LecunUniform,
    initializers.Ones,
    initializers.Orthogonal,
    initializers.RandomNormal,
    initializers.Zeros,
)

PARTS: dict[str, type[Any]] = _by_kind(graph.Input, graph.Node)  # what layers are made of besides layers


def encode(obj: Any) -> Data:
    """The data of a layer, loss or initializer: any frozen dataclass whose fields are numbers, text or such objects.

    Raises ValueError for anything else, and for a custom class whose name is that of a registered one.
    """
    cls: type = type(obj)
    kind = kind_of(cls)
    registered = {**LAYERS, **LOSSES, **INITIALIZERS, **PARTS}.get(kind, cls)
    if not is_dataclass(cls) or registered is not cls:
        reason = f"its kind {kind!r} is {registered.__module__}'s" if is_dataclass(cls) else "it is not a dataclass"
        raise ValueError(f"{cls.__module__}.{cls.__qualname__} cannot be written as data: {reason}.")
    data: Data = {"kind": kind}
    for f in fields(cls):
        where, default = f"{kind}.{f.name}", _default(f)
        value = _encode_value(getattr(obj, f.name), where)
        if f.init and (default is MISSING or value != _encode_value(default, where)):
            data[f.name] = value
    return data


def decode_layer(data: Mapping[str, Any], custom: Mapping[str, type[Layer]] | None = None) -> Layer:
    """The layer that `encode` wrote; `custom` maps the kinds of further layer classes to the classes.

    Raises ValueError, naming the place and the nearest known name, for unknown kinds and fields, and for values that
    the class refuses.
    """
    layers = {**(custom or {}), **LAYERS}
    layer: Layer = _decode(data, "layer", layers, {**layers, **INITIALIZERS, **PARTS})
    return layer


def decode_loss(data: Mapping[str, Any], custom: Mapping[str, type[Loss]] | None = None) -> Loss:
    """The loss that `encode` wrote; as `decode_layer`."""
    known = {**(custom or {}), **LOSSES}
    loss: Loss = _decode(data, "loss", known, known)
    return loss


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _encode_value(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encode_value(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return encode(value)
    raise ValueError(f"{where} = {value!r} cannot be written as data; use numbers, text, layers or initializers.")


def _decode(data: Any, where: str, top: Mapping[str, type[Any]], nested: Mapping[str, type[Any]]) -> Any:
    """Build one object; `top` are the kinds allowed for it, `nested` those for its fields."""
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise ValueError(f'{where}: must be a table with a "kind", one of {", ".join(sorted(top))}; got {data!r}.')
    kind = data["kind"]
    if kind not in top:
        raise ValueError(f"{where}: unknown kind {kind!r}. {_nearest(kind, top)}")
    cls, given = top[kind], {k: v for k, v in data.items() if k != "kind"}
    known = {f.name: f for f in fields(cls) if f.init}
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: {kind} has no field {name!r}. {_nearest(name, known)}")
    missing = [name for name, f in known.items() if name not in given and _default(f) is MISSING]
    if missing:
        raise ValueError(f"{where}: {kind} needs {', '.join(missing)}.")
    values = {name: _decode_value(value, f"{where}.{name}", nested) for name, value in given.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{where}: {e}") from e


def _decode_value(value: Any, where: str, kinds: Mapping[str, type[Any]]) -> Any:
    if isinstance(value, Mapping):
        return _decode(value, where, kinds, kinds)
    if isinstance(value, list | tuple):
        return tuple(_decode_value(v, f"{where}[{i}]", kinds) for i, v in enumerate(value))
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known)) or 'none'}."
