"""What workers and parameter servers say to each other, and the workers' end of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparkdl.comm import Transport
from sparkdl.comm.compress import Compressor, Uncompressed, generator_for
from sparkdl.comm.compress.memory import State
from sparkdl.comm.transport.metered import Metered
from sparkdl.nn import Array
from sparkdl.optim import Segment
from sparkdl.strategies.factors import Factors

__all__ = ["TAG", "Answer", "Kind", "Request", "Servers"]

TAG = 0


class Kind(IntEnum):
    """What a worker wants of a server."""

    PUSH = 0
    PULL = 1
    SLOTS = 2
    BYE = 3
    COPY = 4  # between servers: an update that was made, and that the copy has it
    COPIED = 5
    WATCH = 6


class Request(NamedTuple):
    """Header of all that a worker, a guest, or another server, says; int64 on the wire.

    clock: pushes that the worker has made. need: the progress of the server that the answer waits for. begins: work
    follows the pull. wish: the driver wishes to stop. nbytes: of a compressed push.
    """

    kind: int
    sequence: int = 0
    clock: int = 0
    need: int = 0
    begins: int = 0
    wish: int = 0
    nbytes: int = 0

    def array(self) -> Array:
        return np.array(self, np.int64)


class Answer(NamedTuple):
    """Before the weights: how far the server has come, and whether the worker is to stop at this clock."""

    progress: int
    stop: bool


class Servers:
    """A line to all servers, the ranks of the circle from `first` on.

    `bounds` cut the trainable entries; the first server has the buffers too. Pushes are compressed, each server's with
    a memory of its own, or hold what `factors` has; weights come as they are.
    """

    def __init__(
        self,
        transport: Transport,
        first: int,
        bounds: Sequence[int],
        compressor: Compressor,
        segments: Sequence[Sequence[Segment]],
        seed: int,
        dtype: np.dtype[np.floating],
        factors: Factors | None = None,
    ) -> None:
        self.meter = Metered(transport)
        self._ranks = range(first, first + len(bounds) - 1)
        self._parts = [slice(a, b) for a, b in pairwise(bounds)]
        self._n, self._compressor, self._seed = bounds[-1], compressor, seed
        self._plain, self._factors = compressor == Uncompressed() and factors is None, factors
        self.memories: list[State] = (
            []
            if compressor == Uncompressed()
            else [
                compressor.init(part.stop - part.start, dtype, own)
                for part, own in zip(self._parts, segments, strict=True)
            ]
        )
        self._sequence = 0

    def push(self, vec: Array, clock: int, weight: float, rows: float, loss: float) -> None:
        """Send [trainable | buffers] sums (n,) to the servers; vec is free again when it returns."""
        self._sequence += 1
        pending = []
        for k, (rank, part) in enumerate(zip(self._ranks, self._parts, strict=True)):
            body = vec[part] if self._plain else self._message(k, vec[part])
            rest = np.append(vec[self._n :] if k == 0 else vec[:0], np.array([weight, rows, loss], vec.dtype))
            header = Request(Kind.PUSH, self._sequence, clock, nbytes=0 if self._plain else body.nbytes)
            pending += [self.meter.isend(rank, TAG, each) for each in (header.array(), body, rest)]
        for each in pending:
            each.wait()

    def pull(self, params: Array, clock: int, need: int, *, begins: bool, wish: bool = False) -> Answer:
        """Fill params [trainable | buffers] once every server's progress is at least `need`; the first one's answer."""
        request = Request(Kind.PULL, clock=clock, need=need, begins=begins, wish=wish).array()
        pending = [self.meter.isend(rank, TAG, request) for rank in self._ranks]
        answers = []
        for k, (rank, part) in enumerate(zip(self._ranks, self._parts, strict=True)):
            self.meter.recv(rank, TAG, found := np.empty(2, np.int64))
            answers.append(Answer(int(found[0]), bool(found[1])))
            self.meter.recv(rank, TAG, params[part])
            if k == 0 and params.size > self._n:
                self.meter.recv(rank, TAG, params[self._n :])
        for each in pending:
            each.wait()
        return answers[0]

    def watch(self, clock: int, need: int, wish: bool) -> tuple[Answer, Array]:
        """Wait until the first server's progress is `need`, or all are to stop at `clock`.

        With its answer come sums (2,) over the pushes until `need`, or so far: of losses, of weights.
        """
        rank = self._ranks[0]
        self.meter.isend(rank, TAG, Request(Kind.WATCH, clock=clock, need=need, wish=wish).array()).wait()
        self.meter.recv(rank, TAG, found := np.empty(2, np.int64))
        self.meter.recv(rank, TAG, losses := np.empty(2))
        return Answer(int(found[0]), bool(found[1])), losses

    def slots(self, like: Mapping[str, np.dtype[np.generic]], whole: Sequence[str]) -> dict[str, Array]:
        """The optimizer's slots of all servers put together; those in `whole` are the same on all."""
        found: dict[str, list[Array]] = {name: [] for name in like}
        for rank, part in zip(self._ranks, self._parts, strict=True):
            self.meter.isend(rank, TAG, Request(Kind.SLOTS).array()).wait()
            for name in sorted(like):
                size = 1 if name in whole else part.stop - part.start
                self.meter.recv(rank, TAG, slot := np.empty(size, like[name]))
                found[name].append(slot)
        return {name: parts[0] if name in whole else np.concatenate(parts) for name, parts in found.items()}

    def bye(self) -> None:
        """Tell all servers that this worker has left."""
        for rank in self._ranks:
            self.meter.isend(rank, TAG, Request(Kind.BYE).array()).wait()

    def _message(self, k: int, vec: Array) -> Array:
        if self._factors is not None:
            return self._factors.message(k, vec)
        rng = generator_for(self._compressor, self._seed, self._sequence, self.meter.rank + k * self.meter.size)
        return self._compressor.encode(vec, self.memories[k], rng)
