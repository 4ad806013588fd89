"""Training on mixtures of two rows (Zhang et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.nn import Array, Loss

__all__ = ["Mixture", "mixture"]

MIXUP = 4  # purpose of a generator in (seed, purpose, epoch, row)


@dataclass(frozen=True)
class Mixture:
    """Row i of a minibatch is the share `share[i]` of itself and the rest of row `partner[i]`."""

    share: Array
    partner: Array

    def inputs(self, x: Array) -> Array:
        """x (N, ...), mixed."""
        share = self.share.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        mixed: Array = share * x + (1 - share) * x[self.partner]
        return mixed

    def loss(self, loss: Loss, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        """share l(z, y) + (1 - share) l(z, y of the partner), each with its row's weight; as the loss returns it."""
        w = np.ones(len(z)) if w is None else w
        own, own_weight, dz = loss(z, y, w * self.share)
        other, other_weight, dz_other = loss(z, y[self.partner], w[self.partner] * (1 - self.share))
        return own + other, own_weight + other_weight, dz + dz_other


def mixture(alpha: float, seed: int, epoch: int, rows: Array) -> Mixture:
    """Shares from Beta(alpha, alpha), each row's from its own generator, and partners among these rows (N,)."""
    drawn = [_draw(alpha, np.random.default_rng((seed, MIXUP, epoch, row))) for row in rows.tolist()]
    share, place = np.array(drawn, np.float64).reshape(len(rows), 2).T
    by_place = np.argsort(place, kind="stable")
    partner = np.empty(len(rows), np.intp)
    partner[by_place] = np.roll(by_place, 1)
    return Mixture(share, partner)


def _draw(alpha: float, rng: np.random.Generator) -> tuple[float, float]:
    return rng.beta(alpha, alpha), rng.random()
