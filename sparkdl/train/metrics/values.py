"""Metrics of values: how far predictions lie from their targets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn import Array, Shape
from sparkdl.train.metrics.base import Metric, ratio

__all__ = ["MAE", "MSE", "R2"]

CONSTANT = 1e-12  # targets whose variance is below this share of their mean square are constant to rounding


@dataclass(frozen=True)
class MSE(Metric):
    """Mean over rows, by weight, of the mean squared error of a row's entries."""

    target = "values"

    @property
    def name(self) -> str:
        return "mse"

    def size(self, out_shape: Shape) -> int:
        return 2

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        acc += w @ (_errors(pred, y) ** 2).mean(axis=1), w.sum()

    def result(self, acc: Array) -> float:
        return ratio(acc[0], acc[1])


@dataclass(frozen=True)
class MAE(Metric):
    """Mean over rows, by weight, of the mean absolute error of a row's entries."""

    target = "values"

    @property
    def name(self) -> str:
        return "mae"

    def size(self, out_shape: Shape) -> int:
        return 2

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        acc += w @ np.abs(_errors(pred, y)).mean(axis=1), w.sum()

    def result(self, acc: Array) -> float:
        return ratio(acc[0], acc[1])


@dataclass(frozen=True)
class R2(Metric):
    """1 - sum w (y - pred)^2 / sum w (y - mean y)^2 for each entry of a row, then their plain mean.

    An entry whose targets are constant to rounding scores 1 where it is met exactly, else 0.
    """

    target = "values"

    @property
    def name(self) -> str:
        return "r2"

    def size(self, out_shape: Shape) -> int:
        return 1 + 3 * math.prod(out_shape)

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        errors = _errors(pred, y)
        t = y.reshape(errors.shape).astype(np.float64)
        acc[0] += w.sum()
        acc[1:] += np.concatenate([w @ t, w @ t**2, w @ errors**2])

    def result(self, acc: Array) -> float:
        if acc[0] == 0:
            return 0.0
        mean, square, residual = acc[1:].reshape(3, -1) / acc[0]
        variance = square - mean**2
        constant = variance <= CONSTANT * square
        scores = 1 - residual / np.where(constant, 1.0, variance)
        return float(np.where(constant, residual == 0, scores).mean())


def _errors(pred: Array, y: Array) -> Array:
    """Differences pred - y as (N, D) float64. Both must have as many entries, so that nothing is broadcast."""
    flat = pred.reshape(len(pred), -1).astype(np.float64)
    return flat - y.reshape(flat.shape)
