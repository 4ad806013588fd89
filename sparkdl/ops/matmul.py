"""Matrix products, and what is added to them in passing."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.norm import fold, repeat

__all__ = ["add_matmul", "matmul"]

Array = np.ndarray[Any, np.dtype[Any]]


@twin("sparkdl.ops.fast.matmul")
def matmul(a: Array, b: Array, out: Array | None = None, bias: Array | None = None) -> Array:
    """a (..., R, K), b (..., K, C), bias (C,) or None -> a b + bias (..., R, C), in `out` if given.

    `out` must not share memory with the others.
    """
    out = np.matmul(a, b, out=out)
    if bias is not None and out.size:
        wide = fold(out) if out.flags.c_contiguous else out  # NumPy is slow on short rows
        wide += repeat(bias, wide)
    return out


@twin("sparkdl.ops.fast.matmul")
def add_matmul(a: Array, b: Array, out: Array) -> Array:
    """a (..., R, K), b (..., K, C): out (..., R, C) += a b, in place."""
    out += a @ b
    return out
