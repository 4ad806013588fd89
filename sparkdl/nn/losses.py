"""Losses: sums over a batch and their gradient, to be divided by the summed weight only after a reduction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sparkdl.nn.layer import Array, Shape
from sparkdl.ops.activation import sigmoid
from sparkdl.ops.softmax import cross_entropy, softmax

__all__ = [
    "MAE",
    "MSE",
    "BinaryCrossEntropy",
    "Elementwise",
    "Huber",
    "Loss",
    "SoftmaxCrossEntropy",
    "check_classes",
    "kept_labels",
    "row_weights",
]


class Loss(ABC):
    """What training minimises: loss_sum / weight_sum. Subclasses are frozen dataclasses and are final.

    `target` says what y holds: class indices 0..K-1, or values. `from_logits` tells that the loss applies its own
    link, so that the net must not end in a softmax or sigmoid. Where predictions are not to be held against y entry by
    entry, `comparable` is False, and no metric goes with the loss.
    """

    target: ClassVar[Literal["classes", "values"]]
    from_logits: ClassVar[bool] = False
    comparable: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        """z (N, ...) outputs, y targets, w (N,) sample weights or None for ones -> (loss_sum, weight_sum, dz).

        The sums are float64; dz (N, ...) is the gradient of loss_sum, in z's dtype. No rows: (0, 0, empty).
        """

    @abstractmethod
    def link(self, z: Array) -> Array:
        """Outputs z (N, ...) -> predictions: probabilities for classes, values otherwise."""

    @abstractmethod
    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        """Raise ValueError where a net's `out_shape`, the number of classes or one target's shape do not fit."""


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Cross-entropy of softmax(z) against classes. z (N, K) logits, y (N,) integers in 0..K-1.

        loss_n   = w_n [(1 - e) c_y (-log p_y) + e / K sum_k c_k (-log p_k)],   p = softmax(z_n)
        weight_n = w_n c_y

    with class weights c (`class_weights`, ones by default) and e = `label_smoothing`. A row whose label is
    `ignore_index` counts as absent. This is PyTorch's definition, smoothing with class weights included: the uniform
    part is weighted by each class's own weight, and the divisor by the label's.
    """

    target = "classes"
    from_logits = True

    ignore_index: int | None = None
    class_weights: Sequence[float] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(
                f"SoftmaxCrossEntropy(label_smoothing={self.label_smoothing}): the share of the uniform distribution "
                f"must lie in [0, 1]."
            )
        if self.class_weights is not None:
            weights = tuple(float(c) for c in self.class_weights)
            if not all(0 <= c < math.inf for c in weights):
                raise ValueError(f"SoftmaxCrossEntropy(class_weights={weights}): must be finite and at least 0.")
            object.__setattr__(self, "class_weights", weights)

    def __call__(self, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        self.check(z.shape[1:], target_shape=y.shape[1:])
        kept = kept_labels("SoftmaxCrossEntropy", y, len(z), z.shape[1], self.ignore_index)
        w = row_weights(w, len(z))
        if kept.all():
            return self._sums(z, y, w)
        dz = np.zeros_like(z)
        loss, weight, dz[kept] = self._sums(z[kept], y[kept], w[kept])
        return loss, weight, dz

    def link(self, z: Array) -> Array:
        return softmax(z)

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        check_classes("SoftmaxCrossEntropy", out_shape, classes, target_shape)
        if self.class_weights is not None and len(self.class_weights) != out_shape[0]:
            raise ValueError(
                f"SoftmaxCrossEntropy has {len(self.class_weights)} class_weights for {out_shape[0]} outputs; "
                f"give one for each class."
            )

    def _sums(self, z: Array, y: Array, w: Array) -> tuple[float, float, Array]:
        # Both parts are one cross-entropy against q_nk = w_n [(1 - e) c_y 1(k = y) + e / K c_k].
        classes, smooth = z.shape[1], self.label_smoothing
        c = np.ones(classes) if self.class_weights is None else np.asarray(self.class_weights)
        weight = w * c[y]
        uniform = c * (smooth / classes) if smooth else None
        loss, dz = cross_entropy(z, y, (1 - smooth) * weight, w, uniform)
        return loss, float(weight.sum()), dz


class Elementwise(Loss):
    """A loss that is a sum over the entries of z and y, of the same shape (N, ...); y (N,) serves for z (N, 1).

    weight_sum counts entries: the mean over rows of K outputs is the mean over all N K entries, as PyTorch has it.
    """

    target = "values"

    @abstractmethod
    def terms(self, z: Array, y: Array) -> tuple[Array, Array]:
        """Each entry's loss, and its derivative by z. All of one shape and dtype."""

    def __call__(self, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        self.check(z.shape[1:], target_shape=y.shape[1:])
        if len(y) != len(z):
            raise ValueError(f"{type(self).__name__} needs one target for each row; got {len(y)} for {len(z)} rows.")
        loss, dz = self.terms(z, y.astype(z.dtype, copy=False).reshape(z.shape))
        entries = math.prod(z.shape[1:])
        if w is None:
            return float(loss.sum(dtype=np.float64)), float(z.size), dz
        w = row_weights(w, len(z))
        rows = loss.reshape(len(z), entries).sum(axis=1, dtype=np.float64)
        return float(w @ rows), float(w.sum()) * entries, dz * w.astype(z.dtype).reshape(-1, *[1] * (z.ndim - 1))

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        if target_shape is None or tuple(target_shape) == tuple(out_shape):
            return
        if tuple(target_shape) == () and tuple(out_shape) == (1,):
            return
        end = f" End it in Dense({math.prod(target_shape)})." if len(target_shape) < 2 else ""
        raise ValueError(
            f"{type(self).__name__} compares outputs and targets entry by entry; the net gives {tuple(out_shape)} a "
            f"row, the target has {tuple(target_shape)}.{end}"
        )


@dataclass(frozen=True)
class BinaryCrossEntropy(Elementwise):
    """Cross-entropy of p = sigmoid(z) against y in [0, 1]: -y log p - (1 - y) log(1 - p). z (N, K) logits, K labels.

    Computed from the logits as max(z, 0) - z y + log(1 + e^-|z|), exact where p rounds to 0 or 1. y (N, K), or (N,)
    for K = 1; a target outside [0, 1] raises.
    """

    from_logits = True

    def terms(self, z: Array, y: Array) -> tuple[Array, Array]:
        bad = np.flatnonzero(~((y >= 0) & (y <= 1)))  # also finds NaN
        if bad.size:
            raise ValueError(
                f"BinaryCrossEntropy takes targets in [0, 1]; got {y.flat[bad[0]]}, and {bad.size} such in the batch. "
                f"For more than two classes use SoftmaxCrossEntropy."
            )
        return np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))), sigmoid(z) - y

    def link(self, z: Array) -> Array:
        return sigmoid(z)


