"""The contract of a metric, and what several share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from sparkdl.nn import Array, Shape

__all__ = ["Metric", "ratio"]


class Metric(ABC):
    """One figure, made of sums. Subclasses are frozen dataclasses and are final.

    `update` takes outputs z and predictions pred = loss.link(z), both (N, ...), targets y, and sample weights w (N,).
    Where `target` is "classes", pred (N, K) are probabilities and y (N,) integers; a single column (N, 1) is the
    probability of class 1 of two. A quotient whose divisor is 0 (no rows, no such class) counts as 0.
    """

    target: ClassVar[Literal["classes", "values"]]

    @property
    @abstractmethod
    def name(self) -> str:
        """The figure's name in histories and results."""

    @abstractmethod
    def size(self, out_shape: Shape) -> int:
        """Number of sums for outputs of this shape. Raises ValueError where the metric does not apply to it."""

    @abstractmethod
    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        """Add the sums of these rows into acc (size,), float64, in place."""

    @abstractmethod
    def result(self, acc: Array) -> float | list[Any]:
        """The figure that the sums amount to."""


def ratio(part: Any, whole: Any) -> float:
    """The quotient; 0 where whole is 0."""
    return float(part / whole) if whole else 0.0
