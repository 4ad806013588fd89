"""Initial values of parameters: frozen callables `(rng, shape) -> array of float64`.

Shapes put outputs last, as in W (D, units) or W (kh, kw, C, F); then

    fan_in = prod(shape[:-1])      fan_out = prod(shape[:-2]) * shape[-1]

which for a convolution count the taps of the window. A vector has fan_in = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.layer import Array, Shape

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "Zeros",
    "fans",
]


def fans(shape: Shape) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight, at least 1 each."""
    fan_in, fan_out = math.prod(shape[:-1]), math.prod(shape[:-2]) * math.prod(shape[-1:])
    return max(fan_in, 1), max(fan_out, 1)


def _uniform(rng: np.random.Generator, shape: Shape, variance: float) -> Array:
    limit = math.sqrt(3 * variance)  # U(-a, a) has variance a^2 / 3
    return rng.uniform(-limit, limit, shape)


def _normal(rng: np.random.Generator, shape: Shape, variance: float) -> Array:
    return math.sqrt(variance) * rng.standard_normal(shape)


@dataclass(frozen=True)
class GlorotUniform:
    """Uniform with variance 2 / (fan_in + fan_out), for layers before tanh or softmax (Glorot & Bengio 2010)."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return _uniform(rng, shape, 2 / sum(fans(shape)))


@dataclass(frozen=True)
class GlorotNormal:
    """Normal with variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010)."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return _normal(rng, shape, 2 / sum(fans(shape)))


@dataclass(frozen=True)
class HeUniform:
    """Uniform with variance 2 / fan_in, for layers before ReLU (He et al. 2015)."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return _uniform(rng, shape, 2 / fans(shape)[0])


@dataclass(frozen=True)
class HeNormal:
    """Normal with variance 2 / fan_in, for layers before ReLU (He et al. 2015)."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return _normal(rng, shape, 2 / fans(shape)[0])


@dataclass(frozen=True)
class LecunUniform:
    """Uniform with variance 1 / fan_in: unit variance is kept through a linear layer (LeCun et al. 1998)."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return _uniform(rng, shape, 1 / fans(shape)[0])


@dataclass(frozen=True)
class LecunNormal:
    """Normal with variance 1 / fan_in: unit variance is kept through a linear layer (LeCun et al. 1998)."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return _normal(rng, shape, 1 / fans(shape)[0])


@dataclass(frozen=True)
class Orthogonal:
    """gain times a random matrix of orthonormal rows or columns, whichever are fewer (Saxe et al. 2014).

    The shape is read as (prod(shape[:-1]), shape[-1]). The signs of R's diagonal are moved into Q, which makes the
    draw uniform over orthogonal matrices (Mezzadri 2007).
    """

    gain: float = 1.0

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        if len(shape) < 2:
            raise ValueError(f"Orthogonal() needs a weight of 2 or more axes; got shape {shape}. Use RandomNormal?")
        rows, cols = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(rng.standard_normal((max(rows, cols), min(rows, cols))))
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return self.gain * (q if rows >= cols else q.T).reshape(shape)


@dataclass(frozen=True)
class Zeros:
    """All zeros."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return np.zeros(shape)


@dataclass(frozen=True)
class Ones:
    """All ones."""

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return np.ones(shape)


@dataclass(frozen=True)
class Constant:
    """All equal to `value`."""

    value: float

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return np.full(shape, float(self.value))


@dataclass(frozen=True)
class RandomNormal:
    """Normal with mean 0 and standard deviation `std`, whatever the shape."""

    std: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"RandomNormal(std={self.std}): std must be finite and at least 0.")

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return self.std * rng.standard_normal(shape)
