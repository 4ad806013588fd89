"""Metrics of classes: how often, and how, the predicted class is the right one."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from sparkdl.nn import Array, Shape
from sparkdl.train.metrics.base import Metric, ratio

__all__ = ["AUC", "F1", "Accuracy", "Average", "ConfusionMatrix", "Precision", "Recall", "TopK"]

Average = Literal["macro", "micro", "binary"]


@dataclass(frozen=True)
class Accuracy(Metric):
    """Share of the weight whose most probable class (the first of equals) is y; for a single column, p > 1/2 is 1."""

    target = "classes"

    @property
    def name(self) -> str:
        return "accuracy"

    def size(self, out_shape: Shape) -> int:
        _num_classes(self, out_shape)
        return 2

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        acc += w @ (_decision(pred) == y), w.sum()

    def result(self, acc: Array) -> float:
        return ratio(acc[0], acc[1])


@dataclass(frozen=True)
class TopK(Metric):
    """Share of the weight whose y is among the k most probable classes; of equals the first come first."""

    target = "classes"

    k: int = 5

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"TopK needs an integer k >= 1; got {self.k}.")

    @property
    def name(self) -> str:
        return f"top_{self.k}"

    def size(self, out_shape: Shape) -> int:
        if self.k >= _num_classes(self, out_shape):
            raise ValueError(f"TopK(k={self.k}) is always 1 for outputs of shape {out_shape}; choose a k below K.")
        return 2

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        if pred.shape[1] == 1:
            pred = np.hstack([1 - pred, pred])
        own = pred[np.arange(len(y)), y][:, None]
        before = ~(pred <= own)  # also where either is NaN, so that a NaN is never a hit
        before |= (pred == own) & (np.arange(pred.shape[1]) < y[:, None])
        acc += w @ (before.sum(axis=1) < self.k), w.sum()

    def result(self, acc: Array) -> float:
        return ratio(acc[0], acc[1])


@dataclass(frozen=True)
class ConfusionMatrix(Metric):
    """Weight of the rows of class i (first index) that were taken for class j, as K lists of K."""

    target = "classes"

    @property
    def name(self) -> str:
        return "confusion_matrix"

    def size(self, out_shape: Shape) -> int:
        return _num_classes(self, out_shape) ** 2

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        acc += np.bincount(y * math.isqrt(len(acc)) + _decision(pred), w, len(acc))

    def result(self, acc: Array) -> list[Any]:
        classes = math.isqrt(len(acc))
        rows: list[Any] = acc.reshape(classes, classes).tolist()
        return rows


@dataclass(frozen=True)
class _PerClass(Metric):
    """Scores from each class's weight of hits, of predictions, and of targets (3, K).

    average="macro" is the plain mean over the classes that occur as target or prediction, "micro" takes the sums over
    all classes, "binary" is the score of class 1 of two.
    """

    target = "classes"

    average: Average = "macro"

    def __post_init__(self) -> None:
        if self.average not in ("macro", "micro", "binary"):
            raise ValueError(f'{type(self).__name__} needs average="macro", "micro" or "binary"; got {self.average!r}.')

    @property
    def name(self) -> str:
        kind = type(self).__name__.lower()
        return kind if self.average == "macro" else f"{kind}_{self.average}"

    def size(self, out_shape: Shape) -> int:
        classes = _num_classes(self, out_shape)
        if self.average == "binary" and classes != 2:
            raise ValueError(f'{self} is for two classes; outputs {out_shape} tell {classes}. Take average="macro".')
        return 3 * classes

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        decision, classes = _decision(pred), len(acc) // 3
        hits = decision == y
        acc[:classes] += np.bincount(y[hits], w[hits], classes)
        acc[classes : 2 * classes] += np.bincount(decision, w, classes)
        acc[2 * classes :] += np.bincount(y, w, classes)

    def result(self, acc: Array) -> float:
        hits, predicted, actual = acc.reshape(3, -1)
        if self.average == "binary":
            return self.score(hits[1], predicted[1], actual[1])
        if self.average == "micro":
            return self.score(hits.sum(), predicted.sum(), actual.sum())
        occur = (predicted > 0) | (actual > 0)
        scores = [self.score(*sums) for sums in zip(hits[occur], predicted[occur], actual[occur], strict=True)]
        return ratio(sum(scores), len(scores))

    @abstractmethod
    def score(self, hits: float, predicted: float, actual: float) -> float:
        """The score that these sums amount to."""


@dataclass(frozen=True)
class Precision(_PerClass):
    """hits / predictions, averaged as `average` says ("macro", "micro", "binary")."""

    def score(self, hits: float, predicted: float, actual: float) -> float:
        return ratio(hits, predicted)


@dataclass(frozen=True)
class Recall(_PerClass):
    """hits / targets, averaged as `average` says ("macro", "micro", "binary")."""

    def score(self, hits: float, predicted: float, actual: float) -> float:
        return ratio(hits, actual)


@dataclass(frozen=True)
class F1(_PerClass):
    """2 hits / (predictions + targets), averaged as `average` says ("macro", "micro", "binary")."""

    def score(self, hits: float, predicted: float, actual: float) -> float:
        return ratio(2 * hits, predicted + actual)


@dataclass(frozen=True)
class AUC(Metric):
    """Area under the ROC curve of the probability of class 1 of two; 0.5 where one of them is absent.

    The probability that a row of class 1 scores above one of class 0, ties counting half, from a histogram of each
    class over `bins` equal intervals of the log-odds in [-16, 16]; what lies beyond joins the outermost, NaN the
    lowest. Rows that share an interval count as ties, so the error is at most half the share of such pairs
    (`error_bound`): for log-odds spread evenly over a range of r, 16 / (r bins).
    """

    target = "classes"

    bins: int = 2048

    LIMIT: ClassVar[float] = 16.0

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"AUC needs an integer bins >= 2; got {self.bins}.")

    @property
    def name(self) -> str:
        return "auc"

    def size(self, out_shape: Shape) -> int:
        if _num_classes(self, out_shape) != 2:
            raise ValueError(f"AUC is for two classes; outputs have shape {out_shape}.")
        return 2 * self.bins

    def update(self, acc: Array, z: Array, pred: Array, y: Array, w: Array) -> None:
        p = pred[:, -1].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.clip(np.log(p) - np.log1p(-p), -self.LIMIT, self.LIMIT)
        odds[np.isnan(odds)] = -self.LIMIT
        place = np.minimum((odds + self.LIMIT) * (self.bins / (2 * self.LIMIT)), self.bins - 1)
        acc += np.bincount(y * self.bins + place.astype(np.int64), w, len(acc))

    def result(self, acc: Array) -> float:
        negative, positive = acc.reshape(2, -1)
        pairs = negative.sum() * positive.sum()
        below = np.cumsum(negative) - negative / 2
        return ratio(positive @ below, pairs) if pairs else 0.5

    def error_bound(self, acc: Array) -> float:
        """Largest possible difference between `result` and the exact area."""
        negative, positive = acc.reshape(2, -1)
        return ratio(negative @ positive / 2, negative.sum() * positive.sum())


def _num_classes(metric: Metric, out_shape: Shape) -> int:
    """K of outputs (K,); 2 for (1,)."""
    if len(out_shape) != 1:
        raise ValueError(f"{metric.name} takes outputs of shape (K,), one for each class; the net gives {out_shape}.")
    return max(2, out_shape[0])


def _decision(pred: Array) -> Array:
    """Probabilities (N, K) or (N, 1) -> classes (N,)."""
    decision: Array = (pred[:, 0] > 0.5).astype(np.int64) if pred.shape[1] == 1 else pred.argmax(axis=1)
    return decision
