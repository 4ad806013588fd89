"""Functions that a written model brings along, made of standard operators: any runtime can inline them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparkdl.nn.onnx.common import DOMAIN, OPSET, library

__all__ = ["attention", "attention_name", "log_sigmoid", "silu"]

Step = tuple[str, list[str], str, dict[str, Any]]  # operator, inputs, output, options


def silu() -> Any:
    """y = x sigmoid(x)."""
    steps: list[Step] = [("Sigmoid", ["x"], "s", {}), ("Mul", ["x", "s"], "y", {})]
    return _function("SiLU", ["x"], steps)


def log_sigmoid() -> Any:
    """y = -softplus(-x)."""
    steps: list[Step] = [("Neg", ["x"], "a", {}), ("Softplus", ["a"], "b", {}), ("Neg", ["b"], "y", {})]
    return _function("LogSigmoid", ["x"], steps)


def attention_name(heads: int, width: int, causal: bool) -> str:
    """The name of `attention` with these options."""
    return f"MultiHeadAttention_{heads}x{width // heads}" + ("_causal" if causal else "")


def attention(heads: int, width: int, causal: bool) -> Any:
    """y of `MultiHeadAttention` from x (N, T, D), W, b, Wo, bo and, if causal, a mask (T, T) to be added to scores."""
    d = width // heads
    steps: list[Step] = [
        ("MatMul", ["x", "W"], "xW", {}),
        ("Add", ["xW", "b"], "projected", {}),
        ("Constant", [], "parts", {"value_ints": [0, 0, 3, heads, d]}),
        ("Reshape", ["projected", "parts"], "split", {}),
        ("Transpose", ["split"], "heads", {"perm": [2, 0, 3, 1, 4]}),
    ]
    for i, name in enumerate("qkv"):
        steps.append(("Constant", [], f"i{name}", {"value_int": i}))
        steps.append(("Gather", ["heads", f"i{name}"], name, {"axis": 0}))
    steps += [
        ("Transpose", ["k"], "kT", {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["q", "kT"], "products", {}),
        ("Constant", [], "factor", {"value_float": 1 / math.sqrt(d)}),
        ("Mul", ["products", "factor"], "scores", {}),
    ]
    if causal:
        steps.append(("Add", ["scores", "mask"], "seen", {}))
    steps += [
        ("Softmax", ["seen" if causal else "scores"], "P", {"axis": -1}),
        ("MatMul", ["P", "v"], "Pv", {}),
        ("Transpose", ["Pv"], "rows", {"perm": [0, 2, 1, 3]}),
        ("Constant", [], "whole", {"value_ints": [0, 0, width]}),
        ("Reshape", ["rows", "whole"], "joined", {}),
        ("MatMul", ["joined", "Wo"], "yo", {}),
        ("Add", ["yo", "bo"], "y", {}),
    ]
    inputs = ["x", "W", "b", "Wo", "bo", *(["mask"] if causal else [])]
    return _function(attention_name(heads, width, causal), inputs, steps, ["heads", "causal", "bias"])


def _function(name: str, inputs: Sequence[str], steps: Sequence[Step], attributes: Sequence[str] = ()) -> Any:
    """A function with the output y; `attributes` are for those who read a call of it."""
    onnx = library()
    nodes = [onnx.helper.make_node(op, ins, [out], name=out, **options) for op, ins, out, options in steps]
    versions = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_function(DOMAIN, name, list(inputs), ["y"], nodes, versions, list(attributes))
