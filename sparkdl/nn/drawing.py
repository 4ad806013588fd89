"""Initial values of arrays that are several weights: each is drawn by itself, so that its fans are its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.nn.layer import Array, Initializer, Shape

__all__ = ["EachPlace", "SideBySide"]


@dataclass(frozen=True)
class SideBySide:
    """`parts` matrices (D, K / parts) side by side in (D, K)."""

    init: Initializer
    parts: int

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        return np.concatenate([self.init(rng, (shape[0], shape[1] // self.parts)) for _ in range(self.parts)], axis=1)


@dataclass(frozen=True)
class EachPlace:
    """A weight (...) for each of H x W places in (H, W, ...)."""

    init: Initializer

    def __call__(self, rng: np.random.Generator, shape: Shape) -> Array:
        drawn = [self.init(rng, shape[2:]) for _ in range(shape[0] * shape[1])]
        return np.stack(drawn).reshape(shape)
