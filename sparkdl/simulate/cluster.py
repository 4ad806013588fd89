"""What is simulated: workers, how long they compute, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sparkdl.comm.cost import Link
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, NON_NEGATIVE, POSITIVE, UNIT, Interval, check_fields

__all__ = ["ETHERNET", "Cluster", "Compute"]

ETHERNET = Link(alpha=50e-6, beta=8e-10, gamma=1e-10)
"""10 Gbit/s, 50 us a message, sums at 10 GB/s."""


@dataclass(frozen=True)
class Cluster:
    """`workers` ranks, `per_host` neighbours to a host, which share its port to the network, one message each way.

    `link` joins hosts, `within` the ranks of one host (by default it is `link`); see `comm.cost.Link`.
    """

    workers: int = field(metadata=COUNT)
    link: Link = ETHERNET
    per_host: int = field(default=1, metadata=COUNT)
    within: Link | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hosts(self) -> tuple[int, ...]:
        """The host of each rank."""
        return tuple(rank // self.per_host for rank in range(self.workers))

    def between(self, a: int, b: int) -> Link:
        """What joins two ranks."""
        return self.within if self.within and a // self.per_host == b // self.per_host else self.link


@dataclass(frozen=True)
class Compute:
    """How long a local step takes: `seconds` on average, spread as `distribution` with coefficient of variation `cv`.

    The first `stragglers` workers always take `slowdown` times as long. With chance `pause` a step takes `pause_s` more
    (garbage collection, a busy neighbour).
    """

    seconds: float = field(default=1.0, metadata=POSITIVE)
    distribution: Literal["constant", "normal", "lognormal", "exponential"] = "constant"
    cv: float = field(default=0.1, metadata=NON_NEGATIVE)
    stragglers: int = field(default=0, metadata={"within": Interval(0, np.inf, "[)", integer=True)})
    slowdown: float = field(default=3.0, metadata=POSITIVE)
    pause: float = field(default=0.0, metadata=UNIT)
    pause_s: float = field(default=1.0, metadata=NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.distribution not in ("constant", "normal", "lognormal", "exponential"):
            raise ValueError(
                f"Compute(distribution={self.distribution!r}): distribution must be constant, normal, lognormal or "
                "exponential."
            )

    def draw(self, rng: np.random.Generator, workers: int, steps: int) -> Array:
        """Seconds (steps, workers) of independent steps."""
        shape, spread = (steps, workers), np.sqrt(np.log1p(self.cv**2))
        if self.distribution == "normal":
            seconds = self.seconds * np.maximum(0, 1 + self.cv * rng.standard_normal(shape))
        elif self.distribution == "lognormal":
            seconds = self.seconds * np.exp(spread * rng.standard_normal(shape) - spread**2 / 2)
        elif self.distribution == "exponential":
            seconds = rng.exponential(self.seconds, shape)
        else:
            seconds = np.full(shape, self.seconds)
        seconds[:, : self.stragglers] *= self.slowdown
        if self.pause:
            seconds += self.pause_s * (rng.random(shape) < self.pause)
        return seconds
