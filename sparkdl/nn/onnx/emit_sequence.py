"""How pooling and the layers over sequences are written: `(writer, layer, parameters, x, path) -> y`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.nn.attention import MultiHeadAttention, PositionalEncoding, sinusoids
from sparkdl.nn.conv1d import AvgPool1D, MaxPool1D
from sparkdl.nn.embedding import Embedding
from sparkdl.nn.layer import Array, Layer, Params, Shape
from sparkdl.nn.onnx.common import LAYOUTS, GateLayout, Value, channels_first, steps_first
from sparkdl.nn.onnx.emit import Emitter, margin
from sparkdl.nn.onnx.functions import attention, attention_name
from sparkdl.nn.onnx.writer import Writer, refused
from sparkdl.nn.pool import AvgPool2D, GlobalAvgPool, MaxPool2D
from sparkdl.nn.recurrent import GRU, LSTM, SimpleRNN
from sparkdl.nn.window import image_window, side_padding
from sparkdl.ops.window import Pair

__all__ = ["SEQUENCE_EMITTERS"]

Pool = MaxPool2D | AvgPool2D | MaxPool1D | AvgPool1D
MASKED = "ONNX has no word for steps that do not count. Leave out mask_value?"


def _pool(w: Writer, layer: Pool, p: Params, x: Value, path: str) -> Value:
    """Padding is written out with what windows overhang in ceil_mode, on which runtimes do not agree."""
    flat = isinstance(layer, MaxPool1D | AvgPool1D)
    shape = layer.out_shape(x.shape)
    size, stride, padding, image = _as_image(layer, x.shape)
    win = image_window(type(layer).__name__, image, size, stride, padding)
    axes = zip(image, (1, *shape) if flat else shape, win.kernel, win.stride, win.pads, strict=False)
    sides: list[Pair] = [(lo, max(hi, (out - 1) * s + k - n - lo)) for n, out, k, s, (lo, hi) in axes]
    pads, kernel, strides = sides[flat:], win.kernel[flat:], win.stride[flat:]
    x = w.turned(x, channels_first(x.shape))
    options: dict[str, Any] = {}
    if isinstance(layer, AvgPool2D | AvgPool1D):
        options["count_include_pad"] = int(layer.count_include_pad)
        proper = list(win.pads[flat:])
        if layer.count_include_pad and pads != proper:  # zeros count, what overhangs does not
            x = margin(w, x, dict(enumerate(proper, 1)))
            pads = [(0, wide - side) for (_, wide), (_, side) in zip(pads, proper, strict=True)]
            options["count_include_pad"] = 0
    op = "AveragePool" if options else "MaxPool"
    options |= {"kernel_shape": kernel, "strides": strides, "pads": [side[end] for end in (0, 1) for side in pads]}
    return w.node(op, [x.name], shape, x.order, **options)


def _as_image(layer: Pool, in_shape: Shape) -> tuple[Any, Any, Any, Shape]:
    """Size, stride, padding and samples of the pooling over images that this is."""
    stride: Any = layer.size if layer.stride is None else layer.stride
    if isinstance(layer, MaxPool2D | AvgPool2D):
        return layer.size, stride, layer.padding, in_shape
    return (1, layer.size), (1, stride), side_padding(layer.padding), (1, *in_shape)


def _mean(w: Writer, layer: GlobalAvgPool, p: Params, x: Value, path: str) -> Value:
    _unmasked(layer, layer.mask_value)
    axes = [x.axis(axis) for axis in range(1, len(x.shape))]
    return w.node("ReduceMean", [x.name, w.integers(*sorted(axes))], x.shape[-1:], keepdims=0)


def _embedding(w: Writer, layer: Embedding, p: Params, x: Value, path: str) -> Value:
    E = p["E"].copy()
    if layer.padding_idx is not None:
        E[layer.padding_idx] = 0
    x = w.plain(x)
    at = w.node("Cast", [x.name], x.shape, to=7)  # int64
    return w.node("Gather", [w.weight(f"{path}/E", E), at.name], layer.out_shape(x.shape), axis=0)


def _positions(w: Writer, layer: PositionalEncoding, p: Params, x: Value, path: str) -> Value:
    _unmasked(layer, layer.mask_value)
    P = p["P"] if layer.learned else sinusoids(*x.shape)
    x = w.plain(x)
    return w.node("Add", [x.name, w.weight(f"{path}/P", P)], x.shape)


def _attention(w: Writer, layer: MultiHeadAttention, p: Params, x: Value, path: str) -> Value:
    _unmasked(layer, layer.mask_value)
    x = w.plain(x)
    t, d = x.shape
    biases = {"b": p["b"], "bo": p["bo"]} if layer.bias else {"b": np.zeros(3 * d), "bo": np.zeros(d)}
    values = {"W": p["W"], "b": biases["b"], "Wo": p["Wo"], "bo": biases["bo"]}
    inputs = [x.name, *(w.weight(f"{path}/{name}", value) for name, value in values.items())]
    if layer.causal:
        inputs.append(w.weight(f"later_{t}", np.triu(np.full((t, t), -np.inf, np.float32), 1)))
    name = attention_name(layer.heads, d, layer.causal)
    options = {"heads": layer.heads, "causal": int(layer.causal), "bias": int(layer.bias)}
    return w.call(name, inputs, x, attention(layer.heads, d, layer.causal), **options)


def _recurrent(w: Writer, layer: LSTM | GRU | SimpleRNN, p: Params, x: Value, path: str) -> Value:
    _unmasked(layer, layer.mask_value)
    layout, ways, h = LAYOUTS[type(layer)], 1 + layer.bidirectional, layer.units
    direction = "bidirectional" if layer.bidirectional else "forward"
    for i in range(layer.layers):
        x = w.turned(x, steps_first(x.shape))
        own = [p[name] for name in (f"l{i}", f"l{i}_reverse")[:ways]]
        inputs = [x.name]
        inputs += [w.weight(f"{path}/l{i}/{k}", np.stack([_gates(q[k], layout, h) for q in own])) for k in ("W", "U")]
        if layer.bias:
            inputs.append(w.weight(f"{path}/l{i}/b", np.stack([_biases(q, layout, h) for q in own])))
        last = i == layer.layers - 1 and not layer.return_sequences
        steps = x.shape[0]
        all_steps = ((steps, ways, h), (1, 2, 0, 3))
        kinds = [None, ((ways, h), (1, 0, 2))] if last else [all_steps]
        options = {"hidden_size": h, "direction": direction, **layout.options}
        (y,) = w.outputs(layout.op, inputs, kinds, **options)
        if last:
            return w.reshaped(y, (ways * h,))
        if ways == 1:
            x = w.node("Squeeze", [y.name, w.integers(1)], (steps, h), (1, 0, 2))
        else:
            y = w.turned(y, (1, 0, 2, 3))
            x = w.node("Reshape", [y.name, w.integers(0, 0, ways * h)], (steps, ways * h), (1, 0, 2))
    return x


def _gates(a: Array, layout: GateLayout, h: int) -> Array:
    """(D, K H) -> (K H, D), the gates in ONNX's order."""
    return np.concatenate([a[:, k * h : (k + 1) * h].T for k in layout.gates])


def _biases(p: Params, layout: GateLayout, h: int) -> Array:
    """The bias of the input's products and then that of the state's, the latter only within the reset."""
    own = np.concatenate([p["b"][k * h : (k + 1) * h] for k in layout.gates])
    of_state = np.zeros_like(own)
    if "bU" in p:
        of_state[-h:] = p["bU"]
    return np.concatenate([own, of_state])


def _unmasked(layer: Layer, mask_value: float | None) -> None:
    if mask_value is not None:
        raise refused(layer, MASKED)


SEQUENCE_EMITTERS: dict[type[Layer], Emitter] = {
    AvgPool1D: _pool,
    AvgPool2D: _pool,
    Embedding: _embedding,
    GRU: _recurrent,
    GlobalAvgPool: _mean,
    LSTM: _recurrent,
    MaxPool1D: _pool,
    MaxPool2D: _pool,
    MultiHeadAttention: _attention,
    PositionalEncoding: _positions,
    SimpleRNN: _recurrent,
}
