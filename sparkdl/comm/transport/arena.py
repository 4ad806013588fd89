"""Memory that the ranks of one host have in common, for collectives that work in it rather than send messages.

The ranks of an arena, its members, walk through turns, numbered alike on all of them. A turn has three stages, and each
member counts the turns that it has brought past each. It has SLOTS slots, used in rotation, which all members read and
it alone writes. As in the channels (see shm.py), data is written before the counter that announces
it, and a member that has looked in vain for a while sleeps on its doorbell, with a word about what it waits for.
"""

from __future__ import annotations

import mmap
import select
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.base import Array, CommError
from sparkdl.comm.transport.channel import Unexpected
from sparkdl.comm.transport.frames import HEADER_BYTES, Header

__all__ = [
    "COPIED",
    "REDUCED",
    "SLOTS",
    "TAKEN",
    "Arena",
    "Arrival",
    "Complete",
    "Mismatch",
    "arena_bytes",
    "vectors_bytes",
]

COPIED, REDUCED, TAKEN = range(3)  # the stages of a turn
SLOTS = 3

_LINE = 64  # bytes of a cache line: what different members write lies apart
_STEP = _LINE // 8
_ASLEEP, _QUIET, _HEADERS, _LINES = 3, 4, 5, 8  # lines of a member, after its three counters
# Arrays of NumPy's own begin 16 bytes behind a page. A short copy to a place that lies less than a cache line further
# in its page than its source does is ten times slower on some processors: so slots begin in the middle of a page.
_PAGE, _SHIFT = 4096, 2048
_FOUND = struct.Struct("<qq")  # behind the header: the number of a vector and an offset


def arena_bytes(members: int, slot_bytes: int) -> int:
    """The memory that so many members need, the control lines included; what is never used is never allocated."""
    return _control_bytes(members) + members * SLOTS * (slot_bytes + _PAGE)


def vectors_bytes(members: int, nbytes: int) -> int:
    """The memory for a vector of so many bytes for each member; the first begins a page from the start."""
    return _PAGE + members * _whole_pages(nbytes)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _control_bytes(members: int) -> int:
    return _whole_pages(members * _LINES * _LINE)


class Arrival:
    """The arrival of all members at a stage of a turn, as a task of the mesh."""

    __slots__ = ("_arena", "_counters", "_place", "_want", "stage")

    def __init__(self, arena: Arena, stage: int, turn: int) -> None:
        self._arena, self.stage, self._want, self._place = arena, stage, turn + 1, 0
        self._counters = arena.counters(stage)

    @property
    def done(self) -> bool:
        return self._place == len(self._counters)

    @property
    def peer(self) -> int:
        """The first rank that has not come."""
        return self._arena.members[self._place]

    def step(self) -> bool:
        """Count off those who have come; whether anyone was new."""
        before = self._place
        words = self._arena.words
        while self._place < len(self._counters) and words[self._counters[self._place]] >= self._want:
            self._place += 1
        return self._place > before

    def watch(self, poller: select.poll, reading: bool) -> bool:
        """Have the laggard ring; False if it has come meanwhile."""
        self._arena.sleep(self._place, self.stage)
        return self._arena.words[self._counters[self._place]] < self._want


Complete = Callable[[Arrival, int, Array], None]
"""Drives an arrival to its end, for an operation with this tag on this vector; CommError."""

Mismatch = Callable[[int, Unexpected, int, Array], CommError]
"""The error of a rank in an operation, with this tag on this vector, to which a peer has come with another one."""


