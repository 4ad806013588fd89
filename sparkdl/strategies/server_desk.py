"""The servers' end: one thread that takes pushes, answers pulls, and keeps a neighbour's part up to date."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from sparkdl.comm import CommError, Transport
from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.strategies.factors import FactorCodec
from sparkdl.strategies.server_post import TAG, Kind, Request
from sparkdl.strategies.server_shard import Applied, Contribution, Replica, Shard

__all__ = ["Desk", "Neighbours"]

SPARE_BYTES = 4096  # what a message may have beyond the numbers as they are


@dataclass
class Neighbours:
    """`after` keeps a copy of this server's part, and this server one, `replica`, of the part of `before`; ranks."""

    before: int
    after: int
    replica: Replica


class _Stop:
    """When to stop after a wish: at the first clock that nobody has begun, the same for all."""

    def __init__(self) -> None:
        self._begun, self._at = -1, -1

    def at(self, request: Request, clock: int) -> bool:
        if not request.begins:
            return False
        if request.wish:
            self.wish()
        if self.reached(clock):
            return True
        self._begun = max(self._begun, clock)
        return False

    def wish(self) -> None:
        if self._at < 0:
            self._at = self._begun + 1

    def reached(self, clock: int) -> bool:
        return 0 <= self._at <= clock


@dataclass
class _Pull:
    """A pull that waits: for the server's progress, then until the copy has all that the answer will hold."""

    request: Request
    until: int | None = None  # version


class Desk:
    """Serves the ranks 0..callers-1 of a circle until all have left: workers, and guests after them, who push nothing.

    Errors: CommError.

    With neighbours a pull is answered only once the copy has all that had been pushed when its turn came: whatever a
    worker knows of is on two hosts.
    """

    def __init__(
        self,
        callers: int,
        shard: Shard,
        codec: Compressor | FactorCodec,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._shard, self._codec, self._neighbours = shard, codec, neighbours
        self._callers = callers
        self._waiting: dict[int, _Pull] = {}
        self._stop = _Stop()
        self._copied = 0  # the version that the copy has
        if neighbours is not None:
            shard.made = []

    def serve(self, t: Transport) -> None:
        """Until all callers have left."""
        self._t = t
        here = list(range(self._callers))
        if self._neighbours is not None:
            here += sorted({self._neighbours.before, self._neighbours.after})
        header = np.empty(len(Request._fields), np.int64)
        while any(rank < self._callers for rank in here):
            rank = t.wait_any(here)
            assert rank is not None
            here.remove(rank)
            t.recv(rank, TAG, header)
            request = Request(*header.tolist())
            if request.kind != Kind.BYE:
                here.append(rank)  # the one just heard comes last
                self._hear(rank, request)
                self._answer_those_who_can()
        self._say_bye(here)

    def _hear(self, rank: int, request: Request) -> None:
        if request.kind == Kind.PUSH:
            self._shard.push(self._received(rank, request))
            self._pass_on()
        elif request.kind in (Kind.PULL, Kind.WATCH):
            self._waiting[rank] = _Pull(request)
            if request.kind == Kind.WATCH and request.wish:
                self._stop.wish()
        elif request.kind == Kind.SLOTS:
            slots = self._shard.part.slots
            for name in sorted(slots):
                self._t.isend(rank, TAG, slots[name].reshape(-1).copy())
        elif request.kind == Kind.COPY:
            self._follow(rank, request)
        elif request.kind == Kind.COPIED:
            self._copied = request.sequence

    def _answer_those_who_can(self) -> None:
        shard = self._shard
        for worker, pull in list(self._waiting.items()):
            wanted = pull.request
            stops = wanted.kind == Kind.WATCH and self._stop.reached(wanted.clock)
            if pull.until is None and (stops or shard.progress >= wanted.need):
                pull.until = shard.version if self._neighbours is not None else 0
            if pull.until is not None and self._copied >= pull.until:
                del self._waiting[worker]
                (self._tell if wanted.kind == Kind.WATCH else self._answer)(worker, wanted)

    def _answer(self, rank: int, request: Request) -> None:
        t, shard = self._t, self._shard
        stops = self._stop.at(request, max(request.clock, shard.closed))
        t.isend(rank, TAG, np.array([shard.progress, stops]))
        weights = shard.read(rank, request.clock) if rank < shard.workers else shard.weights()
        n = shard.part.params.size
        t.isend(rank, TAG, weights[:n])
        if weights.size > n:
            t.isend(rank, TAG, weights[n:])

    def _tell(self, rank: int, request: Request) -> None:
        """Answer a guest that only watches."""
        self._t.isend(rank, TAG, np.array([self._shard.progress, self._stop.reached(request.clock)]))
        self._t.isend(rank, TAG, self._shard.losses_until(request.need))

    def _pass_on(self) -> None:
        """Tell the neighbour that keeps the copy what was made of pushes."""
        if self._neighbours is None or self._shard.made is None:
            return
        made, self._shard.made = self._shard.made, []
        for version, step, factor, mean, buffers in made:
            header = Request(Kind.COPY, version, clock=step, need=int(mean.size > 0))
            for each in (header.array(), np.array([factor]), mean, buffers):
                self._t.isend(self._neighbours.after, TAG, each)

    def _follow(self, rank: int, request: Request) -> None:
        assert self._neighbours is not None
        t, replica = self._t, self._neighbours.replica
        if request.sequence != replica.version + 1:
            raise CommError(f"update {request.sequence} came after {replica.version}", rank=t.rank, peer=rank)
        t.recv(rank, TAG, factor := np.empty(1))
        t.recv(rank, TAG, mean := np.empty(replica.part.params.size if request.need else 0, replica.part.params.dtype))
        t.recv(rank, TAG, buffers := np.empty_like(replica.part.buffers))
        replica.follow(Applied(request.sequence, request.clock, float(factor[0]), mean, buffers))
        t.isend(rank, TAG, Request(Kind.COPIED, request.sequence).array())

    def _say_bye(self, here: list[int]) -> None:
        with suppress(CommError):  # a neighbour that has left meanwhile has told so
            for rank in here:
                self._t.isend(rank, TAG, Request(Kind.BYE).array())  # not waited for: both may be leaving

    def _received(self, rank: int, request: Request) -> Contribution:
        t, shard, codec = self._t, self._shard, self._codec
        params, buffers = shard.part.params, shard.part.buffers
        if codec == Uncompressed():
            t.recv(rank, TAG, vec := np.empty_like(params))
        else:
            if not 0 <= request.nbytes <= 2 * params.nbytes + SPARE_BYTES:
                raise CommError(f"rank {rank} announces a push of {request.nbytes} bytes", rank=t.rank, peer=rank)
            t.recv(rank, TAG, message := np.empty(request.nbytes, np.uint8))
            codec.add_into(vec := np.zeros_like(params), message)
        t.recv(rank, TAG, rest := np.empty(buffers.size + 3, buffers.dtype))
        weight, rows, loss = rest[-3:].tolist()
        return Contribution(rank, request.sequence, request.clock, vec, rest[:-3], weight, rows, loss)
