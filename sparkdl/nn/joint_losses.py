"""Losses made of others, for nets with several outputs: a `Graph` joins them in one row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.layer import Array, Shape
from sparkdl.nn.losses import MSE, Elementwise, Loss, row_weights
from sparkdl.nn.margin_losses import check_unread

__all__ = ["Joint", "Reconstruction"]


@dataclass(frozen=True)
class Reconstruction(Loss):
    """The loss of an auto-encoder: what the net makes of its input is compared with that input.

    z (N, 2 S) holds the reconstruction and the input, one after the other: the outputs ("decoded", "input") of a
    `Graph`. `loss` compares them entry by entry, MSE or, for values in [0, 1], BinaryCrossEntropy, whose logits the
    reconstruction is then. y (N,), any numbers, is not read. Predictions are z, the reconstruction linked.
    """

    target = "values"
    comparable = False

    loss: Loss = MSE()

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Elementwise):
            raise ValueError(f"Reconstruction(loss={self.loss!r}) compares entry by entry; take MSE() or its like.")

    def __call__(self, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        self.check(z.shape[1:], target_shape=y.shape[1:])
        if len(y) != len(z):
            raise ValueError(f"Reconstruction needs a y of {len(z)} rows; got {len(y)}.")
        half = z.shape[1] // 2
        # The input is a constant here, though a part of z: no gradient goes to where it comes from.
        loss, weight, dz = self.loss(z[:, :half], z[:, half:], w)
        return loss, weight, np.concatenate([dz, np.zeros_like(dz)], axis=1)

    def link(self, z: Array) -> Array:
        half = z.shape[1] // 2
        return np.concatenate([self.loss.link(z[:, :half]), z[:, half:]], axis=1)

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        if len(out_shape) != 1 or out_shape[0] % 2:
            raise ValueError(
                f"Reconstruction needs outputs of shape (2 S,): the reconstruction and the input; the net gives "
                f"{tuple(out_shape)}. Make it a Graph with both as outputs."
            )
        check_unread("Reconstruction", target_shape)


@dataclass(frozen=True)
class Joint(Loss):
    """A weighted sum of losses, one for each output of a `Graph`.

        loss_n = sum_i weights_i loss_i(z_i, y_i)_n / k_i

    z (N, S) holds the outputs one after the other, the i-th of shape `shapes[i]`; y (N, S') the targets alike: of a
    loss of classes, or of one that reads none, one column, of other losses of values one for each entry. k_i is the
    number of entries where a loss counts entries, else 1, so that with `weights` of 1 the whole is the sum of the
    means; a row that a part ignores, or weighs by its class, counts as one row all the same.
    """

    target = "values"
    comparable = False

    losses: Sequence[Loss]
    shapes: Sequence[Shape]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        losses, shapes = tuple(self.losses), tuple(tuple(s) for s in self.shapes)
        weights = (1.0,) * len(losses) if self.weights is None else tuple(float(c) for c in self.weights)
        if not losses or not len(losses) == len(shapes) == len(weights):
            raise ValueError(
                f"Joint needs a shape and a weight for each loss; got {len(losses)} losses, {len(shapes)} shapes, "
                f"{len(weights)} weights."
            )
        if not all(0 <= c < math.inf for c in weights):
            raise ValueError(f"Joint(weights={weights}): must be finite and at least 0.")
        for name, value in (("losses", losses), ("shapes", shapes)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "weights", None if self.weights is None else weights)
        for loss, shape in zip(losses, shapes, strict=True):
            loss.check(shape)

    def __call__(self, z: Array, y: Array, w: Array | None) -> tuple[float, float, Array]:
        self.check(z.shape[1:], target_shape=y.shape[1:])
        if len(y) != len(z):
            raise ValueError(f"Joint needs one row of targets for each row; got {len(y)} for {len(z)}.")
        total, dz = 0.0, np.empty_like(z)
        for (loss, shape, weight), at, there in zip(self._parts(), self._cuts(), self._target_cuts(), strict=True):
            target = y[:, there]
            if loss.target == "classes":
                target = target[:, 0].astype(np.int64)
            elif loss.comparable:
                target = target.reshape(len(y), *shape)
            else:
                target = target[:, 0]
            value, _, d = loss(z[:, at].reshape(len(z), *shape), target, w)
            scale = weight / (math.prod(shape) if isinstance(loss, Elementwise) else 1)
            total += scale * value
            dz[:, at] = scale * d.reshape(len(z), math.prod(shape))
        return total, float(row_weights(w, len(z)).sum()), dz

    def link(self, z: Array) -> Array:
        parts = zip(self._parts(), self._cuts(), strict=True)
        linked = [loss.link(z[:, at].reshape(len(z), *shape)) for (loss, shape, _), at in parts]
        return np.concatenate([p.reshape(len(z), math.prod(p.shape[1:])) for p in linked], axis=1)

    def check(self, out_shape: Shape, classes: int | None = None, target_shape: Shape | None = None) -> None:
        size, width = self._cuts()[-1].stop, self._target_cuts()[-1].stop
        if tuple(out_shape) != (size,):
            raise ValueError(f"Joint needs outputs of shape ({size},), those of {self.shapes}; got {tuple(out_shape)}.")
        if target_shape is not None and tuple(target_shape) != (width,):
            raise ValueError(
                f"Joint needs targets of shape ({width},), one after the other; got {tuple(target_shape)}."
            )

    def _parts(self) -> Iterator[tuple[Loss, Shape, float]]:
        return zip(self.losses, self.shapes, self.weights or (1.0,) * len(self.losses), strict=True)

    def _cuts(self) -> list[slice]:
        return _slices([math.prod(shape) for shape in self.shapes])

    def _target_cuts(self) -> list[slice]:
        compared = (loss.target == "values" and loss.comparable for loss in self.losses)
        return _slices([math.prod(s) if whole else 1 for s, whole in zip(self.shapes, compared, strict=True)])


def _slices(widths: Sequence[int]) -> list[slice]:
    """Neighbouring slices of these widths."""
    return [slice(a, b) for a, b in itertools.pairwise(itertools.accumulate(widths, initial=0))]
