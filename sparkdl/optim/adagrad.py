"""AdaGrad: rates that shrink with the gradients a weight has seen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparkdl.fields import POSITIVE
from sparkdl.optim.base import Array, State
from sparkdl.optim.rule import Elementwise

__all__ = ["AdaGrad"]


@dataclass(frozen=True)
class AdaGrad(Elementwise):
    """G <- G + g^2; w <- w - lr g / (sqrt(G) + eps).

    Duchi, Hazan and Singer 2011, the diagonal form. Decay is coupled unless `decoupled`.
    """

    eps: float = field(default=1e-10, metadata=POSITIVE)
    decoupled: bool = field(default=False, kw_only=True)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("G",)

    def update(self, w: Array, g: Array, slots: State, s: Array, lr: float, t: int) -> None:
        G = slots["G"]
        np.multiply(g, g, out=s)
        G += s
        np.sqrt(G, out=s)
        s += self.eps
        g *= lr
        g /= s
        w -= g
