"""The Gaussian error linear unit, exact and approximate; x, y, dy, dx and what a gradient keeps share one shape.

NumPy has no error function. For z >= 0 with t = 2 / (2 + z),

    erfc z = t exp(-z^2 + P(t)),

where P is smooth, so that a polynomial through its values at Chebyshev points, taken from `math.erfc`, gives the tail
to its relative precision: within 2e-7 in float32, 5e-14 in float64 (up to the rounding of z^2 far out in the tail).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from sparkdl.compiled import twin

__all__ = ["exponent", "gelu", "gelu_grad", "gelu_tanh", "gelu_tanh_grad", "normal_cdf"]

Array = np.ndarray[Any, np.dtype[Any]]

FARTHEST = 12.0  # z up to which P is fitted; beyond, where erfc z < 1e-64, the order of magnitude is right
LEAST_T = 2 / (2 + FARTHEST)
SINGLE, DOUBLE = 9, 20  # degrees of P in float32 and float64
BLOCK_ELEMENTS = 1 << 16  # temporaries of the polynomial stay in the cache
SLOPE, CUBIC = math.sqrt(2 / math.pi), 0.044715


def normal_cdf(x: Array) -> Array:
    """P(Z <= x) of a standard normal Z, also where it is tiny."""
    z = np.abs(x)
    z *= math.sqrt(0.5)
    t = z + 2
    np.divide(2, t, out=t)
    u = np.maximum(t, LEAST_T)
    u *= 2 / (1 - LEAST_T)
    u -= (1 + LEAST_T) / (1 - LEAST_T)
    coefficients = exponent(SINGLE if x.dtype.itemsize <= 4 else DOUBLE)
    e = np.full_like(u, coefficients[0])
    for c in coefficients[1:]:
        e *= u
        e += c
    z *= z
    e -= z
    tail = np.exp(e, out=e)
    tail *= t
    tail *= 0.5
    y: Array = np.where(x < 0, tail, 1 - tail)
    return y


@twin("sparkdl.ops.fast.gelu")
def gelu(x: Array) -> tuple[Array, Array]:
    """y = x cdf(x), and cdf(x) of the standard normal distribution (Hendrycks & Gimpel 2016)."""
    y, cdf = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    for part, out, share in _blocks(x, y, cdf):
        share[...] = normal_cdf(part)
        np.multiply(part, share, out=out)
    return y, cdf


@twin("sparkdl.ops.fast.gelu")
def gelu_grad(x: Array, cdf: Array, dy: Array) -> Array:
    """dx = dy (cdf(x) + x pdf(x)), pdf(x) = e^(-x^2 / 2) / sqrt(2 pi)."""
    dx = np.empty(x.shape, x.dtype)
    for part, share, d, out in _blocks(x, cdf, dy, dx):
        np.multiply(part, part, out=out)
        out *= -0.5
        np.exp(out, out=out)
        out *= part
        out *= 1 / math.sqrt(2 * math.pi)
        out += share
        out *= d
    return dx


@twin("sparkdl.ops.fast.gelu")
def gelu_tanh(x: Array) -> tuple[Array, Array]:
    """y = x (1 + t) / 2, and t = tanh(sqrt(2 / pi) (x + 0.044715 x^3)): within 5e-4 of `gelu`."""
    y, t = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    for part, out, tanh in _blocks(x, y, t):
        np.multiply(part, part, out=tanh)
        tanh *= SLOPE * CUBIC
        tanh += SLOPE
        tanh *= part
        np.tanh(tanh, out=tanh)
        np.add(tanh, 1, out=out)
        out *= part
        out *= 0.5
    return y, t


@twin("sparkdl.ops.fast.gelu")
def gelu_tanh_grad(x: Array, t: Array, dy: Array) -> Array:
    """dx = dy (1 + t + x (1 - t^2) sqrt(2 / pi) (1 + 3 * 0.044715 x^2)) / 2."""
    dx = np.empty(x.shape, x.dtype)
    for part, tanh, d, out in _blocks(x, t, dy, dx):
        np.multiply(part, part, out=out)
        out *= 3 * CUBIC * SLOPE
        out += SLOPE
        out *= part
        out *= 1 - tanh * tanh
        out += 1
        out += tanh
        out *= d
        out *= 0.5
    return dx


@functools.cache
def exponent(degree: int) -> tuple[float, ...]:
    """Coefficients of P, the highest power of u first; u runs over [-1, 1] as t does over [LEAST_T, 1]."""
    u = chebyshev.chebpts1(degree + 1)
    t = LEAST_T + (u + 1) * (1 - LEAST_T) / 2
    values = [z * z + math.log(math.erfc(z) / s) for z, s in zip(2 / t - 2, t, strict=True)]
    fitted = chebyshev.cheb2poly(chebyshev.chebfit(u, values, degree))
    return tuple(map(float, fitted[::-1]))


def _blocks(*arrays: Array) -> Iterator[list[Array]]:
    """The same few elements of all of them, in turn; what comes first is read only, so it may be copied."""
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, BLOCK_ELEMENTS):
        yield [a[start : start + BLOCK_ELEMENTS] for a in flat]