class Arena:
    """A rank's view. `members` are those it could share with until `join` says with whom it does.

    `layout` has all ranks of the job by arena, once they have agreed on it; `turn` is the next turn.
    """

    def __init__(
        self,
        rank: int,
        members: tuple[int, ...],
        bells: Mapping[int, Callable[[], None]],
        complete: Complete,
        mismatch: Mismatch,
    ) -> None:
        self.rank, self.members, self.place, self.turn = rank, members, members.index(rank), 0
        self.layout: Hosts | None = None
        self.slot_bytes = 0
        self.begun = Header(0, 0, 0, 0)  # of the operation that this rank has begun last
        self.words: memoryview = memoryview(b"")
        self._bells, self._complete, self._mismatch = dict(bells), complete, mismatch
        self._memory: mmap.mmap | None = None
        self._slots: list[list[Array]] = []
        self._vectors: list[list[Array]] = []
        self._fence = threading.Lock()  # taking it is an atomic exchange: no load moves ahead of an earlier store

    def join(self, memory: mmap.mmap | None, slot_bytes: int) -> None:
        """Share `memory`, of arena_bytes, with the members; without one, be alone."""
        self.slot_bytes = slot_bytes
        if memory is None:
            self.members, self.place = (self.rank,), 0
            return
        size, base = len(self.members), _control_bytes(len(self.members))
        self._memory = memory
        self.words = memoryview(memory)[:base].cast("Q")
        whole = np.frombuffer(memory, np.uint8)
        starts = [base + i * (slot_bytes + _PAGE) + _SHIFT for i in range(size * SLOTS)]
        views = [whole[start : start + slot_bytes] for start in starts]
        self._slots = [views[i : i + SLOTS] for i in range(0, size * SLOTS, SLOTS)]

    def add_vectors(self, memory: mmap.mmap, nbytes: int) -> Array:
        """Take in `memory`, of vectors_bytes; returns this member's vector."""
        whole, stride = np.frombuffer(memory, np.uint8), _whole_pages(nbytes)
        starts = range(_PAGE, _PAGE + len(self.members) * stride, stride)
        self._vectors.append([whole[start : start + nbytes] for start in starts])
        return self._vectors[-1][self.place]

    def find(self, vec: Array) -> tuple[int, int]:
        """In which of this rank's vectors vec lies, and from which byte on; (-1, 0) if in none."""
        at = vec.__array_interface__["data"][0]
        for number, vectors in enumerate(self._vectors):
            start = at - vectors[self.place].__array_interface__["data"][0]
            if 0 <= start <= vectors[self.place].nbytes - vec.nbytes:
                return number, start
        return -1, 0

    def counters(self, stage: int) -> list[int]:
        """The words in which the members count a stage."""
        return [(i * _LINES + stage) * _STEP for i in range(len(self.members))]

    def slot(self, place: int, turn: int, dtype: np.dtype[Any]) -> Array:
        """A member's slot of this turn."""
        return self._slots[place][turn % SLOTS].view(dtype)

    def wait(self, stage: int, turn: int, tag: int, vec: Array) -> None:
        """Return when all members have brought `turn` past `stage`, for an operation with this tag on vec."""
        self._complete(Arrival(self, stage, turn), tag, vec)

    def post(self, stage: int, turn: int) -> None:
        """Tell that this member has brought `turn` past `stage`; wakes those who sleep for it."""
        words, place = self.words, self.place
        words[(place * _LINES + stage) * _STEP] = turn + 1
        awaited = 1 + place * (TAKEN + 1) + stage
        with self._fence:
            sleepers = [i for i, at in enumerate(self.counters(_ASLEEP)) if words[at] == awaited]
        for sleeper in sleepers:
            words[(sleeper * _LINES + _ASLEEP) * _STEP] = 0
            self._bells[self.members[sleeper]]()

    def announce(self, turn: int, tag: int, vec: Array) -> bool:
        """Write down which operation begins with this turn, before COPIED is posted; whether all can read vec."""
        self.begun = Header.of(turn, tag, vec)
        found = self.find(vec)
        note = self.begun.pack() + _FOUND.pack(*found)
        at = self._header_at(self.place, turn)
        self._lines()[at : at + len(note)] = note
        return found[0] >= 0

    def compare(self, turn: int, tag: int, vec: Array) -> list[Array | None]:
        """The members' vectors, where all can read them, once all have COPIED the first turn of the operation.

        Raises MessageMismatch if a member has begun another operation with this turn.
        """
        expected, lines = self.begun.pack(), self._lines()
        found: list[Array | None] = []
        for place, peer in enumerate(self.members):
            at = self._header_at(place, turn)
            header = bytes(lines[at : at + HEADER_BYTES])
            if header != expected:
                raise self._mismatch(peer, Unexpected.of(header), tag, vec)
            number, start = _FOUND.unpack_from(lines, at + HEADER_BYTES)
            readable = None if number < 0 else self._vectors[number][place][start : start + vec.nbytes]
            found.append(None if readable is None else readable.view(vec.dtype))
        return found

    def sleep(self, place: int, stage: int) -> None:
        """Ask a member to ring once it has posted this stage; its counter must be looked at once more then."""
        self.words[(self.place * _LINES + _ASLEEP) * _STEP] = 1 + place * (TAKEN + 1) + stage
        with self._fence:
            pass

    def fall_quiet(self) -> None:
        """Tell that this member is in an operation of the arena, with nothing more to send before that is over."""
        if len(self.words):
            self.words[(self.place * _LINES + _QUIET) * _STEP] = self.turn

    def has_gone_on(self, peer: int) -> bool:
        """Whether peer fell quiet in an operation that this rank has not begun."""
        if not len(self.words) or peer not in self.members:
            return False
        return self.words[(self.members.index(peer) * _LINES + _QUIET) * _STEP] > self.turn

    def close(self) -> None:
        """Let the memory go."""
        if self._memory is not None:
            self.words.release()
            self._slots, self._vectors = [], []
            with suppress(BufferError):  # a view in a traceback keeps the mapping until it goes itself
                self._memory.close()
            self._memory, self.words = None, memoryview(b"")

    def _lines(self) -> memoryview:
        return self.words.cast("B")

    @staticmethod
    def _header_at(place: int, turn: int) -> int:
        return (place * _LINES + _HEADERS + turn % SLOTS) * _LINE
