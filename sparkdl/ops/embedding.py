"""Rows of a table by index, and their gradient. table (V, D), at (M,) in 0..V-1, rows (M, D)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = ["embed", "embed_grad"]

Array = np.ndarray[Any, np.dtype[Any]]


def embed(table: Array, at: Array) -> Array:
    """rows[m] = table[at[m]]."""
    return table.take(at, axis=0)


@twin("sparkdl.ops.fast.embedding")
def embed_grad(dtable: Array, at: Array, drows: Array) -> None:
    """dtable[v] += the sum of drows[m] over all m with at[m] = v, in place; rows that no index names are not touched.

    An indexed += would keep one of several equal indices only. Sorted by index, the rows of each are a run to add up.
    """
    if not len(at):
        return
    order = at.argsort(kind="stable")
    ordered = at[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    dtable[ordered[starts]] += np.add.reduceat(drows[order], starts, axis=0)
