"""Losses that ask for a margin: between classes, or between distances."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.layer import Array, Shape
from sparkdl.nn.losses import Elementwise, Loss, check_classes, kept_labels, row_weights
from sparkdl.ops.activation import sigmoid
from sparkdl.ops.softmax import softmax

__all__ = ["BinaryHinge", "Hinge", "Rowwise", "Triplet", "check_unread"]


class Rowwise(Loss):
    """A loss with one value for each row: loss_sum = sum_n w_n loss_n, weight_sum = sum_n w_n."""

    @abstractmethod
    def rows(self, z: Array, y: Array) -> tuple[Array, Array]:
        """Each row's loss (N,), and its derivative by z (N, ...)."""

    def __call__(self, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        self.check(z.shape[1:], target_shape=y.shape[1:])
        if len(y) != len(z):
            raise ValueError(f"{type(self).__name__} needs one target for each row; got {len(y)} for {len(z)} rows.")
        w = row_weights(w, len(z))
        loss, dz = self.rows(z, y)
        dz *= w.astype(z.dtype).reshape(-1, *[1] * (z.ndim - 1))
        return float(w @ loss), float(w.sum()), dz


@dataclass(frozen=True)
class Hinge(Rowwise):
    """Classes by margins (Weston & Watkins 1999): z (N, K) scores, y (N,) integers in 0..K-1.

        loss_n = 1/K sum_{k != y} max(0, margin - z_y + z_k),   or its squares with `squared`

    PyTorch's MultiMarginLoss. Predictions are softmax(z): no probabilities that the loss would answer for, but they
    rank the classes as the scores do.
    """

    target = "classes"
    from_logits = True

    margin: float = 1.0
    squared: bool = False

    def __post_init__(self) -> None:
        _check_margin(self)

    def rows(self, z: Array, y: Array) -> tuple[Array, Array]:
        n, classes = z.shape
        kept_labels("Hinge", y, n, classes)
        at = np.arange(n)
        over = np.maximum(self.margin - z[at, y][:, None] + z, 0)
        over[at, y] = 0
        dz = 2 * over if self.squared else (over > 0).astype(z.dtype)
        loss = (over * over if self.squared else over).sum(axis=1) / classes
        dz /= classes
        dz[at, y] = -dz.sum(axis=1)
        return loss, dz

    def link(self, z: Array) -> Array:
        return softmax(z)

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        check_classes("Hinge", out_shape, classes, target_shape)


@dataclass(frozen=True)
class BinaryHinge(Elementwise):
    """Yes or no by a margin: max(0, margin - s z), s = 2 y - 1, or its square; z (N, K) scores, y in {0, 1}.

    y (N, K), or (N,) for K = 1. Predictions are sigmoid(z): no probabilities that the loss would answer for, but 1/2
    is where it changes its mind.
    """

    from_logits = True

    margin: float = 1.0
    squared: bool = False

    def __post_init__(self) -> None:
        _check_margin(self)

    def terms(self, z: Array, y: Array) -> tuple[Array, Array]:
        bad = np.flatnonzero((y != 0) & (y != 1))
        if bad.size:
            raise ValueError(
                f"BinaryHinge takes targets 0 and 1; got {y.flat[bad[0]]}, and {bad.size} such in the batch."
            )
        sign = 2 * y - 1
        over = np.maximum(self.margin - sign * z, 0)
        if self.squared:
            return over * over, -2 * sign * over
        return over, -sign * (over > 0)

    def link(self, z: Array) -> Array:
        return sigmoid(z)


@dataclass(frozen=True)
class Triplet(Rowwise):
    """An anchor nearer to its like than to another, by a margin (Schroff et al. 2015).

        loss_n = max(0, |a - p| - |a - n| + margin),   squared distances with `squared`

    z (N, 3 D), or (N, 3, D): anchor a, positive p and negative n one after the other, as a `Graph` with three outputs
    of one shared net gives them. There is nothing to compare with: y (N,), any numbers, is not read. The derivative of
    a distance 0 is taken as 0.
    """

    target = "values"
    comparable = False

    margin: float = 1.0
    squared: bool = False

    def __post_init__(self) -> None:
        _check_margin(self)

    def rows(self, z: Array, y: Array) -> tuple[Array, Array]:
        a, p, n = z.reshape(len(z), 3, math.prod(z.shape[1:]) // 3).transpose(1, 0, 2)
        near, d_near = self._distance(a - p)
        far, d_far = self._distance(a - n)
        over = near - far + self.margin
        dz = np.stack([d_near - d_far, -d_near, d_far], axis=1) * (over > 0)[:, None, None]
        return np.maximum(over, 0), dz.reshape(z.shape)

    def link(self, z: Array) -> Array:
        return z

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        if not out_shape or math.prod(out_shape) % 3 or (len(out_shape) > 1 and out_shape[0] != 3):
            raise ValueError(f"Triplet needs outputs of shape (3 D,) or (3, ...); the net gives {tuple(out_shape)}.")
        check_unread("Triplet", target_shape)

    def _distance(self, d: Array) -> tuple[Array, Array]:
        """Of differences d (N, D): their lengths (N,), or squares, and the derivatives."""
        square = np.einsum("nd,nd->n", d, d)
        if self.squared:
            return square, 2 * d
        length = np.sqrt(square)
        return length, d / np.where(length == 0, 1, length)[:, None]


def check_unread(loss: str, target_shape: Shape | None) -> None:
    """Raise ValueError unless the targets that a loss does not read are one number a row."""
    if target_shape:
        raise ValueError(f"{loss} reads no targets; give any column of numbers, y (N,), not of {tuple(target_shape)}.")


def _check_margin(loss: Hinge | BinaryHinge | Triplet) -> None:
    if not 0 <= loss.margin < math.inf:
        raise ValueError(f"{type(loss).__name__}(margin={loss.margin}): the margin must be finite and at least 0.")
