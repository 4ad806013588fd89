"""Allreduce in memory that the ranks of a host have in common: nobody sends to anybody, everybody adds up a slice.

A vector goes by in turns of one slot. In each turn every rank copies what it has of the others' slices into its slot;
then adds up its own slice over all slots, into its own; and then copies all slices out of their owners' slots. A
turn's copying in overlaps the turn before being added up and the one before that being copied out. Where slices are
not worth their second meeting, which are short vectors, and all between two ranks, every rank adds up all of it.

Additions go in rank order, whoever does them. With several hosts, the i-th ranks of all of them reduce the i-th slice
among each other, by messages, before it is copied out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparkdl.comm.executor import REDUCERS, compiled, execute
from sparkdl.comm.schedules import RingAllgather, Schedule, Step, among, cuts, pieces, rabenseifner
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.arena import COPIED, REDUCED, SLOTS, TAKEN, Arena, arena_bytes
from sparkdl.comm.transport.base import Array, CommError, Op, Transport
from sparkdl.comm.transport.sharing import common_memory

__all__ = ["SHORT_BYTES", "Shared", "arenas"]

SHORT_BYTES = 1 << 15  # up to here every rank adds up the whole vector
BLOCK_BYTES = 1 << 17  # added up over all ranks at a time: the sum stays in the cache meanwhile
MIN_SLOT_BYTES, MAX_SLOT_BYTES = 1 << 16, 1 << 21
ARENA_BYTES = 24 << 20  # of all slots of a host: what many processors' last cache holds


@dataclass(frozen=True)
class Shared:
    """The algorithm; `between` is the allreduce among the hosts, and all there is where no two ranks share memory."""

    between: Schedule = rabenseifner

    def reduce(self, t: Transport, vec: Array, op: Op, tag: int) -> None:
        """Reduce vec (n,) over all ranks, in place. A CommError gets a note saying where."""
        layout = arenas(t, tag)
        if not vec.size or t.size == 1:
            return
        if t.arena is None or len(layout.members) == t.size:
            execute(t, compiled(self.between, t.rank, t.size, vec.size, vec.size), vec, op, tag)
            return
        try:
            _Operation(t, t.arena, layout, self.between, vec, op, tag).run()
        except CommError as error:
            error.add_note(f"rank {t.rank}: to reduce {vec.size} elements in shared memory failed")
            raise


def arenas(t: Transport, tag: int = 0) -> Hosts:
    """Who shares an arena with whom. All ranks call it together; the first call makes the arenas."""
    arena = t.arena
    if arena is None:
        return Hosts(tuple(range(t.size)))
    if arena.layout is None:
        rows = np.zeros((t.size, t.size), np.uint8)  # row r: with whom rank r can share
        rows[t.rank, list(arena.members)] = 1
        _tell(t, rows, tag)
        agreed = all((rows[peer] == rows[t.rank]).all() for peer in arena.members)
        slot_bytes = _slot_bytes(int(rows.sum(axis=1).max()))
        memory = None
        if agreed and len(arena.members) > 1:
            memory = common_memory(t, arena.members, arena_bytes(len(arena.members), slot_bytes), tag)
        arena.join(memory, slot_bytes)
        firsts = np.zeros((t.size, 1), np.int64)
        firsts[t.rank] = arena.members[0]
        _tell(t, firsts, tag)
        arena.layout = Hosts.of(firsts[:, 0].tolist())
    return arena.layout


def _tell(t: Transport, rows: Array, tag: int) -> None:
    """Each rank's row to all."""
    bounds = tuple(rows.shape[1] * rank for rank in range(t.size + 1))
    execute(t, compiled(RingAllgather(bounds), t.rank, t.size, rows.size, 1), rows.reshape(-1), tag=tag)


