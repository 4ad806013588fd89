"""Compiled twin of the gradient in `sparkdl.ops.embedding`: rows are added where they lie, without sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Index1, Real2, kernel, takes
from sparkdl.ops.embedding import Array

__all__ = ["embed_grad"]


def embed_grad(dtable: Array, at: Array, drows: Array) -> Any:
    """See `sparkdl.ops.embedding.embed_grad`."""
    if not takes(dtable, drows) or not dtable.flags.c_contiguous:
        return NotImplemented
    _add(dtable, np.ascontiguousarray(at), np.ascontiguousarray(drows))
    return None


@kernel
def _add(dtable: Real2, at: Index1, drows: Real2) -> None:
    for m in range(len(at)):
        target, row = dtable[at[m]], drows[m]
        for k in range(len(row)):
            target[k] += row[k]
