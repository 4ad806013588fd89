"""Outer optimizers: what becomes of the weights when workers that trained apart for a while meet (model averaging).

Between meetings each worker takes H local steps from x, which all share, to its own x_i. At a meeting the mean
xbar = sum n_i x_i / sum n_i, of workers weighted by their samples, goes into `OuterOptimizer.step`, which gives the
next x. Elastic averaging has no shared x: workers keep their own, and a centre follows them (`Elastic`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sparkdl.fields import FRACTION, POSITIVE, Interval, check_fields
from sparkdl.optim.base import Array, State

__all__ = ["BMUF", "OUTER", "Average", "DiLoCo", "Elastic", "OuterOptimizer", "SlowMo"]


class OuterOptimizer(ABC):
    """A rule for the shared weights. Subclasses are frozen dataclasses and final; state is explicit."""

    slots: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, params: Array) -> State:
        """Zeroed vectors like params (n,), and the count of meetings `t` (int64, shape (1,))."""
        return {name: np.zeros_like(params) for name in self.slots} | {"t": np.zeros(1, np.int64)}

    def step(self, params: Array, mean: Array, state: State, lr: float, workers: int) -> None:
        """Move params (n,), what the workers started from, in place, given the mean (n,) of where they got to.

        lr is the rate of the local steps; state changes too, mean is used up.
        """
        assert params.shape == mean.shape, (params.shape, mean.shape)
        state["t"] += 1
        self.move(params, mean, state, lr, workers)

    @abstractmethod
    def move(self, params: Array, mean: Array, state: State, lr: float, workers: int) -> None:
        """The rule itself."""


@dataclass(frozen=True)
class Average(OuterOptimizer):
    """x <- xbar: local SGD, and with one meeting at the end one-shot averaging."""

    def move(self, params: Array, mean: Array, state: State, lr: float, workers: int) -> None:
        params[...] = mean


@dataclass(frozen=True)
class SlowMo(OuterOptimizer):
    """u <- beta u + (x - xbar) / lr; x <- x - alpha lr u: momentum over the meetings, in units of the local gradient.

    With beta 0 and alpha 1 it is plain averaging. The division lets u outlive a change of the rate. (Wang et al. 2020,
    arXiv:1910.00643.)
    """

    slots: ClassVar[tuple[str, ...]] = ("velocity",)
    beta: float = field(default=0.5, metadata=FRACTION)
    alpha: float = field(default=1.0, metadata=POSITIVE)

    def move(self, params: Array, mean: Array, state: State, lr: float, workers: int) -> None:
        np.subtract(params, mean, out=mean)
        mean /= lr
        velocity = state["velocity"]
        velocity *= self.beta
        velocity += mean
        np.multiply(velocity, self.alpha * lr, out=mean)
        params -= mean


@dataclass(frozen=True)
class BMUF(OuterOptimizer):
    """Blockwise model-update filtering: v <- mu v + zeta (x - xbar); x <- x - v, momentum over the meetings.

    mu is `momentum`, by default 1 - 1 / P for P workers: x - xbar is then the P-th part of what all workers moved
    together, and the momentum restores in time what the mean took away. DiLoCo with lr zeta is its Nesterov variant.
    (Chen, Huo 2016.)
    """

    slots: ClassVar[tuple[str, ...]] = ("velocity",)
    momentum: float | None = field(default=None, metadata=FRACTION)
    zeta: float = field(default=1.0, metadata=POSITIVE)

    def move(self, params: Array, mean: Array, state: State, lr: float, workers: int) -> None:
        mu = 1 - 1 / workers if self.momentum is None else self.momentum
        np.subtract(params, mean, out=mean)
        mean *= self.zeta
        velocity = state["velocity"]
        velocity *= mu
        velocity += mean
        params -= velocity


@dataclass(frozen=True)
class DiLoCo(OuterOptimizer):
    """Nesterov SGD on the delta d = x - xbar: v <- momentum v + d; x <- x - lr (d + momentum v).

    With lr 1 and momentum 0 it is plain averaging. Made for hundreds of local AdamW steps between meetings. (Douillard
    et al. 2023, arXiv:2311.08105.)
    """

    slots: ClassVar[tuple[str, ...]] = ("velocity",)
    lr: float = field(default=0.7, metadata=POSITIVE)
    momentum: float = field(default=0.9, metadata=FRACTION)

    def move(self, params: Array, mean: Array, state: State, lr: float, workers: int) -> None:
        delta, velocity = np.subtract(params, mean, out=mean), state["velocity"]
        velocity *= self.momentum
        velocity += delta
        delta += self.momentum * velocity
        delta *= self.lr
        params -= delta


OUTER: dict[str, type[OuterOptimizer]] = {"average": Average, "slowmo": SlowMo, "bmuf": BMUF, "diloco": DiLoCo}
"""The names under which a configuration finds outer optimizers."""


@dataclass(frozen=True)
class Elastic:
    """Elastic averaging: x_i <- x_i - alpha (x_i - c); c <- c + alpha sum_i (x_i - c), from the same time's values.

    Workers keep weights of their own, tied to a centre c, which is the result. alpha is by default 0.9 / P for P
    workers. sum_i x_i + c stays. EASGD has plain local steps; with local Nesterov momentum it is EAMSGD. (Zhang et al.
    2015, arXiv:1412.6651.)
    """

    alpha: float | None = field(default=None, metadata={"within": Interval(0, 1, "()")})

    def __post_init__(self) -> None:
        check_fields(self)

    def pull(self, params: Array, centre: Array, workers: int) -> Array:
        """Move a worker's params (n,) towards centre (n,), in place; returns what the centre is to gain from it (n,).

        When all workers have moved, the sum of what they returned is added to the centre. Errors: ValueError for an
        alpha with which the centre would overshoot ever further: alpha (P + 1) must be below 2.
        """
        alpha = 0.9 / workers if self.alpha is None else self.alpha
        if alpha * (workers + 1) >= 2:
            raise ValueError(
                f"Elastic(alpha={alpha}): alpha * (workers + 1) must be below 2; got {workers} workers. "
                f"Lower alpha, or leave it out for 0.9 / workers."
            )
        pull = params - centre
        pull *= alpha
        params -= pull
        return pull
