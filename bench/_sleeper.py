"""A layer that makes a local step as long as one likes without a core of its own, and notes when steps begin."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn import Array, Ctx, Layer, Params, Shape
from sparkdl.nn.initializers import Zeros
from sparkdl.nn.layer import ParamSpec
from sparkdl.simulate import Compute

__all__ = ["Lap", "Sleeper", "laps_in"]


class Lap(NamedTuple):
    """When a step began, and how long it slept."""

    start: float
    slept_s: float


@dataclass(frozen=True)
class Sleeper(Layer):
    """y = x after a sleep as `compute` draws it, in training; `ballast` parameters travel and do nothing else.

    Each process writes its laps to a file of its own in `folder`.
    """

    compute: Compute
    ballast: int
    folder: str

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        return {"ballast": ParamSpec((self.ballast,), Zeros())}

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Any]:
        if ctx.train:
            lap = Lap(time.monotonic(), float(self.compute.draw(_generator(), 1, 1)[0, 0]))
            with (Path(self.folder) / f"{os.getpid()}").open("a") as file:
                file.write(f"{lap.start} {lap.slept_s}\n")
            time.sleep(lap.slept_s)
        return x, None

    def backward(self, p: Params, cache: Any, dy: Array, g: Params, ctx: Ctx) -> Array:
        return dy


@cache
def _generator() -> np.random.Generator:
    return np.random.default_rng(os.getpid())


def laps_in(folder: str) -> list[list[Lap]]:
    """What the processes wrote, a row each, in the order in which they were started."""
    paths = sorted(Path(folder).iterdir(), key=lambda path: int(path.name))
    return [[Lap(*map(float, line.split())) for line in path.read_text().splitlines()] for path in paths]
