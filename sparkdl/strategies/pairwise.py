"""Gossip without rounds: even ranks ask, odd ones answer from a thread of their own while they train."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from sparkdl.backends.base import Place
from sparkdl.comm import CommError, Transport
from sparkdl.comm.gossip import Bipartite, answer, ask, consensus_distance, say_goodbye
from sparkdl.comm.transport.metered import Metered
from sparkdl.nn import Array
from sparkdl.strategies.free import FreeSteps, Service
from sparkdl.strategies.peer import Peer
from sparkdl.strategies.reducing import reducer_for
from sparkdl.train import TAIL, Part, StepSums, apply_update

__all__ = ["PairwiseSteps"]


class PairwiseSteps(FreeSteps):
    """The gradient is taken at a copy of the weights; the update goes to what they have become meanwhile."""

    def __init__(self, period: int, pairs: Bipartite, peer: Peer) -> None:
        super().__init__(peer)
        run, rank, size = peer.run, peer.comm.rank, peer.comm.size
        self._period, self._pairs = period, pairs
        self._reducer = reducer_for("auto", peer)
        self._vec = np.empty(peer.task.model.layout.size + TAIL, run.params.dtype)
        self._lock = threading.Lock()
        self._asked = 0
        self._active, self._passive = pairs.active(rank), list(pairs.peers(rank, size))
        self._circle: Metered | None = None
        self._answering: Service | None = None
        if size > 1:
            peers = tuple(self._passive) if self._active else ()
            self._circle = Metered(peer.meet("pairs", [Place(rank, size, peers)])[0])
        if self._circle is not None and not self._active:
            self._answering = Service(self._answer, self._circle, "answers")
        self._sent = 0
        self._take_own()

    def allreduce(self, vec: Array) -> None:
        self._reducer.allreduce(vec)

    def update(self, epoch: int, index: int) -> tuple[Part, StepSums]:
        peer, started = self.peer, time.perf_counter()
        with self._lock:
            params = peer.run.params.copy()
        part = peer.worker.gradient(params, epoch, index, self._vec)
        with self._lock:
            sums = apply_update(peer.task, peer.run, self._vec)
        self._asked += 1
        exposed = self._ask_somebody() if self._asked % self._period == 0 else 0.0
        peer.spent_s["data"] += part.data_s
        peer.spent_s["exposed"] += exposed
        peer.spent_s["compute"] += time.perf_counter() - started - part.data_s - exposed
        return part, sums

    def parameters(self) -> Array:
        """The mean over the workers."""
        mean: Array = self.peer.run.params.copy()  # nobody asks while all ranks meet
        self.allreduce(mean)
        mean /= self.peer.comm.size
        return mean

    def own_state(self) -> Mapping[str, Array]:
        return {"params": self.peer.run.params} | {f"opt/{name}": a for name, a in self.peer.run.opt_state.items()}

    def last_words(self) -> Mapping[str, Array]:
        with self._lock:
            return {name: array.copy() for name, array in self.own_state().items()}

    def figures(self) -> dict[str, Any]:
        distance = consensus_distance(self.peer.comm, self.peer.run.params)
        sent = 0 if self._circle is None else self._circle.sent_bytes
        found = super().figures() | {"consensus_distance": distance, "sent_mb": (sent - self._sent) / 1e6}
        self._sent = sent
        return found

    def close(self, error: BaseException | None = None) -> None:
        if self._circle is not None and error is not None:
            self._circle.abort(f"{type(error).__name__}: {error}")
        if self._circle is not None and self._active:
            with suppress(CommError), self._circle:  # whoever has failed has told so
                for passive in self._passive:
                    say_goodbye(self._circle, passive)
        if self._answering is not None:
            self._answering.close()
        super().close(error)

    def _ask_somebody(self) -> float:
        """Average with a passive rank; the seconds that took."""
        if not self._active or not self._passive or self._circle is None:
            return 0.0
        started, turn = time.perf_counter(), self._asked // self._period
        passive = self._pairs.peer(turn, self.peer.comm.rank, self.peer.comm.size)
        assert passive is not None
        ask(self._circle, passive, self.peer.run.params, self._lock)
        return time.perf_counter() - started

    def _answer(self, t: Transport) -> None:
        """Answer active ranks until all of them have left."""
        here = list(self._passive)
        while here:
            rank = t.wait_any(here)
            assert rank is not None
            here.remove(rank)
            if answer(t, rank, self.peer.run.params, self._lock):
                here.append(rank)  # the one just served comes last

    def _take_own(self) -> None:
        """Go on from this rank's own weights; all from the mean where the number of ranks has changed."""
        peer, own = self.peer, self.peer.own
        if "params" not in own or len(own["params"]) != peer.comm.size:
            return
        peer.run.params[...] = own["params"][peer.comm.rank]
        for name, slot in peer.run.opt_state.items():
            slot[...] = own[f"opt/{name}"][peer.comm.rank]
