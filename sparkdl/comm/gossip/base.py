"""What a topology is: who sends to whom in which step, as a pure function that every rank evaluates for itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from sparkdl.fields import check_fields

__all__ = ["Neighbours", "Topology", "undirected"]


class Neighbours(NamedTuple):
    """The ranks that one rank sends to, and those it receives from; ascending, without itself."""

    targets: tuple[int, ...]
    sources: tuple[int, ...]


class Topology(ABC):
    """A graph over `size` ranks for each step. Subclasses are frozen dataclasses and final.

    `static`: the graph is the same in all steps.
    """

    static: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        """The neighbours of `rank` in `step`."""


def undirected(rank: int, peers: Iterable[int]) -> Neighbours:
    """Neighbours that both send and receive; repeated ranks count once, and the rank itself does not."""
    both = tuple(sorted(set(peers) - {rank}))
    return Neighbours(both, both)