@dataclass(frozen=True)
class MSE(Elementwise):
    """Squared error (z - y)^2; no factor 1/2. z, y (N, ...)."""

    def terms(self, z: Array, y: Array) -> tuple[Array, Array]:
        r = z - y
        return r * r, 2 * r

    def link(self, z: Array) -> Array:
        return z


@dataclass(frozen=True)
class MAE(Elementwise):
    """Absolute error |z - y|; its derivative at 0 is 0. z, y (N, ...)."""

    def terms(self, z: Array, y: Array) -> tuple[Array, Array]:
        r = z - y
        return np.abs(r), np.sign(r)

    def link(self, z: Array) -> Array:
        return z


@dataclass(frozen=True)
class Huber(Elementwise):
    """r^2 / 2 for |r| <= delta, delta (|r| - delta / 2) beyond; r = z - y (Huber 1964). z, y (N, ...)."""

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < math.inf:
            raise ValueError(f"Huber(delta={self.delta}): delta must be finite and above 0.")

    def terms(self, z: Array, y: Array) -> tuple[Array, Array]:
        r = z - y
        c = np.clip(r, -self.delta, self.delta)
        return c * (r - c / 2), c

    def link(self, z: Array) -> Array:
        return z


def row_weights(w: Array | None, rows: int) -> Array:
    """Sample weights (N,) in float64; ones for None."""
    if w is None:
        return np.ones(rows)
    if w.shape != (rows,):
        raise ValueError(f"Sample weights must have shape ({rows},), one for each row; got {w.shape}.")
    return w.astype(np.float64, copy=False)


def check_classes(loss: str, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
    """Raise ValueError unless outputs are scores of K classes, as many as there are, and targets are class indices."""
    expected = "K >= 2" if classes is None else f"K = {classes}, the number of classes"
    if len(out_shape) != 1 or out_shape[0] < 2 or (classes is not None and out_shape[0] != classes):
        first = "Flatten first, or pool, and end" if len(out_shape) > 1 else "End"
        raise ValueError(
            f"{loss} needs outputs of shape (K,) with {expected}; the net gives {tuple(out_shape)}. "
            f"{first} it in Dense({classes or 'K'})."
        )
    if target_shape:
        raise ValueError(
            f"{loss} takes one class index for each row, y (N,); got (N, "
            f"{', '.join(map(str, target_shape))}). Take the argmax of one-hot targets, or drop axes of length 1."
        )


def kept_labels(loss: str, y: Array, rows: int, classes: int, ignore_index: int | None = None) -> Array:
    """Mask (N,) of the rows that count. Raises ValueError where a label is neither a class nor `ignore_index`."""
    if y.shape != (rows,) or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{loss} needs integer labels y ({rows},); got {y.dtype} of shape {y.shape}.")
    kept = np.ones(rows, bool) if ignore_index is None else y != ignore_index
    bad = np.flatnonzero(kept & ((y < 0) | (y >= classes)))
    if bad.size:
        ignored = "" if ignore_index is None else f" or ignore_index = {ignore_index}"
        raise ValueError(
            f"Labels must be classes 0..{classes - 1}{ignored}; row {bad[0]} has {y[bad[0]]} "
            f"({bad.size} of {rows} rows are out of range). Map the labels, or widen the net's output."
        )
    return kept
