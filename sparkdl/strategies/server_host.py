"""One rank's share in the parameter servers: the part that it serves, if any, and its line to all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.backends.base import Place
from sparkdl.comm import CommError, allgather, broadcast
from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.comm.transport.among import Among
from sparkdl.errors import TrainingError
from sparkdl.nn import Array
from sparkdl.strategies.factors import Factors, at_rows
from sparkdl.strategies.free import Service
from sparkdl.strategies.peer import Peer
from sparkdl.strategies.reducing import MEMORY
from sparkdl.strategies.server_desk import Desk, Neighbours
from sparkdl.strategies.server_post import Answer, Servers
from sparkdl.strategies.server_shard import Damping, Figures, OnArrival, Part, Replica, Shard, Update, WholeClocks
from sparkdl.strategies.sharding import segments_within, slice_bounds
from sparkdl.strategies.team import Team
from sparkdl.train.update import rate_at

__all__ = ["PART", "WHOLE", "Post", "Settings"]

WHOLE = ("t",)  # slots that are no vectors over the parameters: the optimizer's count of updates
FIGURES = 5
PART = "part/"  # names of the servers' parts in last words


@dataclass(frozen=True)
class Settings:
    """A `ParameterServer` as its steps see it. quorum: contributions to an update of whole clocks, 0 without clocks.

    lead: by how many contributions a worker may be ahead of the slowest; None: of any number.
    """

    servers: int
    group: int
    spare: int
    factors: bool
    local: bool
    window: int
    quorum: int
    lead: int | None
    replicate: bool
    damping: Damping
    compressor: Compressor
    trace: str


class Post:
    """Takes this rank's places in the circle of P workers and m servers, the ranks P..P+m-1, of which rank P + k is a
    thread of worker k. Slots of the optimizer are with the servers, unless workers update. To servers a team is one
    worker: one of its ranks has a line to them. Ranks that do not train are their guests.
    """

    def __init__(self, settings: Settings, peer: Peer, team: Team) -> None:
        self._settings, self._peer, self._team = settings, peer, team
        layout, optimizer = peer.task.model.layout, peer.task.optimizer
        rank, size, m = peer.comm.rank, peer.comm.size, settings.servers
        whole = settings.compressor != Uncompressed()  # some compress matrices
        self._bounds = slice_bounds(optimizer, layout, m, whole)
        self.factors: Factors | None = None
        if settings.factors:
            self._bounds = at_rows(self._bounds, layout)
            self.factors = Factors(layout, self._bounds)
        self._parts = [slice(a, b) for a, b in pairwise(self._bounds)]
        self._segments = [segments_within(layout, part) for part in self._parts]
        ends = range(size, size + m)
        beside = tuple(ends) if settings.replicate else ()
        places = [Place(rank, size + m, tuple(ends) if team.calls else ())]
        line, *own = peer.meet("servers", places + ([Place(size + rank, size + m, beside)] if rank < m else []))
        circle = (*team.callers, *ends)
        line = Among(line, circle) if team.calls else line
        dtype = peer.run.params.dtype
        seed = peer.task.training.seed
        first = len(team.callers)
        self.servers = Servers(
            line, first, self._bounds, settings.compressor, self._segments, seed, dtype, self.factors
        )
        self._take_memories()
        self._like = {} if settings.local else {name: slot.dtype for name, slot in peer.run.opt_state.items()}
        self.shard: Shard | None = None
        self._neighbours: Neighbours | None = None
        self._service: Service | None = None
        if own:
            self.shard = self._shard(self._part(rank))
            if settings.replicate:
                before, after = (first + (rank + shift) % m for shift in (-1, 1))
                self._neighbours = Neighbours(before, after, Replica(self._part((rank - 1) % m)))
            codec = settings.compressor if self.factors is None else self.factors.codecs[rank]
            desk = Desk(first, self.shard, codec, self._neighbours)
            self._service = Service(desk.serve, Among(own[0], circle), "server")
        if not settings.local:
            peer.run.opt_state = {}
        self._sent = 0

    def push(self, vec: Array, clock: int, weight: float, rows: float, loss: float) -> None:
        """As `Servers.push`, where this rank speaks for its team."""
        if self._team.speaks:
            self.servers.push(vec, clock, weight, rows, loss)

    def pull(self, params: Array, clock: int, need: int, *, begins: bool, wish: bool = False) -> Answer:
        """As `Servers.pull`, for the whole team."""
        found = np.empty(2, np.int64)
        if self._team.calls:
            found[:] = self.servers.pull(params, clock, need, begins=begins, wish=wish)
        self._team.hand_on(found, params)
        return Answer(int(found[0]), bool(found[1]))

    def optimizer_state(self) -> Mapping[str, Array]:
        """The optimizer's whole state on rank 0."""
        state = self._peer.run.opt_state
        if self._settings.local and self._team.spare:  # that of the first who trains
            state = {name: slot.copy() for name, slot in sorted(state.items())}
            for slot in state.values():
                broadcast(self._peer.comm, slot.reshape(-1), root=self._team.spare)
        if self._settings.local or self._peer.comm.rank:
            return state
        return self.servers.slots(self._like, WHOLE)

    def own_state(self) -> Mapping[str, Array]:
        """What differs by rank: the memories of the compressor, and the slots of workers that update."""
        own = {f"{MEMORY}{k}/{name}": a for k, state in enumerate(self.servers.memories) for name, a in state.items()}
        if self._settings.local:
            own |= {f"opt/{name}": slot for name, slot in self._peer.run.opt_state.items()}
        return own

    def figures(self) -> dict[str, Any]:
        """Of the epoch: how stale the pushes were that counted, how many were dropped, what a worker has sent."""
        comm, sent = self._peer.comm, self.servers.meter.sent_bytes + self._team.sent_bytes
        found = Figures()
        if self.shard is not None:
            found, self.shard.figures = self.shard.figures, found
            self._write_trace(self.shard)
        table = np.zeros(comm.size * FIGURES)
        own = slice(comm.rank * FIGURES, (comm.rank + 1) * FIGURES)
        table[own] = found.counted, found.dropped, found.stale, found.stalest, sent - self._sent
        allgather(comm, table, tuple(range(0, len(table) + 1, FIGURES)))
        counted, dropped, stale, stalest, moved = table.reshape(comm.size, FIGURES).T
        figures = {
            "staleness": float(stale.sum() / max(counted.sum(), 1)),
            "staleness_max": int(stalest.max()),
            "sent_mb": float(moved[self._team.spare]) / 1e6,
        }
        if 0 < self._settings.quorum < self._team.count:
            figures["pushes_dropped"] = int(dropped[0])
        self._sent = sent
        return figures

    def last_words(self) -> dict[str, Array]:
        """The parts that this rank has, its own and the copy of another, with their versions; what differs by rank."""
        self.servers.meter.abort("another worker is lost")
        if self._service is not None:
            self._service.close()  # from here on nothing changes
        found = dict(self.own_state())
        if self.shard is not None:
            found |= _named(self._peer.comm.rank, self.shard.part, self.shard.version)
        if self._neighbours is not None:
            before = self._neighbours.before - len(self._team.callers)
            found |= _named(before, self._neighbours.replica.part, self._neighbours.replica.version)
        return found

    def close(self, error: BaseException | None) -> None:
        """Leave the servers, and end this rank's own once all have left."""
        line = self.servers.meter
        if error is not None:
            line.abort(f"{type(error).__name__}: {error}")
        self._team.close(error)
        with suppress(CommError), line:  # whoever has failed has told so
            if self._team.calls:
                self.servers.bye()
        if self._service is not None:
            self._service.close()
            if error is None:
                self._service.check()

    def _part(self, k: int) -> Part:
        """Part k as the run has it."""
        settings, run, part, n = self._settings, self._peer.run, self._parts[k], self._bounds[-1]
        params, buffers = run.params[part].copy(), run.params[n:].copy() if k == 0 else run.params[:0].copy()
        previous: Any = {} if settings.replicate and settings.quorum else None  # parts may be a clock apart
        if settings.local:
            return Part(params, buffers, {}, _add_to(params), previous)
        slots = {name: np.array(a if name in WHOLE else a[part]) for name, a in run.opt_state.items()}
        return Part(params, buffers, slots, self._step_of(params, slots, self._segments[k]), previous)

    def _shard(self, part: Part) -> Shard:
        settings, workers = self._settings, self._team.count
        trace: Any = [] if settings.trace else None
        if settings.quorum:
            return WholeClocks(part, workers, trace, quorum=settings.quorum)
        return OnArrival(part, workers, trace, damping=settings.damping, bounded=settings.lead is not None)

    def _step_of(self, params: Array, slots: dict[str, Array], segments: Any) -> Update:
        task, run, base = self._peer.task, self._peer.run, self._peer.run.step

        def update(grad: Array, factor: float, step: int) -> None:
            lr = rate_at(task, base + step, run.schedule_state)  # which changes between epochs, when nobody pushes
            task.optimizer.step(params, grad, slots, lr * factor, segments)

        return update

    def _take_memories(self) -> None:
        own, comm = self._peer.own, self._peer.comm
        for k, state in enumerate(self.servers.memories):
            for name, a in state.items():
                rows = own.get(f"{MEMORY}{k}/{name}")
                if rows is not None and rows.shape == (comm.size, *a.shape):
                    a[...] = rows[comm.rank]

    def _write_trace(self, shard: Shard) -> None:
        if shard.trace is None:
            return
        events, shard.trace = shard.trace, []
        path = Path(self._settings.trace) / f"server-{self._peer.comm.rank}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(event) + "\n" for event in events)
        except OSError as e:
            raise TrainingError(
                f"strategy.trace: {path} cannot be written: {e}. Name a folder that workers may."
            ) from e


def _add_to(params: Array) -> Update:
    def update(change: Array, factor: float, step: int) -> None:
        if factor != 1:
            change *= factor
        np.add(params, change, out=params)

    return update


def _named(k: int, part: Part, version: int) -> dict[str, Array]:
    """The arrays of part k in last words."""
    found = {f"{PART}{k}/version": np.array([version])}
    found |= {f"{PART}{k}/now/{name}": array for name, array in part.arrays().items()}
    return found | {f"{PART}{k}/before/{name}": array for name, array in (part.previous or {}).items()}
