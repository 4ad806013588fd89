"""Compiled twin of `sparkdl.ops.dropout`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import kernel, takes
from sparkdl.ops.dropout import Array

__all__ = ["drop"]


def drop(x: Array, kept: Array, rate: float) -> Any:
    """See `sparkdl.ops.dropout.drop`."""
    if not takes(x):
        return NotImplemented
    y = np.empty(x.shape, x.dtype)
    scale = x.dtype.type(1 / (1 - rate) if rate < 1 else 1)
    _drop(x.reshape(-1), kept.reshape(-1), scale, y.reshape(-1))
    return y


@kernel
def _drop(x: Array, kept: Array, scale: float, y: Array) -> None:
    for i in range(x.size):
        y[i] = x[i] * scale * kept[i]
