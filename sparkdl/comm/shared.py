"""Allreduce in memory that the ranks of a host have in common: nobody sends to anybody, everybody adds up a slice.

A vector goes by in turns of one slot. In each turn every rank copies what it has of the others' slices into its slot;
then adds up its own slice over all slots, into its own; and then copies all slices out of their owners' slots. A
turn's copying in overlaps the turn before being added up and the one before that being copied out. The slices of a
short vector are not worth their second meeting: every rank adds up all of it.

A vector made by `zeros` lies in memory that all ranks of the host can read: then nothing is copied in, slices are added
up in place and copied out from there, and the call ends once nobody reads it any more.

Additions go in the order of the butterflies (see `schedules.halving`), whoever does them. With several hosts, the i-th
ranks of all of them reduce the i-th slice among each other, by messages, before it is copied out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sparkdl.comm.executor import REDUCERS, compiled, execute
from sparkdl.comm.schedules import RingAllgather, Schedule, Step, among, cuts, pieces, rabenseifner
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.arena import COPIED, REDUCED, SLOTS, TAKEN, Arena, arena_bytes, vectors_bytes
from sparkdl.comm.transport.base import Array, CommError, Op, Transport
from sparkdl.comm.transport.sharing import common_memory

__all__ = ["Shared", "arenas", "in_butterfly_order", "is_short", "zeros"]

SHORT_BYTES = 1 << 20  # up to here every rank adds up all of the others' vectors: two meetings cost as much
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
            if len(layout.members) == 1 and is_short(t.size, vec.nbytes) and vec.nbytes <= t.arena.slot_bytes:
                _reduce_short(t.arena, vec, op, tag)
            else:
                _Long(t, t.arena, layout, self.between, vec, op, tag).run()
        except CommError as error:
            error.add_note(f"rank {t.rank}: to reduce {vec.size} elements in shared memory failed")
            raise


def is_short(size: int, nbytes: int) -> bool:
    """Whether each of `size` ranks of one host adds up the whole vector, if a slot can hold it."""
    return (size - 1) * nbytes <= SHORT_BYTES


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


def zeros(t: Transport, count: int, dtype: np.dtype[Any], tag: int = 0) -> Array:
    """A vector (count,) that takes part in shared allreduces without being copied, where ranks share memory.

    All ranks call it together, with the same arguments. The memory is kept until the transport is closed.
    """
    arenas(t, tag)
    arena, nbytes = t.arena, count * dtype.itemsize
    if arena is None or len(arena.members) == 1 or not count:
        return np.zeros(count, dtype)
    memory = common_memory(t, arena.members, vectors_bytes(len(arena.members), nbytes), tag)
    return np.zeros(count, dtype) if memory is None else arena.add_vectors(memory, nbytes).view(dtype)


def in_butterfly_order(layout: Hosts) -> bool:
    """Whether a sum in these arenas has the bits of the butterflies: one arena, or equal powers of two side by side."""
    sizes = {len(members) for members in layout.members}
    size, side_by_side = (
        len(layout.groups),
        all(m == (*range(m[0], m[0] + len(m)),) for m in map(tuple, layout.members)),
    )
    return len(layout.members) in (1, size) or (len(sizes) == 1 and side_by_side and size & (size - 1) == 0)


def _tell(t: Transport, rows: Array, tag: int) -> None:
    """Each rank's row to all."""
    bounds = tuple(rows.shape[1] * rank for rank in range(t.size + 1))
    execute(t, compiled(RingAllgather(bounds), t.rank, t.size, rows.size, 1), rows.reshape(-1), tag=tag)


