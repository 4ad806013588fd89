"""What a mode works with on each rank of a fit in which workers train among themselves, and what it must say.

Every rank runs the same loop over its own shard and holds all parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparkdl.comm import Transport, allgather, broadcast
from sparkdl.nn import Array
from sparkdl.strategies.circle import Meet
from sparkdl.train import Run, ShardWorker, Steps, Task

__all__ = ["OWN", "SPENT", "Peer", "PeerSteps"]

OWN = "own/"  # names of what differs between ranks, in a mode's state
SPENT = ("data", "compute", "exposed")  # what a rank's time is split into


@dataclass
class Peer:
    """What the steps of a mode work with on one rank.

    `wish` is the driver's reason to stop, once rank 0 knows it. `own` holds what `PeerSteps.own_state` of all ranks was
    before a relaunch, by name, one row a rank (P, ...); the number of ranks may have changed since. `meet` takes places
    in further circles. After every_steps updates all ranks give up their state together, if that is set.
    """

    task: Task
    run: Run
    comm: Transport
    worker: ShardWorker
    meet: Meet
    every_steps: int | None = None
    wish: str | None = None
    own: Mapping[str, Array] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))

    def stop_if_wished(self, wishes: float) -> None:
        """After a step in which all ranks added up their wishes: all of them stop, or none."""
        if wishes:
            self.run.stop(self.wish or "the driver asked for it")


class PeerSteps(Steps):
    """How a mode makes its steps on one rank, and how figures of all ranks come together."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    @abstractmethod
    def allreduce(self, vec: Array) -> None:
        """Sum vec (n,) over all ranks, in place."""

    def close(self, error: BaseException | None = None) -> None:  # few modes hold more than memory
        """Release threads and further circles. After an error those who wait for this rank there must hear of it."""

    def optimizer_state(self) -> Mapping[str, Array]:
        """The optimizer's whole state on rank 0; all ranks call it together."""
        return self.peer.run.opt_state

    def parameters(self) -> Array:
        """What the fit would return at this moment, on all ranks; they call it together."""
        return self.peer.run.params

    def own_state(self) -> Mapping[str, Array]:
        """Arrays in which ranks differ, and which a relaunch must know."""
        return {}

    def mode_state(self) -> Mapping[str, Any]:
        """What a relaunch must know of the mode, on rank 0; all ranks call it together."""
        rows = {f"{OWN}{name}": _gathered(self.peer.comm, a) for name, a in sorted(self.own_state().items())}
        return self.peer.run.strategy_state | rows

    def last_words(self) -> Mapping[str, Array] | None:
        """What this rank can save of the fit when another is lost, for `PeerStrategy.salvage`; the others are gone."""
        return None

    def totals(self, sums: Array) -> Array:
        total = sums.copy()
        self.allreduce(total)
        return total

    def evaluate(self, params: Array) -> Array:
        sums = self.peer.worker.evaluate(self.parameters()).metrics
        self.allreduce(sums)
        return sums

    def figures(self) -> dict[str, Any]:
        """Seconds of the epoch by rank. Communication is what even the slowest rank spent on it; others wait longer."""
        peer, size = self.peer, self.peer.comm.size
        table = np.zeros(size * len(SPENT))
        at = slice(peer.comm.rank * len(SPENT), (peer.comm.rank + 1) * len(SPENT))
        table[at] = list(peer.spent_s.values())
        peer.spent_s = dict.fromkeys(SPENT, 0.0)
        allgather(peer.comm, table, tuple(range(0, len(table) + 1, len(SPENT))))
        data, compute, exposed = table.reshape(size, len(SPENT)).T
        least = float(exposed.min())
        return {
            "data_s": data.tolist(),
            "compute_s": compute.tolist(),
            "waiting_s": (exposed - least).tolist(),
            "communication_s": least,
            "slowest_rank": int(np.argmax(data + compute)),
        }

    def agree(self) -> None:
        flag = np.array([self.peer.wish is not None], np.uint8)
        broadcast(self.peer.comm, flag)
        self.peer.stop_if_wished(float(flag[0]))


def _gathered(comm: Transport, own: Array) -> Array:
    """The arrays of all ranks, of one shape, as rows on rank 0; elsewhere what this rank gave."""
    flat = np.ascontiguousarray(own).reshape(-1)
    if comm.rank:
        comm.isend(0, 0, flat).wait()
        return own
    rows = np.empty((comm.size, flat.size), flat.dtype)
    rows[0] = flat
    for rank in range(1, comm.size):
        comm.recv(rank, 0, rows[rank])
    return rows.reshape(comm.size, *own.shape)
