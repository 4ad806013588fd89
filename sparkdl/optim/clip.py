"""Clipping of the mean gradient, and the norm that tells whether it is finite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sparkdl.fields import POSITIVE, check_fields
from sparkdl.optim.base import Array
from sparkdl.optim.blocks import norm

__all__ = ["Clip", "clip_by_norm", "clip_by_value", "norm"]


def clip_by_value(grad: Array, limit: float) -> None:
    """Hold every entry of grad (n,) within [-limit, limit], in place; NaN stays NaN."""
    np.clip(grad, -limit, limit, out=grad)


def clip_by_norm(grad: Array, max_norm: float) -> float:
    """Scale grad (n,) down to the Euclidean norm max_norm, in place, where it is longer; returns the norm it had.

    Over all parameters at once (Pascanu et al., arXiv:1211.5063). A gradient whose norm is not finite is left as it is:
    the caller sees the inf or NaN and skips the step.
    """
    found = norm(grad)
    if max_norm < found < math.inf:
        grad *= max_norm / found
    return found


@dataclass(frozen=True)
class Clip:
    """Clipping by `value` and by global `norm`, in this order; None leaves one out."""

    value: float | None = field(default=None, metadata=POSITIVE)
    norm: float | None = field(default=None, metadata=POSITIVE)

    def __post_init__(self) -> None:
        check_fields(self)

    def apply(self, grad: Array) -> float:
        """Clip grad (n,) in place; returns the norm it had. A gradient whose norm is not finite is left as it is."""
        if self.value is None:
            return norm(grad) if self.norm is None else clip_by_norm(grad, self.norm)
        found = norm(grad)
        if math.isfinite(found):
            clip_by_value(grad, self.value)
            if self.norm is not None:
                clip_by_norm(grad, self.norm)
        return found
