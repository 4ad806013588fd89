"""How the ranks of a mode add vectors up: by a chosen algorithm, and where asked for by compressed messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.comm import AllReducer
from sparkdl.comm.chooser import Choice
from sparkdl.comm.collectives import ALGORITHMS
from sparkdl.comm.compress import Compressor, compressed_allreduce
from sparkdl.comm.transport.inproc import InprocTransport
from sparkdl.nn import Array
from sparkdl.strategies.peer import Peer

__all__ = ["MEMORY", "NAMES", "CompressedSum", "check_algorithm", "reducer_for"]

NAMES = ("auto", "fastest", *ALGORITHMS, "hierarchical", "hierarchical_sliced")
BUDGET_S = 0.3  # of the race between algorithms
MEMORY = "compress/"  # names of a compressor's state among what differs between ranks


def check_algorithm(name: str) -> None:
    """Raise ValueError unless `reducer_for` knows the name."""
    if name not in NAMES:
        raise ValueError(f"algorithm must be one of {', '.join(NAMES)}; got {name!r}.")


def reducer_for(name: str, peer: Peer) -> AllReducer:
    """The named algorithm, or a choice among several ("auto", "fastest"), which stays what it was over a relaunch."""
    if name == "auto":
        budget_s = 0.0 if isinstance(peer.comm, InprocTransport) else BUDGET_S  # threads of one process need no race
        return AllReducer(peer.comm, budget_s=budget_s, reproducible=True)
    if name != "fastest":
        return AllReducer(peer.comm, algorithm=name)
    known = peer.run.strategy_state.get("table")
    reducer = AllReducer(peer.comm, table=known and [Choice(*row) for row in known])
    peer.run.strategy_state["table"] = [list(choice) for choice in reducer.table]
    return reducer


class CompressedSum:
    """Sums of vectors (size,) over all ranks by compressed messages.

    What has not been sent is this rank's own state. After a relaunch with another number of ranks, rank 0 adds what all
    of them had not sent to its next vector: nothing of it is lost.
    """

    def __init__(self, compressor: Compressor, peer: Peer, reducer: AllReducer, size: int) -> None:
        self._compressor, self._peer, self._reducer = compressor, peer, reducer
        layout, dtype = peer.task.model.layout, peer.run.params.dtype
        segments = [s for s in layout.trainable_segments if s.stop <= size]
        self._state = compressor.init(size, dtype, segments)
        self._owed = np.zeros(0, dtype)
        self._sent = self._dense = 0
        rows = {n.removeprefix(MEMORY): a for n, a in peer.own.items() if n.startswith(MEMORY)}
        if rows and all(len(a) == peer.comm.size for a in rows.values()):
            for name, row in rows.items():
                self._state[name][...] = row[peer.comm.rank]
        elif rows and peer.comm.rank == 0:
            self._owed = np.zeros(size, dtype)
            for rank in range(len(next(iter(rows.values())))):
                compressor.memory.flush(self._owed, {name: np.array(a[rank]) for name, a in rows.items()})

    def add_up(self, vec: Array, step: int) -> None:
        """Sum vec over all ranks, in place; step sets the random numbers of this sum apart."""
        if self._owed.size:
            vec += self._owed
            self._owed = self._owed[:0]
        traffic = compressed_allreduce(
            self._peer.comm, self._compressor, vec, self._state, self._peer.task.training.seed, step, 0, self._reducer
        )
        self._sent += traffic.sent
        self._dense += traffic.dense

    def own_state(self) -> Mapping[str, Array]:
        """What a relaunch must know."""
        return {f"{MEMORY}{name}": a for name, a in self._state.items()}

    def figures(self) -> dict[str, Any]:
        """Of the epoch: megabytes that this rank sent, and their ratio to what a ring would have sent."""
        figures = {"sent_mb": self._sent / 1e6, "sent_ratio": self._sent / self._dense if self._dense else 1.0}
        self._sent = self._dense = 0
        return figures
