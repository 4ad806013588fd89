"""Losses that compare whole vectors: directions, distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.layer import Array, Shape
from sparkdl.nn.margin_losses import Rowwise
from sparkdl.ops.softmax import log_softmax, softmax

__all__ = ["CosineDistance", "KLDivergence", "check_same"]


@dataclass(frozen=True)
class CosineDistance(Rowwise):
    """loss_n = 1 - <z_n, y_n> / (|z_n| |y_n|), between 0 and 2; z, y (N, ...), each row one vector.

    A norm below `eps` counts as eps, so that a zero vector has distance 1.
    """

    target = "values"

    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not 0 < self.eps < math.inf:
            raise ValueError(f"CosineDistance(eps={self.eps}): eps must be finite and above 0.")

    def rows(self, z: Array, y: Array) -> tuple[Array, Array]:
        d = math.prod(z.shape[1:])
        a, b = z.reshape(len(z), d), y.astype(z.dtype, copy=False).reshape(len(z), d)
        norm = np.sqrt(np.einsum("nd,nd->n", a, a))[:, None]
        length = np.maximum(norm, self.eps)
        b = b / np.maximum(np.sqrt(np.einsum("nd,nd->n", b, b)), self.eps)[:, None]
        cosine = np.einsum("nd,nd->n", a, b)[:, None] / length
        turning = np.where(norm > self.eps, cosine * a / length, 0)
        return 1 - cosine[:, 0], ((turning - b) / length).reshape(z.shape)

    def link(self, z: Array) -> Array:
        return z

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        check_same("CosineDistance", out_shape, target_shape)


@dataclass(frozen=True)
class KLDivergence(Rowwise):
    """loss_n = sum_k y_k (log y_k - log p_k), p = softmax(z_n); z (N, K) logits, y (N, K) distributions.

    Soft targets, such as a larger model's predictions (Hinton et al. 2015). A row of y below 0, or whose sum is not 1
    within 1e-3, raises. Predictions are p.
    """

    target = "values"
    from_logits = True

    def rows(self, z: Array, y: Array) -> tuple[Array, Array]:
        y = y.astype(z.dtype, copy=False)
        total = y.sum(axis=1, keepdims=True)
        bad = np.flatnonzero(~((y >= 0).all(axis=1) & (np.abs(total[:, 0] - 1) <= 1e-3)))  # also finds NaN
        if bad.size:
            raise ValueError(
                f"KLDivergence takes rows of probabilities that sum to 1; row {bad[0]} is {y[bad[0]]} ({bad.size} of "
                f"{len(y)} rows are none). Normalise the targets; for class indices use SoftmaxCrossEntropy."
            )
        log_p = log_softmax(z)
        log_y = np.log(np.where(y > 0, y, 1))  # y log y -> 0 as y -> 0
        loss: Array = np.einsum("nk,nk->n", y, log_y - log_p)
        return loss, np.exp(log_p) * total - y

    def link(self, z: Array) -> Array:
        return softmax(z)

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        if len(out_shape) != 1 or out_shape[0] < 2:
            raise ValueError(f"KLDivergence needs outputs of shape (K,), K >= 2; the net gives {tuple(out_shape)}.")
        check_same("KLDivergence", out_shape, target_shape)


def check_same(loss: str, out_shape: Shape, target_shape: Shape | None) -> None:
    """Raise ValueError unless outputs and targets have one shape."""
    if target_shape is not None and tuple(target_shape) != tuple(out_shape):
        raise ValueError(
            f"{loss} compares outputs and targets row by row; the net gives {tuple(out_shape)} a row, the target has "
            f"{tuple(target_shape)}."
        )
