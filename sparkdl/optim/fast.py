"""Compiled twins of the update rules' inner loops: each vector is read and written once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import kernel, takes
from sparkdl.optim.base import Array

__all__ = ["adapted", "moments", "momentum"]


def momentum(w: Array, g: Array, velocity: Array, s: Array, mu: float, nesterov: bool, lr: float) -> Any:
    """See `sparkdl.optim.sgd.momentum`."""
    if not takes(w, g, velocity):
        return NotImplemented
    of = w.dtype.type
    return _momentum(w, g, velocity, of(mu), of(lr * mu if nesterov else lr), of(lr if nesterov else 0))


def moments(m: Array, v: Array, g: Array, s: Array, beta1: float, beta2: float) -> Any:
    """See `sparkdl.optim.adam.moments`."""
    if not takes(m, v, g):
        return NotImplemented
    of = m.dtype.type
    return _moments(m, v, g, of(beta1), of(1.0 - beta1), of(beta2), of(1.0 - beta2))


def adapted(m: Array, v: Array, out: Array, t: int, beta1: float, beta2: float, eps: float, scale: float) -> Any:
    """See `sparkdl.optim.adam.adapted`."""
    if not takes(m, v, out):
        return NotImplemented
    c, of = math.sqrt(1.0 - beta2**t), m.dtype.type
    return _adapted(m, v, out, of(eps * c), of(scale * c / (1.0 - beta1**t)))


@kernel
def _momentum(w: Array, g: Array, velocity: Array, mu: float, of_velocity: float, of_g: float) -> None:
    for i in range(w.size):
        v = velocity[i] * mu + g[i]
        velocity[i] = v
        w[i] -= of_velocity * v + of_g * g[i]


@kernel
def _moments(m: Array, v: Array, g: Array, beta1: float, rest1: float, beta2: float, rest2: float) -> None:
    for i in range(m.size):
        m[i] = beta1 * m[i] + rest1 * g[i]
        v[i] = beta2 * v[i] + rest2 * g[i] * g[i]


@kernel
def _adapted(m: Array, v: Array, out: Array, eps: float, scale: float) -> None:
    for i in range(m.size):
        out[i] = scale * m[i] / (np.sqrt(v[i]) + eps)
