"""Compiled twin of `sparkdl.ops.dropout`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Bool1, Real, Real1, kernel, takes
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
def _drop(x: Real1, kept: Bool1, scale: Real, y: Real1) -> None:
    for i in range(x.size):
        y[i] = x[i] * scale * kept[i]