def _slot_bytes(members: int) -> int:
    """The size of a slot, a power of two, where the largest arena has so many members."""
    most = max(MIN_SLOT_BYTES, min(MAX_SLOT_BYTES, ARENA_BYTES // (SLOTS * members)))
    return 1 << (most.bit_length() - 1)


class _Operation:
    """One allreduce, in turns of three stages; of two, where every rank adds up the whole vector."""

    def __init__(
        self, t: Transport, arena: Arena, layout: Hosts, between: Schedule, vec: Array, op: Op, tag: int
    ) -> None:
        self.t, self.arena, self.vec, self.op, self.tag = t, arena, vec, op, tag
        self.parts = pieces(0, vec.size, arena.slot_bytes // vec.itemsize)
        self.first = arena.turn
        arena.turn += len(self.parts)
        self.leaders = layout.leaders
        peers = tuple(ranks[arena.place] for ranks in layout.members) if arena.place < self.leaders else ()
        self.between = _Among(peers, between) if len(peers) > 1 else None
        self.whole = len(layout.members) == 1 and (t.size == 2 or vec.nbytes <= SHORT_BYTES)

    def run(self) -> None:
        """All turns, three of them under way at a time."""
        turns = len(self.parts)
        if len(self.arena.members) == 1:
            for a, b in self.parts:
                self._among_hosts(self.vec[a:b])
        elif self.whole:
            for i in range(turns + 1):
                if i < turns:
                    self._copy(i)
                if i:
                    self._add_up(i - 1)
        else:
            for i in range(turns + 2):
                if i < turns:
                    self._copy(i)
                if 1 <= i <= turns:
                    self._reduce(i - 1)
                if i > 1:
                    self._take(i - 2)

    def _slices(self, i: int) -> Iterator[tuple[Array, slice, slice]]:
        """Of each member in this turn: its slot, and its slice in any slot and in vec."""
        a, b = self.parts[i]
        bounds = cuts(b - a, self.leaders) + (b - a,) * (len(self.arena.members) - self.leaders)
        for place in range(len(self.arena.members)):
            slot = self.arena.slot(place, self.first + i, self.vec.dtype)
            c, d = bounds[place : place + 2]
            yield slot, slice(c, d), slice(a + c, a + d)

    def _copy(self, i: int) -> None:
        arena, turn = self.arena, self.first + i
        arena.wait(TAKEN, turn - SLOTS, self.tag, self.vec)
        own = arena.slot(arena.place, turn, self.vec.dtype)
        if self.whole:
            a, b = self.parts[i]
            own[: b - a] = self.vec[a:b]
        else:
            for place, (_, inner, outer) in enumerate(self._slices(i)):
                if place != arena.place:
                    own[inner] = self.vec[outer]
        if i == 0:
            arena.announce(turn, self.tag, self.vec)
        arena.post(COPIED, turn)

    def _meet(self, i: int) -> int:
        """Wait until all have copied, and make sure, at first, that it is the same operation; returns the turn."""
        turn = self.first + i
        self.arena.wait(COPIED, turn, self.tag, self.vec)
        if i == 0:
            self.arena.compare(turn, self.tag, self.vec)
        return turn

    def _add_up(self, i: int) -> None:
        arena, turn = self.arena, self._meet(i)
        a, b = self.parts[i]
        slots = [arena.slot(place, turn, self.vec.dtype)[: b - a] for place in range(len(arena.members))]
        _fold(slots, self.vec[a:b], self.op)
        arena.post(TAKEN, turn)

    def _reduce(self, i: int) -> None:
        arena, turn = self.arena, self._meet(i)
        slices = list(self._slices(i))
        own, inner, outer = slices[arena.place]
        operands = [slot[inner] for slot, _, _ in slices]
        operands[arena.place] = self.vec[outer]
        _fold(operands, own[inner], self.op)
        self._among_hosts(own[inner])
        arena.post(REDUCED, turn)

    def _among_hosts(self, part: Array) -> None:
        if self.between is not None:
            program = compiled(self.between, self.t.rank, self.t.size, part.size, max(1, part.size))
            execute(self.t, program, part, self.op, self.tag)

    def _take(self, i: int) -> None:
        arena, turn = self.arena, self.first + i
        arena.wait(REDUCED, turn, self.tag, self.vec)
        for slot, inner, outer in self._slices(i):
            self.vec[outer] = slot[inner]
        arena.post(TAKEN, turn)


@dataclass(frozen=True)
class _Among:
    """A schedule among some of the ranks."""

    members: tuple[int, ...]
    schedule: Schedule

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        return among(self.members, self.schedule, rank, count, segment)


def _fold(operands: list[Array], out: Array, op: Op) -> None:
    """out = op over two or more operands, in their order, in blocks; a float16 sum is made in float32."""
    first, second, *others = operands
    fold = REDUCERS[op]
    wide = np.dtype(np.float32) if op == "sum" and out.dtype == np.float16 else out.dtype
    step = BLOCK_BYTES // out.itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        for block in (slice(a, a + step) for a in range(0, out.size, step)):
            part = out[block] if wide == out.dtype else np.empty(out[block].size, wide)
            fold(first[block], second[block], out=part, dtype=wide)
            for operand in others:
                fold(part, operand[block], out=part)
            if wide != out.dtype:
                out[block] = part
