"""What a schedule is: for each rank a row of steps, each saying what it sends, what it receives, and what for.

A schedule is a pure function (rank, size, count, segment) -> steps over one vector of `count` elements. A transport
carries it out (`executor`), a checker proves it (`checker`), a simulation times it (`cost`): all read the same steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

__all__ = ["How", "Recv", "Rooted", "Schedule", "Send", "Step", "among", "cuts", "pieces", "planned", "shifted"]

How = Literal["copy", "reduce", "merge"]


class Send(NamedTuple):
    """Elements [start, stop) of the vector go to `peer`."""

    peer: int
    start: int
    stop: int


class Recv(NamedTuple):
    """Elements [start, stop) come from `peer`.

    copy: they replace what is there. reduce: they are folded in as they arrive, op(own, incoming). merge: they are set
    aside and folded in once the step's sends have left, op(lower rank's, higher rank's), so that two partners who
    exchange the same slice both get the same bits.
    """

    peer: int
    start: int
    stop: int
    how: How = "copy"


class Step(NamedTuple):
    """What one rank does at once: all sends leave while the receives are taken in the order given.

    What comes by copy or reduce overlaps nothing that is sent in the same step; what comes by merge may. Receives
    overlap one another only where all of them reduce, or all merge: they are folded in one by one.
    """

    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()

    @property
    def messages(self) -> list[Send | Recv]:
        """The sends, then the receives."""
        return [*self.sends, *self.recvs]


class Schedule(Hashable, Protocol):
    """The steps of `rank` among `size` ranks; `segment` is the longest piece, in elements, of a pipelined algorithm.

    It is hashable, and deterministic: compiled schedules are kept by their arguments.
    """

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]: ...


@lru_cache(maxsize=64)
def cuts(count: int, size: int) -> tuple[int, ...]:
    """The size + 1 bounds of `size` chunks of `count` elements that differ by one element at most."""
    return tuple(count * i // size for i in range(size + 1))


def pieces(start: int, stop: int, segment: int) -> list[tuple[int, int]]:
    """[start, stop) in the fewest pieces of at most `segment` elements, as equal as can be."""
    if stop <= start:
        return []
    bounds = cuts(stop - start, -((start - stop) // max(segment, 1)))
    return [(start + a, start + b) for a, b in pairwise(bounds)]


def planned(schedule: Schedule, rank: int, size: int, count: int, segment: int) -> tuple[Step, ...]:
    """The steps as they are carried out: messages of no elements, which both sides know of, are left out."""
    steps = []
    for step in schedule(rank, size, count, segment):
        if any(m.start == m.stop for m in step.messages):
            step = Step(
                tuple(s for s in step.sends if s.start < s.stop), tuple(r for r in step.recvs if r.start < r.stop)
            )
        if step.sends or step.recvs:
            steps.append(step)
    return tuple(steps)


def shifted(steps: Iterator[Step], offset: int) -> Iterator[Step]:
    """The same steps over a vector that begins at element `offset` of the whole."""
    for sends, recvs in steps:
        yield Step(
            tuple(Send(peer, a + offset, b + offset) for peer, a, b in sends),
            tuple(Recv(peer, a + offset, b + offset, how) for peer, a, b, how in recvs),
        )


def among(members: Sequence[int], schedule: Schedule, rank: int, count: int, segment: int) -> Iterator[Step]:
    """The steps of `rank` when only `members` take part, its peers numbered as in the whole; none for an outsider."""
    if rank not in members:
        return
    for sends, recvs in schedule(members.index(rank), len(members), count, segment):
        yield Step(
            tuple(Send(members[peer], a, b) for peer, a, b in sends),
            tuple(Recv(members[peer], a, b, how) for peer, a, b, how in recvs),
        )


@dataclass(frozen=True)
class Rooted:
    """A schedule whose root is rank 0, turned so that its root is `root`."""

    schedule: Schedule
    root: int

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        """The steps of `rank`."""
        members = [(self.root + i) % size for i in range(size)]
        return among(members, self.schedule, rank, count, segment)
