"""Workers of one host that update the same weights in shared memory, without locks.

Niu et al. 2011 (HOGWILD!, arXiv:1106.5730).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.comm import Transport, allgather, barrier, broadcast
from sparkdl.errors import ConfigError
from sparkdl.nn import Array
from sparkdl.simulate import Mode, SharedMemory
from sparkdl.strategies.free import FreeSteps
from sparkdl.strategies.peer import OWN, Peer, PeerSteps
from sparkdl.strategies.peers import PeerStrategy
from sparkdl.strategies.reducing import reducer_for
from sparkdl.strategies.words import Words
from sparkdl.train import TAIL, Part, Run, StepSums, apply_update

__all__ = ["Hogwild"]

PATH_BYTES = 4096


@dataclass(frozen=True)
class Hogwild(PeerStrategy):
    """Every worker reads the weights as they are, trains a minibatch, and adds what its optimizer makes of it.

    Only entries that the update changes are written. Two workers that write the same entry at once may lose one of the
    two additions; where gradients are sparse that is rare, and with disjoint ones the result is the serial one. Each
    worker has optimizer slots of its own. The minibatches of an epoch go to whoever is free. All workers must run on
    one host, as the tasks of one executor or of local[N] do.

    The history tells the staleness: by how many updates of others the weights had moved on between read and write.
    """

    def simulated(self, workers: int) -> Mode:
        """As `Strategy.simulated`."""
        return SharedMemory()

    def salvage(self, run: Run, words: Words) -> bool:
        """The weights are in the memory of whoever is left."""
        words.count(run)
        run.params[...] = words.arrays[words.furthest]["params"]
        for name in set(words.names()) - {"params"}:
            run.strategy_state[f"{OWN}{name}"] = words.rows(name)
        return True

    def steps(self, peer: Peer) -> PeerSteps:
        """As `PeerStrategy.steps`."""
        return _HogwildSteps(peer)


class _HogwildSteps(FreeSteps):
    """`weights` (n,) and `counts` (P,), the updates that each worker has made, lie in memory that all ranks map."""

    def __init__(self, peer: Peer) -> None:
        _check_one_host(peer.comm)
        super().__init__(peer)
        params, size = peer.run.params, peer.comm.size
        self._reducer = reducer_for("auto", peer)
        self._vec = np.empty(peer.task.model.layout.size + TAIL, params.dtype)
        at = -(-params.nbytes // 64) * 64
        memory = _shared_memory(peer.comm, at + 8 * size)
        self._weights: Array = memory[: params.nbytes].view(params.dtype)
        self._counts: Array = memory[at:].view(np.int64)
        self._staleness: list[int] = []
        self._take_own()
        if peer.comm.rank == 0:
            self._weights[...] = params
        barrier(peer.comm)

    def allreduce(self, vec: Array) -> None:
        self._reducer.allreduce(vec)

    def update(self, epoch: int, index: int) -> tuple[Part, StepSums]:
        peer, weights, started = self.peer, self._weights, time.perf_counter()
        seen = int(self._counts.sum())
        read: Array = weights.copy()
        peer.run.params[...] = read
        part = peer.worker.gradient(peer.run.params, epoch, index, self._vec)
        sums = apply_update(peer.task, peer.run, self._vec)
        change = peer.run.params
        change -= read
        self._staleness.append(int(self._counts.sum()) - seen)
        np.add(weights, change, out=weights, where=change != 0)
        self._counts[peer.comm.rank] += 1
        peer.spent_s["data"] += part.data_s
        peer.spent_s["compute"] += time.perf_counter() - started - part.data_s
        return part, sums

    def parameters(self) -> Array:
        """The weights, between two epochs."""
        barrier(self.peer.comm)
        self.peer.run.params[...] = self._weights
        barrier(self.peer.comm)  # nobody writes before all have read
        return self.peer.run.params

    def own_state(self) -> Mapping[str, Array]:
        return {f"opt/{name}": slot for name, slot in self.peer.run.opt_state.items()}

    def last_words(self) -> Mapping[str, Array]:
        return {"params": self._weights.copy(), **self.own_state()}

    def figures(self) -> dict[str, Any]:
        size, rank = self.peer.comm.size, self.peer.comm.rank
        table = np.zeros(2 * size)
        table[2 * rank : 2 * rank + 2] = sum(self._staleness), max(self._staleness, default=0)
        allgather(self.peer.comm, table, tuple(range(0, 2 * size + 1, 2)))
        counts = np.array([len(self._staleness)], np.float64)
        self.allreduce(counts)
        self._staleness = []
        mean, most = table[::2].sum() / max(counts[0], 1), table[1::2].max()
        return super().figures() | {"staleness": float(mean), "staleness_max": int(most)}

    def _take_own(self) -> None:
        peer, own = self.peer, self.peer.own
        for name, slot in peer.run.opt_state.items():
            if len(own.get(f"opt/{name}", ())) == peer.comm.size:
                slot[...] = own[f"opt/{name}"][peer.comm.rank]


def _check_one_host(comm: Transport) -> None:
    if len(set(comm.hosts)) > 1:
        raise ConfigError(
            f'strategy.name = "hogwild" shares memory among workers of one host; these run on {len(set(comm.hosts))}. '
            "Give one executor as many cores as there are workers, or take parameter_server, gossip or allreduce."
        )


def _shared_memory(comm: Transport, nbytes: int) -> Array:
    """Zeroed bytes (nbytes,) that all ranks of this host map; nothing is left behind once they have ended."""
    name = np.zeros(PATH_BYTES, np.uint8)
    if comm.rank == 0:
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        descriptor, path = tempfile.mkstemp(prefix="sparkdl-", dir=folder)
        os.truncate(descriptor, nbytes)
        os.close(descriptor)
        name[: len(os.fsencode(path))] = np.frombuffer(os.fsencode(path), np.uint8)
    broadcast(comm, name)
    path = os.fsdecode(bytes(name).rstrip(b"\0"))
    memory: Array = np.memmap(path, np.uint8, "r+", shape=(nbytes,))
    barrier(comm)
    if comm.rank == 0:
        Path(path).unlink()
    return memory.view(np.ndarray)
