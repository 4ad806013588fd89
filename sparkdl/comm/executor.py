"""Carries out a schedule over a transport: full duplex, no needless wait, microseconds of Python per message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sparkdl.comm.schedules.base import Recv, Schedule, Send, Step, planned
from sparkdl.comm.transport.base import Array, CommError, Op, Pending, Transport

__all__ = ["REDUCERS", "Act", "Instruction", "Program", "compiled", "execute"]

REDUCERS = {"sum": np.add, "max": np.maximum}
MAX_UNDERWAY = 8  # sends left unfinished behind a step; enough to keep a link full, and it bounds what is queued
SCRATCH_BYTES = 1 << 22  # kept for the next call; longer scratch is returned


class Act(Enum):
    """What one instruction does."""

    SEND = "send"
    COPY = "copy"
    REDUCE = "reduce"
    STAGE = "stage"  # receive into scratch
    MERGE_HIGHER = "merge higher"  # fold scratch in as the second operand: it came from a higher rank
    MERGE_LOWER = "merge lower"  # as the first
    WAIT = "wait"  # until an earlier send is complete


class Instruction(NamedTuple):
    """Elements [start, stop) and the peer they concern; `extra` is an offset in scratch, or the number of a send."""

    act: Act
    peer: int
    start: int
    stop: int
    extra: int


class Program(NamedTuple):
    """What one rank carries out, and how many elements of scratch it needs."""

    instructions: tuple[Instruction, ...]
    scratch: int


@lru_cache(maxsize=128)
def compiled(schedule: Schedule, rank: int, size: int, count: int, segment: int) -> Program:
    """The program of one rank.

    A send is waited for only where its slice is about to be overwritten, where too many are under way, or at the end: a
    slow neighbour then delays a rank only when the rank needs what that neighbour has.
    """
    code = tuple(_Compiler().run(planned(schedule, rank, size, count, segment), rank))
    return Program(code, max((i.extra + i.stop - i.start for i in code if i.act is Act.STAGE), default=0))


class _Compiler:
    def __init__(self) -> None:
        self.sends = 0
        self.underway: dict[int, Send] = {}

    def run(self, steps: tuple[Step, ...], rank: int) -> Iterator[Instruction]:
        for step in steps:
            for number in list(self.underway)[: max(0, len(self.underway) - MAX_UNDERWAY)]:
                yield self._wait(number)
            for send in step.sends:
                self.underway[self.sends] = send
                self.sends += 1
                yield Instruction(Act.SEND, *send, 0)
            yield from self._receive(step, rank)
        for number in list(self.underway):
            yield self._wait(number)

    def _receive(self, step: Step, rank: int) -> Iterator[Instruction]:
        merges, at = [], 0
        for recv in step.recvs:
            if recv.how == "merge":
                yield Instruction(Act.STAGE, *recv[:3], at)
                merges.append((recv, at))
                at += recv.stop - recv.start
            else:
                yield from self._free(recv)
                yield Instruction(Act.COPY if recv.how == "copy" else Act.REDUCE, *recv[:3], 0)
        for recv, at in merges:
            yield from self._free(recv)
            yield Instruction(Act.MERGE_LOWER if recv.peer < rank else Act.MERGE_HIGHER, *recv[:3], at)

    def _free(self, recv: Recv) -> Iterator[Instruction]:
        """Wait for the sends out of what `recv` is about to overwrite."""
        for number, send in list(self.underway.items()):
            if send.start < recv.stop and recv.start < send.stop:
                yield self._wait(number)

    def _wait(self, number: int) -> Instruction:
        return Instruction(Act.WAIT, *self.underway.pop(number), number)


class _Scratch(threading.local):
    """One growing buffer per thread, so that a step in a training loop allocates nothing."""

    def __init__(self) -> None:
        self.block = np.empty(0, np.uint8)

    def take(self, count: int, dtype: np.dtype[Any]) -> Array:
        nbytes = count * dtype.itemsize
        if nbytes > SCRATCH_BYTES:
            return np.empty(count, dtype)
        if nbytes > self.block.size:
            self.block = np.empty(nbytes, np.uint8)
        return self.block[:nbytes].view(dtype)


_scratch = _Scratch()


def execute(t: Transport, program: Program, vec: Array, op: Op = "sum", tag: int = 0) -> None:
    """Run `program`, compiled for this rank and for vec (count,), in place. A CommError gets a note saying where."""
    sends: list[Pending] = []
    scratch = _scratch.take(program.scratch, vec.dtype)
    try:
        for act, peer, a, b, extra in program.instructions:
            if act is Act.SEND:
                sends.append(t.isend(peer, tag, vec[a:b]))
            elif act is Act.REDUCE:
                t.recv_reduce(peer, tag, vec[a:b], op)
            elif act is Act.COPY:
                t.recv(peer, tag, vec[a:b])
            elif act is Act.WAIT:
                sends[extra].wait()
            elif act is Act.STAGE:
                t.recv(peer, tag, scratch[extra : extra + b - a])
            else:
                own, other = vec[a:b], scratch[extra : extra + b - a]
                first, second = (own, other) if act is Act.MERGE_HIGHER else (other, own)
                REDUCERS[op](first, second, out=own)
    except CommError as error:
        error.add_note(f"rank {t.rank}: to {act.value} elements {a} to {b} of {vec.size}, with rank {peer}, failed")
        raise
