"""How operators are read that pool, move numbers, or run over sequences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.nn.attention import MultiHeadAttention
from sparkdl.nn.conv1d import AvgPool1D, MaxPool1D
from sparkdl.nn.graph import WHOLE, Input
from sparkdl.nn.layer import Array, Layer, Shape
from sparkdl.nn.onnx.common import DOMAIN, LAYOUTS, GateLayout, Value, channels_first, plain, steps_first
from sparkdl.nn.onnx.reader import Margin, Operator, Reader
from sparkdl.nn.onnx.take import PAD_MODES, Taker, first, padding
from sparkdl.nn.pool import AvgPool2D, GlobalAvgPool, MaxPool2D
from sparkdl.nn.rectifier import LogSigmoid, SiLU
from sparkdl.nn.resize import Crop2D, PadChannels, UpSample2D, ZeroPad2D

__all__ = ["SHAPE_TAKERS", "take_function"]


def _pool(r: Reader, op: Operator) -> None:
    x = first(r, op)
    axes = len(x.shape) - 1
    size = op.option("kernel_shape")
    if axes not in (1, 2) or any(d != 1 for d in op.option("dilations", [1])) or len(op.outputs) > 1:
        raise op.refused("pooling is over one or two axes, without dilation or indices.")
    sides, stride = padding(op, axes), op.option("strides", [1] * axes)
    options: dict[str, Any] = {"ceil_mode": bool(op.option("ceil_mode", 0))}
    expected: Shape | None = None
    if sides != "same" and not op.option("count_include_pad", 0):
        # What a last window overhangs may be written as padding of more than half the size.
        inside = tuple((lo, min(hi, k // 2)) for (lo, hi), k in zip(sides, size, strict=True))
        options["ceil_mode"] |= inside != sides
        if inside != sides:
            each = zip(x.shape, sides, size, stride, strict=False)
            expected = tuple((n + lo + hi - k) // s + 1 for n, (lo, hi), k, s in each)
        sides = inside
    if op.kind == "AveragePool":
        options["count_include_pad"] = bool(op.option("count_include_pad", 0))
    if axes == 1:
        pool: Any = MaxPool1D if op.kind == "MaxPool" else AvgPool1D
        layer: Layer = pool(size[0], stride[0], sides if sides == "same" else sides[0], **options)
    else:
        pool = MaxPool2D if op.kind == "MaxPool" else AvgPool2D
        layer = pool(tuple(size), tuple(stride), sides, **options)
    y = r.layer(op, layer, x)
    if expected is not None and y.shape[:-1] != expected:
        raise op.refused("its padding is more than half its size.")
    r.put(op, y)


def _global_pool(r: Reader, op: Operator) -> None:
    x = first(r, op)
    shape = (1,) * (len(x.shape) - 1) + x.shape[-1:]
    y = r.layer(op, GlobalAvgPool(), x, order=(0, 1))
    r.put(op, r.reshaped(op, y, shape, channels_first(shape)))


def _reduce_mean(r: Reader, op: Operator) -> None:
    """The mean over all axes but those of rows and channels."""
    x = r.value(op)
    axes = r.integers(op, 1) if r.opset >= 18 else list(op.option("axes", []))
    axes = sorted(axis % len(x.order) for axis in axes)
    rest = [i for i in range(len(x.order)) if i not in axes and x.order[i] != 0]
    if len(rest) != 1 or len(axes) not in (1, 2) or x.order[0] != 0:
        raise op.refused("means are over all steps, or over all pixels.")
    x = r.with_last(op, x, rest[0])
    y = r.layer(op, GlobalAvgPool(), x, order=(0, 1))
    if op.option("keepdims", 1):
        y = r.reshaped(op, y, (1,) * len(axes) + y.shape, x.order)
    r.put(op, y)


def _split(r: Reader, op: Operator) -> None:
    x, widths = r.value(op), r.integers(op, 1)
    if op.option("axis", 0) % len(x.order) != 1 or x.name != WHOLE or len(x.shape) > 1 or r.uses[op.inputs[0]] > 1:
        raise op.refused("only a model's input (N, S) is split, before all else.")
    for i, width in enumerate(widths or [x.shape[0] // len(op.outputs)] * len(op.outputs)):
        part = Input(f"part_{i}", (width,))
        r.inputs.append(part)
        r.put(op, Value(part.name, part.shape, (0, 1)), i)


def _transpose(r: Reader, op: Operator) -> None:
    x = r.value(op)
    perm = op.option("perm", list(reversed(range(len(x.order)))))
    r.put(op, x._replace(order=tuple(x.order[axis] for axis in perm)))


def _flatten(r: Reader, op: Operator) -> None:
    if op.option("axis", 1) != 1:
        raise op.refused("it must keep the first axis.")
    x = r.value(op)
    r.put(op, r.reshaped(op, x, (math.prod(x.shape),)))


def _reshape(r: Reader, op: Operator) -> None:
    x, sizes = r.value(op), r.integers(op, 1)
    if not op.option("allowzero", 0):
        sizes = [x.tensor_shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    per_row, rows = math.prod(x.shape), x.order.index(0)
    # The rows, -1 where they were copied; an inferred size is theirs if all others make up a sample.
    places = [i for i, n in enumerate(sizes) if n == -1]
    if len(places) == 2 and rows in places:  # rows copied, another size inferred
        known = math.prod(n for n in sizes if n != -1)
        at = next(i for i in places if i != rows)
        sizes[at], places = per_row // known, [rows]
    if len(places) != 1 or math.prod(n for n in sizes if n != -1) != per_row:
        raise op.refused(f"{sizes} does not keep the rows of samples {x.shape} together.")
    _put_tensor(r, op, x, sizes, places[0])


def _put_tensor(r: Reader, op: Operator, x: Value, sizes: list[int], rows: int) -> None:
    """The numbers of x in a tensor of these sizes, whose rows are on axis `rows`."""
    shape = tuple(n for i, n in enumerate(sizes) if i != rows)
    order = tuple(0 if i == rows else i + (i < rows) for i in range(len(sizes)))
    moved = x.order.index(0)
    before, after = x.tensor_shape[:moved], sizes[:rows]
    if math.prod(before) != math.prod(after):
        raise op.refused("the rows do not stay apart from what stands before them.")
    moving = [axis for axis in x.order if axis and x.shape[axis - 1] != 1]
    if moving != sorted(moving):
        x = r.turned(op, x, tuple(0 if i == moved else i + (i < moved) for i in range(len(x.order))))
    # Without the rows, the tensor is a sample as it is here.
    r.put(op, r.reshaped(op, x._replace(order=plain(x.shape)), shape, order))


def _squeeze(r: Reader, op: Operator) -> None:
    x = r.value(op)
    axes = r.integers(op, 1) if r.opset >= 13 else list(op.option("axes", []))
    if op.kind == "Squeeze":
        gone = {axis % len(x.order) for axis in axes} or {i for i, n in enumerate(x.tensor_shape) if n == 1}
        sizes = [n for i, n in enumerate(x.tensor_shape) if i not in gone]
    else:
        sizes = list(x.tensor_shape)
        for axis in sorted(axis % (len(sizes) + len(axes)) for axis in axes):
            sizes.insert(axis, 1)
    _put_tensor(r, op, x, sizes, sizes.index(-1))


def _spatial(r: Reader, op: Operator, x: Value, axes: list[int]) -> Value:
    """x such that these axes of its tensor are not its channels here, if (N, C, ...) can bring that about."""
    return first(r, op) if any(x.order[axis] == len(x.shape) for axis in axes) else x


def _pad(r: Reader, op: Operator) -> None:
    x, mode = r.value(op), op.option("mode", "constant")
    pads = r.integers(op, 1) if r.opset >= 11 else list(op.option("pads", []))
    n = len(pads) // 2
    tensor_axes = [axis % len(x.order) for axis in r.integers(op, 3, range(n))]
    if mode != "constant":
        x = _spatial(r, op, x, [axis for i, axis in enumerate(tensor_axes) if pads[i] or pads[n + i]])
    sides = {x.order[axis]: (pads[i], pads[n + i]) for i, axis in enumerate(tensor_axes) if pads[i] or pads[n + i]}
    if mode != "constant":
        r.put(op, Margin(x, sides, PAD_MODES[mode]))
        return
    if np.any(r.constant(op, 2, np.zeros(1))) or 0 in sides or min(pads) < 0:
        raise op.refused("padding is with zeros, and of samples only.")
    last = len(x.shape)
    if last in sides:
        x = r.layer(op, PadChannels(*sides.pop(last)), x)
    if sides:
        x = r.layer(op, ZeroPad2D((sides.get(1, (0, 0)), sides.get(2, (0, 0)))), x)
    r.put(op, x)


def _slice(r: Reader, op: Operator) -> None:
    x, starts, ends = r.value(op), r.integers(op, 1), r.integers(op, 2)
    axes = [axis % len(x.order) for axis in r.integers(op, 3, range(len(starts)))]
    x = _spatial(r, op, x, axes)
    if any(step != 1 for step in r.integers(op, 4, [1])):
        raise op.refused("it takes every entry; steps are not known.")
    sides: dict[int, tuple[int, int]] = {}
    for axis, start, end in zip(axes, starts, ends, strict=True):
        n = x.tensor_shape[axis]
        lo, hi = (min(max(at + n if at < 0 else at, 0), n) for at in (start, end))
        if (lo, hi) != (0, n):
            sides[x.order[axis]] = (lo, n - hi)
    if set(sides) - {1, 2}:
        raise op.refused("only the sides of images are cut off.")
    r.put(op, r.layer(op, Crop2D((sides.get(1, (0, 0)), sides.get(2, (0, 0)))), x) if sides else x)


def _resize(r: Reader, op: Operator) -> None:
    x, mode = first(r, op), op.option("mode", "nearest")
    if not op.has(2):
        raise op.refused("it must have constant scales.")
    scales = [float(s) for s in r.constant(op, 2)]
    how = op.option("coordinate_transformation_mode", "half_pixel")
    known = {"nearest": ("asymmetric", "floor"), "linear": ("half_pixel", op.option("nearest_mode"))}
    found = (how, op.option("nearest_mode", "round_prefer_floor") if mode == "nearest" else op.option("nearest_mode"))
    if known.get(mode) != found or scales[:2] != [1, 1] or any(s % 1 for s in scales):
        raise op.refused("images grow by whole factors: nearest (asymmetric, floor) or linear (half_pixel).")
    factors = int(scales[2]), int(scales[3])
    r.put(op, r.layer(op, UpSample2D(factors, "nearest" if mode == "nearest" else "bilinear"), x))


def _recurrent(r: Reader, op: Operator) -> None:
    cls = {layout.op: cls for cls, layout in LAYOUTS.items()}[op.kind]
    layout, h = LAYOUTS[cls], op.option("hidden_size")
    x = r.value(op)
    x = r.turned(op, x, steps_first(x.shape))
    direction, ways = op.option("direction", "forward"), 2 if op.option("direction") == "bidirectional" else 1
    states = [i for i in (5, 6, 7) if op.has(i) and not (i < 7 and not np.any(r.constant(op, i)))]
    wrong = {key: op.option(key) for key in ("clip", "activations", "layout", "input_forget") if op.option(key)}
    wrong |= {key: op.option(key, 0) for key, value in layout.options.items() if op.option(key, 0) != value}
    if op.has(4) or states or wrong or direction == "reverse":
        raise op.refused(f"only its plain form is known, all steps from states of zeros; got {wrong or direction}.")
    W, U = r.constant(op, 1), r.constant(op, 2)
    B = r.constant(op, 3) if op.has(3) else None
    outputs = [i for i, name in enumerate(op.outputs) if name and r.uses.get(name)]
    if len(outputs) != 1 or outputs[0] == 2:
        raise op.refused("one of its outputs can be used: that of all steps, or that of the last.")
    params: dict[str, Array] = {}
    for k in range(ways):
        way = _ways(W[k], U[k], None if B is None else B[k], layout, h)
        params |= {f"{'l0_reverse' if k else 'l0'}/{key}": a for key, a in way.items()}
    layer: Any = cls(h, bidirectional=ways == 2, return_sequences=outputs[0] == 0, bias=B is not None)  # type: ignore[call-arg]
    y = r.layer(op, layer, x, params, order=None if outputs[0] == 0 else (0, 1))
    shape, order = ((x.shape[0], ways, h), (1, 2, 0, 3)) if outputs[0] == 0 else ((ways, h), (1, 0, 2))
    y = Value(y.name, y.shape, tuple(range(len(y.order))))
    r.put(op, r.reshaped(op, y, shape, order), outputs[0])


def _ways(W: Array, U: Array, B: Array | None, layout: GateLayout, h: int) -> dict[str, Array]:
    """The parameters of one direction."""
    places = [layout.gates.index(k) for k in range(len(layout.gates))]

    def ours(a: Array) -> Array:
        """(K H, ...) -> (..., K H), the gates in our order."""
        return np.concatenate([a[k * h : (k + 1) * h].T for k in places], axis=-1)

    params = {"W": ours(W), "U": ours(U)}
    if B is None:
        return params
    b, of_state = ours(B[: len(B) // 2]), ours(B[len(B) // 2 :])
    if layout.op == "GRU":
        params["bU"] = of_state[-h:].copy()
        of_state[-h:] = 0
    return params | {"b": b + of_state}


def take_function(r: Reader, op: Operator) -> None:
    """A function that `to_onnx` writes."""
    if op.kind in {"SiLU", "LogSigmoid"}:
        r.put(op, r.layer(op, SiLU() if op.kind == "SiLU" else LogSigmoid(), r.value(op)))
        return
    if not op.kind.startswith("MultiHeadAttention"):
        raise op.refused(f"the domain {DOMAIN} has no such function.")
    layer = MultiHeadAttention(op.option("heads"), bool(op.option("causal")), bias=bool(op.option("bias")))
    names = {"W": 1, "Wo": 3} | ({"b": 2, "bo": 4} if layer.bias else {})
    params = {name: r.constant(op, i) for name, i in names.items()}
    r.put(op, r.layer(op, layer, r.plain(op, r.value(op)), params))


SHAPE_TAKERS: dict[str, Taker] = {
    "AveragePool": _pool,
    "Flatten": _flatten,
    "GRU": _recurrent,
    "GlobalAveragePool": _global_pool,
    "LSTM": _recurrent,
    "MaxPool": _pool,
    "Pad": _pad,
    "RNN": _recurrent,
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _squeeze,
}
