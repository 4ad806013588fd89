"""How each operator on vectors and images is read: `(reader, operator)` -> its outputs are put into the reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparkdl.nn.activation import LogSoftmax, Softmax
from sparkdl.nn.attention import PositionalEncoding
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.conv1d import Conv1D
from sparkdl.nn.conv_transpose import Conv2DTranspose
from sparkdl.nn.dense import Dense
from sparkdl.nn.embedding import Embedding
from sparkdl.nn.layer import Array, Layer
from sparkdl.nn.layer_norm import GroupNorm, LayerNorm
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.onnx.common import ELEMENTWISE, Value, channels_first, plain
from sparkdl.nn.onnx.reader import Margin, Operator, Reader
from sparkdl.nn.rectifier import ELU, GELU, LeakyReLU

__all__ = ["PAD_MODES", "TAKERS", "Taker", "first", "padding"]

Taker = Callable[[Reader, Operator], None]
PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
LINEAR = (Conv1D, Conv2D, Conv2DTranspose, Dense)


def first(r: Reader, op: Operator, i: int = 0) -> Value:
    """An input whose tensor is (N, C, ...)."""
    x = r.value(op, i)
    return r.turned(op, x, channels_first(x.shape))


def _conv(r: Reader, op: Operator) -> None:
    source = r.values.get(op.inputs[0])
    inner = source.of if isinstance(source, Margin) else r.value(op)
    x = r.turned(op, inner, channels_first(inner.shape))
    W, axes = r.constant(op, 1), len(x.shape) - 1
    if axes not in (1, 2):
        raise op.refused(f"convolutions are over one or two axes; got {axes}.")
    sides, mode = padding(op, axes), "zeros"
    if isinstance(source, Margin):
        if sides == "same" or np.any(sides) or set(source.sides) - set(range(1, axes + 1)):
            raise op.refused("its input is padded already, in another way.")
        sides, mode = tuple(source.sides.get(axis, (0, 0)) for axis in range(1, axes + 1)), source.mode
    kernel, stride, dilation = W.shape[2:], *(op.option(k, [1] * axes) for k in ("strides", "dilations"))
    options: dict[str, Any] = {"groups": op.option("group", 1), "bias": op.has(2), "padding_mode": mode}
    if axes == 1:
        one = sides if sides == "same" else sides[0]
        layer: Layer = Conv1D(len(W), kernel[0], stride[0], one, dilation[0], **options)
    else:
        layer = Conv2D(len(W), tuple(kernel), tuple(stride), sides, tuple(dilation), **options)
    params = {"W": W.transpose(*range(2, axes + 2), 1, 0)} | ({"b": r.constant(op, 2)} if op.has(2) else {})
    r.put(op, r.layer(op, layer, x, params))


def padding(op: Operator, axes: int) -> Any:
    """((before, after), ...) or "same"."""
    auto = op.option("auto_pad", "NOTSET")
    if auto == "SAME_UPPER":
        return "same"
    if auto == "SAME_LOWER":
        raise op.refused("SAME_LOWER puts the odd element of the padding before; here it goes after.")
    pads = op.option("pads", [0] * 2 * axes) if auto == "NOTSET" else [0] * 2 * axes
    return tuple((pads[i], pads[axes + i]) for i in range(axes))


def _conv_transpose(r: Reader, op: Operator) -> None:
    x, W, groups = first(r, op), r.constant(op, 1), op.option("group", 1)
    if W.ndim != 4 or op.option("output_shape") or op.option("auto_pad", "NOTSET") != "NOTSET":
        raise op.refused("it must be over images and say its padding in `pads`.")
    c, f, kh, kw = W.shape
    W = W.reshape(groups, c // groups, f, kh, kw).transpose(3, 4, 1, 0, 2).reshape(kh, kw, c // groups, groups * f)
    stride, dilation, extra = (
        tuple(op.option(k, d))
        for k, d in zip(("strides", "dilations", "output_padding"), ([1, 1], [1, 1], [0, 0]), strict=True)
    )
    layer = Conv2DTranspose(groups * f, (kh, kw), stride, padding(op, 2), extra, dilation, groups, op.has(2))
    r.put(op, r.layer(op, layer, x, {"W": W} | ({"b": r.constant(op, 2)} if op.has(2) else {})))


def _gemm(r: Reader, op: Operator) -> None:
    if op.option("transA", 0) or op.option("alpha", 1.0) != 1 or (op.has(2) and op.option("beta", 1.0) != 1):
        raise op.refused("only x W + b is known, without factors.")
    W = r.constant(op, 1)
    W = W.T if op.option("transB", 0) else W
    params = {"W": W} | ({"b": np.broadcast_to(r.constant(op, 2), W.shape[1:]).copy()} if op.has(2) else {})
    r.put(op, r.layer(op, Dense(W.shape[1], bias=op.has(2)), r.plain(op, r.value(op)), params))


def _matmul(r: Reader, op: Operator) -> None:
    if r.is_computed(op, 1):
        raise op.refused("a product of two computed values is known within attention only, as `to_onnx` writes it.")
    W = r.constant(op, 1)
    if W.ndim != 2:
        raise op.refused(f"its weights must be a matrix; got {W.shape}.")
    r.put(op, r.layer(op, Dense(W.shape[1], bias=False), r.plain(op, r.value(op)), {"W": W}))


def _add(r: Reader, op: Operator) -> None:
    computed = [i for i in range(len(op.inputs)) if r.is_computed(op, i)]
    if len(computed) == len(op.inputs):
        _merge(r, op, "add")
        return
    if len(op.inputs) != 2 or not computed:
        raise op.refused("it adds several constants. Fold them when the model is exported?")
    i = computed[0]
    x, b = r.value(op, i), r.constant(op, 1 - i)
    node = r.nodes.get(x.name)
    layer = node.layer if node else None
    if isinstance(layer, LINEAR) and not layer.bias and r.is_alone(op, i) and _is_bias(b, x):
        r.amended(x, lambda layer: replace(layer, bias=True), {"b": np.ravel(b)})  # type: ignore[type-var]
        r.put(op, x)
        return
    x = r.plain(op, x)
    if len(x.shape) == 2 and b.shape[-2:] == x.shape and b.size == x.shape[0] * x.shape[1]:
        r.put(op, r.layer(op, PositionalEncoding(learned=True), x, {"P": b.reshape(x.shape)}))
        return
    raise op.refused(f"a constant {b.shape} is known as the bias of a linear layer, or as positions {x.shape}.")


def _is_bias(b: Array, x: Value) -> bool:
    """Whether a constant that is added to x has one entry for each channel."""
    shape = (1,) * (len(x.order) - b.ndim) + b.shape
    return b.size == x.shape[-1] and len(shape) == len(x.order) and shape[x.axis(-1)] == b.size


def _merge(r: Reader, op: Operator, how: str) -> None:
    xs = [r.value(op, i) for i in range(len(op.inputs))]
    if len({x.tensor_shape for x in xs}) > 1:
        raise op.refused(f"shapes must agree; got {', '.join(str(x.tensor_shape) for x in xs)}.")
    r.put(op, r.merged(op, xs, how) if len(xs) > 1 else xs[0])


def _concat(r: Reader, op: Operator) -> None:
    xs = [r.value(op, i) for i in range(len(op.inputs))]
    axis = op.option("axis") % len(xs[0].order)
    best = next((x for x in xs if x.axis(-1) == axis), xs[0])
    order = r.with_last(op, best, axis).order
    r.put(op, r.merged(op, [r.turned(op, x, order) for x in xs], "concat") if len(xs) > 1 else xs[0])


def _batch_norm(r: Reader, op: Operator) -> None:
    x, names = first(r, op), ("gamma", "beta", "mean", "var")
    params = {name: r.constant(op, i) for i, name in enumerate(names, 1)}
    layer = BatchNorm(op.option("momentum", 0.9), op.option("epsilon", 1e-5))
    r.put(op, r.layer(op, layer, x, params))


def _layer_norm(r: Reader, op: Operator) -> None:
    x = r.plain(op, r.value(op))
    if op.option("axis", -1) not in (-1, len(x.shape)):
        raise op.refused("it normalises over several axes; here it is the last one.")
    gamma = r.constant(op, 1)
    params = {"gamma": gamma, "beta": r.constant(op, 2, np.zeros_like(gamma))}
    r.put(op, r.layer(op, LayerNorm(op.option("epsilon", 1e-5)), x, params))


def _group_norm(r: Reader, op: Operator) -> None:
    x, groups = first(r, op), op.option("num_groups")
    if op.kind == "InstanceNormalization":
        groups = x.shape[-1]
    params = {name: r.constant(op, i) for i, name in enumerate(("gamma", "beta"), 1)}
    if r.opset < 21 and op.kind == "GroupNormalization":  # one entry for each group then
        params = {name: np.repeat(a, x.shape[-1] // groups) for name, a in params.items()}
    r.put(op, r.layer(op, GroupNorm(groups, op.option("epsilon", 1e-5)), x, params))


def _elementwise(layer: Callable[[Operator], Layer]) -> Taker:
    def take(r: Reader, op: Operator) -> None:
        r.put(op, r.layer(op, layer(op), r.value(op)))

    return take


def _softmax(r: Reader, op: Operator) -> None:
    x = r.value(op)
    axis = op.option("axis", -1) % len(x.order)
    if r.opset < 13 and axis != len(x.order) - 1:
        raise op.refused("before opset 13 it normalises over several axes.")
    r.put(op, r.layer(op, Softmax() if op.kind == "Softmax" else LogSoftmax(), r.with_last(op, x, axis)))


def _gather(r: Reader, op: Operator) -> None:
    if op.option("axis", 0) != 0 or r.is_computed(op, 0):
        raise op.refused("only rows of a constant table are known, as in an embedding.")
    E, x = r.constant(op, 0), r.value(op, 1)
    x = r.plain(op, x)
    if E.ndim != 2:
        raise op.refused(f"its table must be a matrix; got {E.shape}.")
    y = r.layer(op, Embedding(*E.shape), x, {"E": E}, plain((*x.shape, E.shape[1])))
    r.put(op, y)


def _same(r: Reader, op: Operator) -> None:
    r.put(op, r.value(op))


TAKERS: dict[str, Taker] = {
    **{name: _elementwise(lambda op, cls=cls: cls()) for cls, name in ELEMENTWISE.items()},  # type: ignore[misc]
    "Add": _add,
    "BatchNormalization": _batch_norm,
    "Cast": _same,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Dropout": _same,
    "Elu": _elementwise(lambda op: ELU(op.option("alpha", 1.0))),
    "Gather": _gather,
    "Gelu": _elementwise(lambda op: GELU(op.option("approximate", "none") == "tanh")),
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "Identity": _same,
    "InstanceNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _elementwise(lambda op: LeakyReLU(op.option("alpha", 0.01))),
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "Mul": lambda r, op: _merge(r, op, "multiply"),
    "Softmax": _softmax,
    "Sub": lambda r, op: _merge(r, op, "subtract"),
    "Sum": lambda r, op: _merge(r, op, "add"),
}
