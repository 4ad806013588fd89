"""Training written out plainly, with none of the package's loop, plan or strategies: what the modes must agree with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import nn

Array = np.ndarray[Any, np.dtype[Any]]


def blobs(rows: int, width: int = 6, classes: int = 3, seed: int = 0, weights: bool = False) -> pa.Table:
    """Rows of `features` (lists of float64), `label` (int) and, if asked for, `weight`."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    x = rng.standard_normal((rows, width)) + 2 * np.eye(classes, width)[y]
    columns = {"features": list(x), "label": y}
    return pa.table(columns | ({"weight": rng.integers(1, 4, rows).astype(float)} if weights else {}))


def mlp(hidden: int = 8, classes: int = 3) -> nn.Sequential:
    """A net without state that depends on the batch, so that any split of a batch gives the same sums."""
    return nn.Sequential((nn.Dense(hidden), nn.Tanh(), nn.Dense(classes)))


def sgd_by_hand(params: Array, batches: list[tuple[Array, Array, Array]], lr: float, momentum: float) -> Array:
    """`mlp` trained by momentum SGD on minibatches (x, y, w), forward and backward by formula."""
    d, h = batches[0][0].shape[1], 8
    w1, b1, w2, b2 = np.split(params.copy(), np.cumsum([d * h, h, h * 3]))
    theta, velocity = [w1.reshape(d, h), b1, w2.reshape(h, 3), b2], [0.0] * 4
    for x, y, w in batches:
        a = np.tanh(x @ theta[0] + theta[1])
        z = a @ theta[2] + theta[3]
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        dz = p * w[:, None] / w.sum()
        da = dz @ theta[2].T * (1 - a * a)
        grads = [x.T @ da, da.sum(0), a.T @ dz, dz.sum(0)]
        for i, g in enumerate(grads):
            velocity[i] = momentum * velocity[i] + g
            theta[i] = theta[i] - lr * velocity[i]
    return np.concatenate([t.ravel() for t in theta])


def tolerance(dtype: str) -> float:
    """How far two orders of summation may lie apart."""
    return {"float32": 1e-6, "float64": 1e-12}[dtype]


def steps(rows: int, batch_size: int) -> int:
    """Minibatches of an epoch."""
    return math.ceil(rows / batch_size)
