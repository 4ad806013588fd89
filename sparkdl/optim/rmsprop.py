"""RMSProp: the gradient over its recent root mean square."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparkdl.fields import FRACTION, POSITIVE
from sparkdl.optim.base import Array, State
from sparkdl.optim.rule import Elementwise

__all__ = ["RMSProp"]


@dataclass(frozen=True)
class RMSProp(Elementwise):
    """v <- rho v + (1 - rho) g^2; d = g / (sqrt(v) + eps); w <- w - lr d.

    Tieleman and Hinton 2012. With momentum: velocity <- momentum velocity + d; w <- w - lr velocity.

    `centered` (Graves, arXiv:1308.0850) divides by the deviation from the mean gradient m instead: v is then the
    running variance. It is updated as such, v <- rho (v + (1 - rho) (g - m)^2), and so can never turn negative by
    rounding as mean square minus squared mean does. Where a gradient never changes, v tends to 0 and d to g / eps.

    Decay is coupled unless `decoupled`.
    """

    lr: float = field(default=0.001, metadata=POSITIVE)
    rho: float = field(default=0.9, metadata=FRACTION)
    momentum: float = field(default=0.0, metadata=FRACTION)
    centered: bool = False
    eps: float = field(default=1e-8, metadata=POSITIVE)
    decoupled: bool = field(default=False, kw_only=True)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("v", *(("m",) if self.centered else ()), *(("velocity",) if self.momentum else ()))

    def update(self, w: Array, g: Array, slots: State, s: Array, lr: float, t: int) -> None:
        self._second_moment(g, slots, s)
        np.sqrt(slots["v"], out=s)
        s += self.eps
        g /= s
        if self.momentum:
            velocity = slots["velocity"]
            velocity *= self.momentum
            velocity += g
            g = velocity
        np.multiply(g, lr, out=s)
        w -= s

    def _second_moment(self, g: Array, slots: State, s: Array) -> None:
        v = slots["v"]
        if self.centered:
            m = slots["m"]
            np.subtract(g, m, out=s)
            np.square(s, out=s)
            s *= 1.0 - self.rho
            v += s
            v *= self.rho
            np.subtract(g, m, out=s)
            s *= 1.0 - self.rho
            m += s
        else:
            np.square(g, out=s)
            s *= 1.0 - self.rho
            v *= self.rho
            v += s
