"""Elementary functions in float32 that LLVM turns into vector instructions, as parts of kernels.

From the single precision routines of Cephes (Moshier 1992): within 3 units in the last place over the range in which
results are neither 0 nor infinite; the exponential is 0 below e^-87 and infinite above e^88.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparkdl.compiled import inline

__all__ = ["exp", "expm1", "log1p", "sigmoid", "tanh"]

LEAST, MOST = np.float32(-87.33), np.float32(88.02)
INFINITE = np.float32(math.inf)
LOG2_E = np.float32(math.log2(math.e))
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
E0, E1, E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E4, E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
T0, T1, T2 = np.float32(-5.70498872745e-3), np.float32(2.06390887954e-2), np.float32(-5.37397155531e-2)
T3, T4, SMALL = np.float32(1.33314422036e-1), np.float32(-3.33332819422e-1), np.float32(0.625)
L1, L2, L3 = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
L4, L5, L6 = np.float32(1 / 9), np.float32(1 / 11), np.float32(1 / 13)
ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)


@inline
def exp(x: Any) -> Any:
    """e^x."""
    small, large = x < LEAST, x > MOST
    x = min(max(x, LEAST), MOST)
    k = np.floor(x * LOG2_E + HALF)
    r = x - k * LN2_HIGH - k * LN2_LOW
    y = (((((E0 * r + E1) * r + E2) * r + E3) * r + E4) * r + E5) * r * r + r + ONE
    y *= np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return ZERO if small else (INFINITE if large else y)


@inline
def expm1(x: Any) -> Any:
    """e^x - 1 for x <= 0, by the polynomial of `exp` without its 1, which keeps what is small."""
    x = max(x, LEAST)
    k = np.floor(x * LOG2_E + HALF)
    r = x - k * LN2_HIGH - k * LN2_LOW
    y = (((((E0 * r + E1) * r + E2) * r + E3) * r + E4) * r + E5) * r * r + r
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return power * y + (power - ONE)


@inline
def log1p(u: Any) -> Any:
    """log(1 + u) for 0 <= u <= 1, as 2 artanh(u / (2 + u)): seven terms of a series in at most 1 / 9."""
    s = u / (TWO + u)
    q = s * s
    p = (((((L6 * q + L5) * q + L4) * q + L3) * q + L2) * q + L1) * q
    return TWO * s * p + TWO * s


@inline
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return ONE / (ONE + exp(-x))


@inline
def tanh(x: Any) -> Any:
    """tanh x, by a polynomial near 0 and from e^2|x| elsewhere."""
    size, square = abs(x), x * x
    near = ((((T0 * square + T1) * square + T2) * square + T3) * square + T4) * square * x + x
    far = np.copysign(ONE - TWO / (exp(TWO * size) + ONE), x)
    return near if size < SMALL else far
