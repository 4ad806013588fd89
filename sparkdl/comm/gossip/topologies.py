"""The graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isqrt
from typing import ClassVar, Literal

import numpy as np

from sparkdl.comm.gossip.base import Neighbours, Topology, directed, undirected
from sparkdl.fields import COUNT, Interval

__all__ = [
    "TOPOLOGIES",
    "Exponential",
    "Full",
    "Hierarchical",
    "OnePeerExponential",
    "RandomOut",
    "RandomPairs",
    "Ring",
    "Star",
    "Torus",
]

NATURAL = {"within": Interval(0, inf, "[)", integer=True)}


@dataclass(frozen=True)
class Ring(Topology):
    """Both neighbours on a ring, or one message each way round: "right" sends to the next rank, "left" to the last."""

    rotational: ClassVar[bool] = True
    direction: Literal["both", "left", "right"] = "both"

    def __post_init__(self) -> None:
        if self.direction not in ("both", "left", "right"):
            raise ValueError(f'Ring(direction={self.direction!r}): direction must be "both", "left" or "right".')

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        right, left = (rank + 1) % size, (rank - 1) % size
        if self.direction == "both":
            return undirected(rank, size, (left, right))
        to, source = (right, left) if self.direction == "right" else (left, right)
        return directed(rank, size, (to,), (source,))


@dataclass(frozen=True)
class Torus(Topology):
    """A grid, as square as the number of ranks allows, whose rows and columns are rings; a ring for a prime number."""

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        rows = next(r for r in range(isqrt(size), 0, -1) if size % r == 0)
        columns = size // rows
        row, column = divmod(rank, columns)
        beside = ((row, (column + 1) % columns), (row, (column - 1) % columns))
        above = (((row + 1) % rows, column), ((row - 1) % rows, column))
        return undirected(rank, size, (r * columns + c for r, c in beside + above))


@dataclass(frozen=True)
class Star(Topology):
    """Everyone with rank 0."""

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        return undirected(rank, size, (0,) if rank else range(size))


@dataclass(frozen=True)
class Full(Topology):
    """Everyone with everyone."""

    rotational: ClassVar[bool] = True

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        return undirected(rank, size, range(size))


@dataclass(frozen=True)
class Exponential(Topology):
    """To the ranks 1, 2, 4, ... further on: log2 P messages, and a gap of 2 / (1 + log2 P) for even P.

    (Ying et al. 2021, arXiv:2110.13363.)
    """

    rotational: ClassVar[bool] = True

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        shifts = [1 << k for k in range((size - 1).bit_length())]
        return directed(rank, size, ((rank + s) % size for s in shifts), ((rank - s) % size for s in shifts))


@dataclass(frozen=True)
class OnePeerExponential(Topology):
    """To the rank 2^(step mod log2 P) further on: one message a step, and the exact mean every log2 P if P is 2^k.

    (Assran et al. 2019, arXiv:1811.10792.)
    """

    rotational: ClassVar[bool] = True
    static: ClassVar[bool] = False

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        shift = 1 << step % max(1, (size - 1).bit_length())
        return directed(rank, size, ((rank + shift) % size,), ((rank - shift) % size,))


@dataclass(frozen=True)
class RandomPairs(Topology):
    """Pairs drawn anew in each step, the same on all ranks; with an odd number one rank rests."""

    static: ClassVar[bool] = False
    seed: int = field(default=0, metadata=NATURAL)

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        partner = _partners(self.seed, step, size)[rank]
        return undirected(rank, size, (partner,))


@dataclass(frozen=True)
class RandomOut(Topology):
    """Each rank to `out` others, drawn anew in each step; how many reach a rank is left to chance. For push-sum."""

    static: ClassVar[bool] = False
    out: int = field(default=1, metadata=COUNT)
    seed: int = field(default=0, metadata=NATURAL)

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        targets = _targets(self.seed, step, size, min(self.out, size - 1))
        return directed(rank, size, targets[rank], _sources(self.seed, step, size, len(targets[rank]))[rank])


@dataclass(frozen=True)
class Hierarchical(Topology):
    """Groups of `group` neighbouring ranks: `inner` steps everyone within a group, then one step between groups.

    Between, the i-th rank of each group meets the i-th ranks of the groups before and after it, in a ring.
    """

    static: ClassVar[bool] = False
    group: int = field(default=4, metadata=COUNT)
    inner: int = field(default=1, metadata=COUNT)

    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        own, place = divmod(rank, self.group)
        if step % (self.inner + 1) < self.inner:
            return undirected(rank, size, range(own * self.group, min(size, (own + 1) * self.group)))
        groups = -(-(size - place) // self.group)  # those that have so many ranks
        return undirected(rank, size, ((own + s) % groups * self.group + place for s in (-1, 1)))


TOPOLOGIES: dict[str, type[Topology]] = {
    "ring": Ring,
    "torus": Torus,
    "star": Star,
    "full": Full,
    "exponential": Exponential,
    "one_peer_exponential": OnePeerExponential,
    "random_pairs": RandomPairs,
    "random_out": RandomOut,
    "hierarchical": Hierarchical,
}
"""The names under which a configuration finds topologies."""


@lru_cache(maxsize=64)
def _partners(seed: int, step: int, size: int) -> tuple[int, ...]:
    """The partner of each rank; its own where it has none."""
    order = np.random.default_rng((seed, step)).permutation(size).tolist()
    partners = list(range(size))
    for a, b in zip(order[::2], order[1::2], strict=False):
        partners[a], partners[b] = b, a
    return tuple(partners)


@lru_cache(maxsize=64)
def _targets(seed: int, step: int, size: int, out: int) -> tuple[tuple[int, ...], ...]:
    rng = np.random.default_rng((seed, step))
    # Drawn among the others: a shift of 1 to size - 1.
    return tuple(
        tuple((rank + 1 + s) % size for s in rng.choice(size - 1, out, replace=False).tolist()) if out else ()
        for rank in range(size)
    )


@lru_cache(maxsize=64)
def _sources(seed: int, step: int, size: int, out: int) -> tuple[tuple[int, ...], ...]:
    sources: list[list[int]] = [[] for _ in range(size)]
    for rank, row in enumerate(_targets(seed, step, size, out)):
        for target in row:
            sources[target].append(rank)
    return tuple(map(tuple, sources))
