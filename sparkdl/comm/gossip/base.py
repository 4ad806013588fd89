"""What a topology is: who sends to whom in which step, as a pure function that every rank evaluates for itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from sparkdl.fields import check_fields

__all__ = ["Neighbours", "Topology", "directed", "undirected"]


class Neighbours(NamedTuple):
    """The ranks that one rank sends to, and those it receives from, each once and without itself.

    Targets come in the order of how far on they are, sources of how far back: in turn all ranks send equally far, and
    nobody is sent two messages at once.
    """

    targets: tuple[int, ...]
    sources: tuple[int, ...]


class Topology(ABC):
    """A graph over `size` ranks for each step. Subclasses are frozen dataclasses and final.

    `static`: the graph is the same in all steps. `rotational`: rank r's neighbours are rank 0's, r further on.
    """

    static: ClassVar[bool] = True
    rotational: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def __call__(self, step: int, rank: int, size: int) -> Neighbours:
        """The neighbours of `rank` in `step`."""


def directed(rank: int, size: int, targets: Iterable[int], sources: Iterable[int]) -> Neighbours:
    """Neighbours in their order; repeated ranks count once, and the rank itself does not."""
    return Neighbours(
        tuple(sorted({*targets} - {rank}, key=lambda peer: (peer - rank) % size)),
        tuple(sorted({*sources} - {rank}, key=lambda peer: (rank - peer) % size)),
    )


def undirected(rank: int, size: int, peers: Iterable[int]) -> Neighbours:
    """Neighbours that both send and receive."""
    both = tuple(peers)
    return directed(rank, size, both, both)
