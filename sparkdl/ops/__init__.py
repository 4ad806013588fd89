"""Kernels: functions over arrays, without classes that hold them and without state."""

from sparkdl.ops import (
    activation,
    attention,
    conv,
    conv_transpose,
    embedding,
    gelu,
    layer_norm,
    local,
    norm,
    pad,
    pool,
    recurrent,
    resample,
    softmax,
    window,
)

__all__ = [
    "activation",
    "attention",
    "conv",
    "conv_transpose",
    "embedding",
    "gelu",
    "layer_norm",
    "local",
    "norm",
    "pad",
    "pool",
    "recurrent",
    "resample",
    "softmax",
    "window",
]
