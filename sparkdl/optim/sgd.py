"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparkdl.compiled import twin
from sparkdl.fields import FRACTION
from sparkdl.optim.base import Array, State
from sparkdl.optim.rule import Elementwise

__all__ = ["SGD", "momentum"]


@dataclass(frozen=True)
class SGD(Elementwise):
    """velocity <- momentum velocity + g; w <- w - lr velocity.

    The gradient enters the velocity unscaled, so the first step is -lr g with any momentum. Nesterov's variant looks
    one step ahead: w <- w - lr (g + momentum velocity) (Sutskever et al. 2013). Without momentum there is no slot.
    Decay is coupled (w is part of the gradient) unless `decoupled` (SGDW; Loshchilov and Hutter, arXiv:1711.05101).
    """

    momentum: float = field(default=0.0, metadata=FRACTION)
    nesterov: bool = False
    decoupled: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("SGD(nesterov=True, momentum=0): Nesterov needs momentum; set it, for example to 0.9.")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def update(self, w: Array, g: Array, slots: State, s: Array, lr: float, t: int) -> None:
        if self.momentum:
            momentum(w, g, slots["velocity"], s, self.momentum, self.nesterov, lr)
        else:
            np.multiply(g, lr, out=s)
            w -= s


@twin("sparkdl.optim.fast")
def momentum(w: Array, g: Array, velocity: Array, s: Array, mu: float, nesterov: bool, lr: float) -> None:
    """One step of momentum mu over w and velocity, in place; g and the scratch s may be overwritten."""
    velocity *= mu
    velocity += g
    if nesterov:
        np.multiply(velocity, mu, out=s)
        g += s
    else:
        g = velocity
    np.multiply(g, lr, out=s)
    w -= s
