"""Numbers of a row of pixels in another order, as part of kernels: moved in blocks, as large as the channels allow."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import inline

__all__ = ["blocks", "take"]

Array = np.ndarray[Any, np.dtype[Any]]

U = tuple(np.uint64(k) for k in range(9))


def blocks(pixels: Array, channels: int) -> Array:
    """Which pixels -> what `take` moves: where their numbers start, block by block."""
    block = next(b for b in (8, 2, 1) if channels % b == 0)
    starts: Array = pixels[:, None] * channels + np.arange(0, channels, block)
    return starts.reshape(-1)


@inline
def take(source: Any, order: Any, target: Any) -> None:
    """Puts the blocks of source that start there one after the other. Indices without a sign cost no test."""
    block, t = target.size // max(1, order.size), U[0]
    for m in range(order.size):
        s = np.uint64(order[m])
        if block == 8:
            a, b, c, d = source[s], source[s + U[1]], source[s + U[2]], source[s + U[3]]
            e, f, g, h = source[s + U[4]], source[s + U[5]], source[s + U[6]], source[s + U[7]]
            target[t], target[t + U[1]], target[t + U[2]], target[t + U[3]] = a, b, c, d
            target[t + U[4]], target[t + U[5]], target[t + U[6]], target[t + U[7]] = e, f, g, h
            t += U[8]
        elif block == 2:
            a, b = source[s], source[s + U[1]]
            target[t], target[t + U[1]] = a, b
            t += U[2]
        else:
            target[t] = source[s]
            t += U[1]
