"""Dropout's product with its mask; x, y (N, ...), kept (N, ...) of booleans."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = ["drop"]

Array = np.ndarray[Any, np.dtype[Any]]


@twin("sparkdl.ops.fast.dropout")
def drop(x: Array, kept: Array, rate: float) -> Array:
    """y = x / (1 - rate) where kept, else 0; x where kept for a rate of 1, which keeps nothing."""
    y: Array = x * kept
    if rate < 1:
        y *= 1 / (1 - rate)
    return y
