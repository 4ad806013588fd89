"""One ONNX operator run by onnxruntime: an independent implementation to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

__all__ = ["channels_first", "channels_last", "run_node"]


def run_node(op: str, *inputs: np.ndarray, **attributes: Any) -> np.ndarray:
    """The output of `op` (opset 17) on float32 inputs, in ONNX's own layout: images are (N, C, H, W)."""
    names = [f"in{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["out"], **attributes)],
        op,
        values,
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {name: np.ascontiguousarray(a, np.float32) for name, a in zip(names, inputs, strict=True)}
    return session.run(None, feed)[0]


def channels_first(x: np.ndarray) -> np.ndarray:
    """(N, H, W, C) -> (N, C, H, W)."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def channels_last(x: np.ndarray) -> np.ndarray:
    """(N, C, H, W) -> (N, H, W, C)."""
    return np.moveaxis(x, 1, -1)
