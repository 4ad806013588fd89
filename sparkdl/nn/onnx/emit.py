"""How each layer over vectors and images is written: `(writer, layer, parameters, x, path) -> y`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparkdl.nn.activation import LogSoftmax, Softmax
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.conv1d import Conv1D
from sparkdl.nn.conv_transpose import Conv2DTranspose
from sparkdl.nn.dense import Dense
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.layer import Layer, Params, Shape
from sparkdl.nn.layer_norm import GroupNorm, LayerNorm
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.onnx.common import ELEMENTWISE, Value, channels_first
from sparkdl.nn.onnx.functions import log_sigmoid, silu
from sparkdl.nn.onnx.writer import Writer
from sparkdl.nn.rectifier import ELU, GELU, LeakyReLU, LogSigmoid, SiLU
from sparkdl.nn.resize import Crop2D, PadChannels, UpSample2D, ZeroPad2D
from sparkdl.nn.shape import Flatten, Permute, Reshape
from sparkdl.nn.window import image_window, side_padding
from sparkdl.ops.window import Padding, Pads, pair, resolve_padding

__all__ = ["EMITTERS", "margin"]

Emitter = Callable[[Writer, Any, Params, Value, str], Value]
PAD_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def margin(w: Writer, x: Value, sides: dict[int, tuple[int, int]], mode: str = "constant") -> Value:
    """x padded on our axes (1 is the first of a sample)."""
    pads = [[sides.get(axis, (0, 0))[end] for axis in x.order] for end in (0, 1)]
    shape = tuple(n + sum(sides.get(axis, (0, 0))) for axis, n in enumerate(x.shape, 1))
    return w.node("Pad", [x.name, w.integers(*pads[0], *pads[1])], shape, x.order, mode=mode)


def _pads(pads: Pads) -> list[int]:
    return [side[end] for end in (0, 1) for side in pads]


def _dense(w: Writer, layer: Dense, p: Params, x: Value, path: str) -> Value:
    x, shape = w.plain(x), layer.out_shape(x.shape)
    W = w.weight(f"{path}/W", p["W"])
    bias = [w.weight(f"{path}/b", p["b"])] if layer.bias else []
    if len(x.shape) == 1:
        return w.node("Gemm", [x.name, W, *bias], shape)
    y = w.node("MatMul", [x.name, W], shape)
    return w.node("Add", [y.name, *bias], shape) if bias else y


def _conv(w: Writer, layer: Conv2D, p: Params, x: Value, path: str) -> Value:
    win = image_window("Conv2D", x.shape, layer.kernel, layer.stride, layer.padding, layer.dilation)
    y_shape, pads = layer.out_shape(x.shape), _pads(win.pads)
    x = w.turned(x, channels_first(x.shape))
    if layer.padding_mode != "zeros" and any(pads):
        x, pads = margin(w, x, {1: win.pads[0], 2: win.pads[1]}, PAD_MODES[layer.padding_mode]), [0] * 4
    inputs = [x.name, w.weight(f"{path}/W", p["W"].transpose(3, 2, 0, 1))]
    inputs += [w.weight(f"{path}/b", p["b"])] if layer.bias else []
    options = {"strides": win.stride, "dilations": win.dilation, "pads": pads, "group": layer.groups}
    return w.node("Conv", inputs, y_shape, x.order, kernel_shape=win.kernel, **options)


def _conv1d(w: Writer, layer: Conv1D, p: Params, x: Value, path: str) -> Value:
    padding: Padding = (0, 0), (layer.dilation * (layer.kernel - 1), 0)
    if layer.padding != "causal":
        padding = side_padding(layer.padding)
    image = (1, *x.shape)
    win = image_window("Conv1D", image, (1, layer.kernel), (1, layer.stride), padding, (1, layer.dilation))
    sides, y_shape = win.pads[1], layer.out_shape(x.shape)
    x = w.turned(x, channels_first(x.shape))
    if layer.padding_mode != "zeros" and any(sides):
        x, sides = margin(w, x, {1: sides}, PAD_MODES[layer.padding_mode]), (0, 0)
    inputs = [x.name, w.weight(f"{path}/W", p["W"].transpose(2, 1, 0))]
    inputs += [w.weight(f"{path}/b", p["b"])] if layer.bias else []
    options = {"strides": [layer.stride], "dilations": [layer.dilation], "pads": sides, "group": layer.groups}
    return w.node("Conv", inputs, y_shape, x.order, kernel_shape=[layer.kernel], **options)


def _conv_transpose(w: Writer, layer: Conv2DTranspose, p: Params, x: Value, path: str) -> Value:
    y_shape = layer.out_shape(x.shape)
    win = image_window("Conv2DTranspose", (*y_shape[:2], 1), layer.kernel, layer.stride, layer.padding, layer.dilation)
    axes = zip(x.shape, y_shape, win.stride, win.extent, win.pads, strict=False)
    extra = [out - ((n - 1) * s + e - sum(side)) for n, out, s, e, side in axes]
    kh, kw, c, f = p["W"].shape
    W = p["W"].reshape(kh, kw, c, layer.groups, f // layer.groups).transpose(3, 2, 4, 0, 1)
    x = w.turned(x, channels_first(x.shape))
    inputs = [x.name, w.weight(f"{path}/W", W.reshape(c * layer.groups, f // layer.groups, kh, kw))]
    inputs += [w.weight(f"{path}/b", p["b"])] if layer.bias else []
    options = {"strides": win.stride, "dilations": win.dilation, "pads": _pads(win.pads), "group": layer.groups}
    return w.node("ConvTranspose", inputs, y_shape, x.order, kernel_shape=win.kernel, output_padding=extra, **options)


def _batch_norm(w: Writer, layer: BatchNorm, p: Params, x: Value, path: str) -> Value:
    x = w.turned(x, channels_first(x.shape))
    gamma = p["gamma"] if layer.affine else np.ones_like(p["mean"])
    beta = p["beta"] if layer.affine else np.zeros_like(p["mean"])
    values = {"gamma": gamma, "beta": beta, "mean": p["mean"], "var": p["var"]}
    names = [w.weight(f"{path}/{name}", value) for name, value in values.items()]
    options = {"epsilon": layer.eps, "momentum": layer.momentum}
    return w.node("BatchNormalization", [x.name, *names], x.shape, x.order, **options)


def _scale(w: Writer, layer: LayerNorm | GroupNorm, p: Params, width: int, path: str) -> list[str]:
    values = (p["gamma"], p["beta"]) if layer.affine else (np.ones(width), np.zeros(width))
    return [w.weight(f"{path}/{name}", value) for name, value in zip(("gamma", "beta"), values, strict=True)]


def _layer_norm(w: Writer, layer: LayerNorm, p: Params, x: Value, path: str) -> Value:
    x = w.plain(x)
    inputs = [x.name, *_scale(w, layer, p, x.shape[-1], path)]
    return w.node("LayerNormalization", inputs, x.shape, axis=-1, epsilon=layer.eps)


def _group_norm(w: Writer, layer: GroupNorm, p: Params, x: Value, path: str) -> Value:
    shape = x.shape
    if len(shape) == 1:
        x = w.reshaped(x, (1, *shape))  # the operator wants positions
    x = w.turned(x, channels_first(x.shape))
    inputs = [x.name, *_scale(w, layer, p, shape[-1], path)]
    y = w.node("GroupNormalization", inputs, x.shape, x.order, num_groups=layer.groups, epsilon=layer.eps)
    return w.reshaped(y, shape) if len(shape) == 1 else y


def _elementwise(w: Writer, layer: Layer, p: Params, x: Value, path: str) -> Value:
    return w.node(ELEMENTWISE[type(layer)], [x.name], x.shape, x.order)


def _leaky_relu(w: Writer, layer: LeakyReLU, p: Params, x: Value, path: str) -> Value:
    return w.node("LeakyRelu", [x.name], x.shape, x.order, alpha=float(layer.slope))


def _elu(w: Writer, layer: ELU, p: Params, x: Value, path: str) -> Value:
    return w.node("Elu", [x.name], x.shape, x.order, alpha=float(layer.alpha))


def _gelu(w: Writer, layer: GELU, p: Params, x: Value, path: str) -> Value:
    return w.node("Gelu", [x.name], x.shape, x.order, approximate="tanh" if layer.tanh else "none")


def _silu(w: Writer, layer: SiLU, p: Params, x: Value, path: str) -> Value:
    return w.call("SiLU", [x.name], x, silu())


def _log_sigmoid(w: Writer, layer: LogSigmoid, p: Params, x: Value, path: str) -> Value:
    return w.call("LogSigmoid", [x.name], x, log_sigmoid())


def _softmax(w: Writer, layer: Softmax | LogSoftmax, p: Params, x: Value, path: str) -> Value:
    return w.node(type(layer).__name__, [x.name], x.shape, x.order, axis=x.axis(-1))


def _reshape(w: Writer, layer: Flatten | Reshape, p: Params, x: Value, path: str) -> Value:
    return w.reshaped(x, layer.out_shape(x.shape))


def _permute(w: Writer, layer: Permute, p: Params, x: Value, path: str) -> Value:
    """Only the order changes: the tensor stays as it is."""
    places = [0, *(axis + 1 for axis in layer.order)]
    return Value(x.name, layer.out_shape(x.shape), tuple(places.index(axis) for axis in x.order))


def _dropout(w: Writer, layer: Dropout, p: Params, x: Value, path: str) -> Value:
    return x


def _zero_pad(w: Writer, layer: ZeroPad2D, p: Params, x: Value, path: str) -> Value:
    rows, cols = _sides(layer.padding)
    return margin(w, x, {1: rows, 2: cols})


def _pad_channels(w: Writer, layer: PadChannels, p: Params, x: Value, path: str) -> Value:
    return margin(w, x, {len(x.shape): (layer.before, layer.after)})


def _crop(w: Writer, layer: Crop2D, p: Params, x: Value, path: str) -> Value:
    shape: Shape = layer.out_shape(x.shape)
    starts = [lo for lo, _ in _sides(layer.crop)]
    ends = [lo + n for lo, n in zip(starts, shape, strict=False)]
    inputs = [x.name, *(w.integers(*v) for v in (starts, ends, (x.axis(1), x.axis(2))))]
    return w.node("Slice", inputs, shape, x.order)


def _up_sample(w: Writer, layer: UpSample2D, p: Params, x: Value, path: str) -> Value:
    x, shape = w.turned(x, channels_first(x.shape)), layer.out_shape(x.shape)
    factors = pair("UpSample2D: scale", layer.scale)
    scales = w.weight(f"scales_{factors[0]}_{factors[1]}", np.array([1, 1, *factors], np.float32))
    options = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    if layer.mode == "nearest":
        options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return w.node("Resize", [x.name, "", scales], shape, x.order, **options)


def _sides(padding: Any) -> Pads:
    return resolve_padding(padding, (1, 1), (1, 1), (1, 1))


EMITTERS: dict[type[Layer], Emitter] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    BatchNorm: _batch_norm,
    Conv1D: _conv1d,
    Conv2D: _conv,
    Conv2DTranspose: _conv_transpose,
    Crop2D: _crop,
    Dense: _dense,
    Dropout: _dropout,
    ELU: _elu,
    Flatten: _reshape,
    GELU: _gelu,
    GroupNorm: _group_norm,
    LayerNorm: _layer_norm,
    LeakyReLU: _leaky_relu,
    LogSigmoid: _log_sigmoid,
    LogSoftmax: _softmax,
    PadChannels: _pad_channels,
    Permute: _permute,
    Reshape: _reshape,
    SiLU: _silu,
    Softmax: _softmax,
    UpSample2D: _up_sample,
    ZeroPad2D: _zero_pad,
}