def _slot_bytes(members: int) -> int:
    """The size of a slot, a power of two, where the largest arena has so many members."""
    most = max(MIN_SLOT_BYTES, min(MAX_SLOT_BYTES, ARENA_BYTES // (SLOTS * members)))
    return 1 << (most.bit_length() - 1)


def _reduce_short(arena: Arena, vec: Array, op: Op, tag: int) -> None:
    """One turn, in which every rank adds up everything."""
    turn = arena.turn
    arena.turn += 1
    arena.wait(TAKEN, turn - SLOTS, tag, vec)
    slots = [arena.slot(place, turn, vec.dtype)[: vec.size] for place in range(len(arena.members))]
    slots[arena.place][:] = vec
    arena.announce(turn, tag, vec)
    arena.post(COPIED, turn)
    arena.wait(COPIED, turn, tag, vec)
    arena.compare(turn, tag, vec)
    _fold(slots, vec, op)
    arena.post(TAKEN, turn)


class _Long:
    """One allreduce in turns of three stages."""

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
        self.readable = False  # by all, where it lies
        self.vectors: list[Array | None] = []

    def run(self) -> None:
        """All turns, three of them under way at a time."""
        turns = len(self.parts)
        if len(self.arena.members) == 1:
            for a, b in self.parts:
                self._among_hosts(self.vec[a:b])
        else:
            for i in range(turns + 2):
                if i < turns:
                    self._copy(i)
                if 1 <= i <= turns:
                    self._reduce(i - 1)
                if i > 1:
                    self._take(i - 2)
            if self.readable:
                self.arena.wait(TAKEN, self.first + turns - 1, self.tag, self.vec)

    def _slices(self, i: int) -> Iterator[tuple[slice, slice]]:
        """Each member's slice in this turn, in a slot and in a vector."""
        a, b = self.parts[i]
        bounds = cuts(b - a, self.leaders) + (b - a,) * (len(self.arena.members) - self.leaders)
        for c, d in pairwise(bounds):
            yield slice(c, d), slice(a + c, a + d)

    def _of(self, place: int, i: int, inner: slice, outer: slice) -> Array:
        """What all can read of a slice, of the member at `place`."""
        vec = self.vectors[place]
        return self.arena.slot(place, self.first + i, self.vec.dtype)[inner] if vec is None else vec[outer]

    def _copy(self, i: int) -> None:
        arena, turn = self.arena, self.first + i
        arena.wait(TAKEN, turn - SLOTS, self.tag, self.vec)
        if i == 0:
            self.readable = arena.announce(turn, self.tag, self.vec)
        if not self.readable:
            own = arena.slot(arena.place, turn, self.vec.dtype)
            for place, (inner, outer) in enumerate(self._slices(i)):
                if place != arena.place:
                    own[inner] = self.vec[outer]
        arena.post(COPIED, turn)

    def _meet(self, i: int) -> None:
        """Wait until all have copied, and make sure, at first, that it is the same operation."""
        turn = self.first + i
        self.arena.wait(COPIED, turn, self.tag, self.vec)
        if i == 0:
            self.vectors = self.arena.compare(turn, self.tag, self.vec)

    def _reduce(self, i: int) -> None:
        self._meet(i)
        arena = self.arena
        inner, outer = list(self._slices(i))[arena.place]
        operands = [self._of(place, i, inner, outer) for place in range(len(arena.members))]
        operands[arena.place] = own = self.vec[outer]
        _fold(operands, own, self.op)
        self._among_hosts(own)
        if not self.readable:
            self._of(arena.place, i, inner, outer)[:] = own
        arena.post(REDUCED, self.first + i)

    def _take(self, i: int) -> None:
        arena, turn = self.arena, self.first + i
        arena.wait(REDUCED, turn, self.tag, self.vec)
        for place, (inner, outer) in enumerate(self._slices(i)):
            if place != arena.place:
                self.vec[outer] = self._of(place, i, inner, outer)
        arena.post(TAKEN, turn)

    def _among_hosts(self, part: Array) -> None:
        if self.between is not None:
            program = compiled(self.between, self.t.rank, self.t.size, part.size, max(1, part.size))
            execute(self.t, program, part, self.op, self.tag)


@dataclass(frozen=True)
class _Among:
    """A schedule among some of the ranks."""

    members: tuple[int, ...]
    schedule: Schedule

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        return among(self.members, self.schedule, rank, count, segment)


def _fold(operands: list[Array], out: Array, op: Op) -> None:
    """out, which may be one of them, = op over two or more operands; a float16 sum is made in float32.

    A block at a time is folded in buffers that stay in the cache.
    """
    wide = np.dtype(np.float32) if op == "sum" and out.dtype == np.float16 else out.dtype
    fold = partial(REDUCERS[op], dtype=wide)
    step = BLOCK_BYTES // wide.itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        if wide == out.dtype and len(operands) == 2:
            fold(*operands, out=out)
            return
        leaves = _leaves(len(operands))
        buffers = [np.empty(min(step, out.size), wide) for _ in range(len(leaves).bit_length())]
        for block in (slice(a, a + step) for a in range(0, out.size, step)):
            parts = [buffer[: out[block].size] for buffer in buffers]
            out[block] = _folded([o[block] for o in operands], leaves, parts, fold)


def _leaves(size: int) -> list[tuple[int, ...]]:
    """The butterfly's order of addition: as many leaves as the largest power of two, the first of them pairs."""
    pairs = size - (1 << (size.bit_length() - 1))
    return [(2 * i, 2 * i + 1) for i in range(pairs)] + [(i,) for i in range(2 * pairs, size)]


def _folded(operands: list[Array], leaves: list[tuple[int, ...]], parts: list[Array], fold: Any) -> Array:
    """The leaves folded in halves, in parts[0] unless there is nothing to fold."""
    if len(leaves) > 1:
        half = len(leaves) // 2
        left = _folded(operands, leaves[:half], parts, fold)
        fold(left, _folded(operands, leaves[half:], parts[1:], fold), out=parts[0])
        return parts[0]
    (leaf,) = leaves
    if len(leaf) == 1:
        return operands[leaf[0]]
    fold(operands[leaf[0]], operands[leaf[1]], out=parts[0])
    return parts[0]
