"""Adam and its kin: steps from the first two moments of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sparkdl.compiled import twin
from sparkdl.fields import FRACTION, NON_NEGATIVE, POSITIVE
from sparkdl.optim.base import Array, State
from sparkdl.optim.rule import Elementwise

__all__ = ["Adam", "AdamW", "Nadam", "adapted", "moments"]


@twin("sparkdl.optim.fast")
def moments(m: Array, v: Array, g: Array, s: Array, beta1: float, beta2: float) -> None:
    """In place, m <- beta1 m + (1 - beta1) g and v <- beta2 v + (1 - beta2) g^2; s is scratch, g is kept."""
    np.multiply(g, 1.0 - beta1, out=s)
    m *= beta1
    m += s
    np.square(g, out=s)
    s *= 1.0 - beta2
    v *= beta2
    v += s


@twin("sparkdl.optim.fast")
def adapted(m: Array, v: Array, out: Array, t: int, beta1: float, beta2: float, eps: float, scale: float) -> None:
    """Write scale mhat / (sqrt(vhat) + eps) into out; mhat = m / (1 - beta1^t), vhat = v / (1 - beta2^t)."""
    # The corrections are scalars: sqrt(vhat) + eps = (sqrt(v) + eps c) / c, where c = sqrt(1 - beta2^t).
    c = math.sqrt(1.0 - beta2**t)
    np.sqrt(v, out=out)
    out += eps * c
    np.divide(m, out, out=out)
    out *= scale * c / (1.0 - beta1**t)


@dataclass(frozen=True)
class _Adam(Elementwise):
    """Adam's step, whichever way its weights decay."""

    lr: float = field(default=0.001, metadata=POSITIVE)
    beta1: float = field(default=0.9, metadata=FRACTION)
    beta2: float = field(default=0.999, metadata=FRACTION)
    eps: float = field(default=1e-8, metadata=POSITIVE)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v")

    def update(self, w: Array, g: Array, slots: State, s: Array, lr: float, t: int) -> None:
        m, v = slots["m"], slots["v"]
        moments(m, v, g, s, self.beta1, self.beta2)
        adapted(m, v, s, t, self.beta1, self.beta2, self.eps, lr)
        w -= s


@dataclass(frozen=True)
class Adam(_Adam):
    """w <- w - lr mhat / (sqrt(vhat) + eps), with m, v the running means of g and g^2, corrected for their start at 0.

    Kingma and Ba, arXiv:1412.6980; eps stands outside the root, after the correction. Decay is coupled: it passes
    through the moments like any gradient. For decay of the weights themselves take AdamW.
    """

    @property
    def decoupled(self) -> bool:
        return False


@dataclass(frozen=True)
class AdamW(_Adam):
    """w <- w - lr (mhat / (sqrt(vhat) + eps) + wd w): Adam with decoupled decay.

    Loshchilov and Hutter, arXiv:1711.05101.
    """

    weight_decay: float = field(default=0.01, kw_only=True, metadata=NON_NEGATIVE)

    @property
    def decoupled(self) -> bool:
        return True


@dataclass(frozen=True)
class Nadam(Elementwise):
    """Adam with Nesterov's look ahead (Dozat 2016).

    w <- w - lr (mu_{t+1} m / (1 - M_{t+1}) + (1 - mu_t) g / (1 - M_t)) / (sqrt(vhat) + eps), where
    mu_t = beta1 (1 - 0.96^(t/250) / 2) warms the momentum up and M_t = mu_1 ... mu_t. Decay is coupled unless
    `decoupled`.
    """

    lr: float = field(default=0.002, metadata=POSITIVE)
    beta1: float = field(default=0.9, metadata=FRACTION)
    beta2: float = field(default=0.999, metadata=FRACTION)
    eps: float = field(default=1e-8, metadata=POSITIVE)
    decoupled: bool = field(default=False, kw_only=True)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v")

    def update(self, w: Array, g: Array, slots: State, s: Array, lr: float, t: int) -> None:
        m, v = slots["m"], slots["v"]
        moments(m, v, g, s, self.beta1, self.beta2)
        c = math.sqrt(1.0 - self.beta2**t)
        of_m, of_g = _lookahead(self.beta1, t)
        np.multiply(m, lr * c * of_m, out=s)
        g *= lr * c * of_g
        g += s
        np.sqrt(v, out=s)
        s += self.eps * c
        g /= s
        w -= g


@lru_cache(maxsize=16)
def _lookahead(beta1: float, t: int) -> tuple[float, float]:
    """Nadam's weights of m and g in update t: mu_{t+1} / (1 - M_{t+1}) and (1 - mu_t) / (1 - M_t)."""

    def mu(i: int) -> float:
        return beta1 * (1.0 - 0.5 * math.pow(0.96, i / 250))

    # Early mu are close to beta1 / 2: from the 64th factor on, 1 - M_t is 1 to the last bit.
    product = math.prod(mu(i) for i in range(1, min(t, 64) + 1))
    return mu(t + 1) / (1.0 - product * mu(t + 1)), (1.0 - mu(t)) / (1.0 - product)
