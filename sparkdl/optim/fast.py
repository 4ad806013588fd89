"""Compiled twins of the update rules' inner loops: each vector is read and written once.

They give the bits of the NumPy versions: workers that all make the same update, some of them without numba or on
another processor, must not drift apart.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import Real, Real1, exact_kernel, takes
from sparkdl.optim.base import Array

__all__ = ["adapted", "moments", "momentum"]


def momentum(w: Array, g: Array, velocity: Array, s: Array, mu: float, nesterov: bool, lr: float) -> Any:
    """See `sparkdl.optim.sgd.momentum`."""
    if not takes(w, g, velocity):
        return NotImplemented
    of = w.dtype.type
    return (_nesterov if nesterov else _momentum)(w, g, velocity, of(mu), of(lr))


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


@exact_kernel
def _momentum(w: Real1, g: Real1, velocity: Real1, mu: Real, lr: Real) -> None:
    for i in range(w.size):
        v = velocity[i] * mu + g[i]
        velocity[i] = v
        w[i] -= v * lr


@exact_kernel
def _nesterov(w: Real1, g: Real1, velocity: Real1, mu: Real, lr: Real) -> None:
    for i in range(w.size):
        v = velocity[i] * mu + g[i]
        velocity[i] = v
        w[i] -= (g[i] + v * mu) * lr


@exact_kernel
def _moments(m: Real1, v: Real1, g: Real1, beta1: Real, rest1: Real, beta2: Real, rest2: Real) -> None:
    for i in range(m.size):
        m[i] = m[i] * beta1 + g[i] * rest1
        v[i] = v[i] * beta2 + g[i] * g[i] * rest2


@exact_kernel
def _adapted(m: Real1, v: Real1, out: Real1, eps: Real, scale: Real) -> None:
    for i in range(m.size):
        out[i] = m[i] / (np.sqrt(v[i]) + eps) * scale
