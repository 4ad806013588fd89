"""Decentralised training: every worker has weights of its own and mixes them with a few neighbours after each update.

Lian et al. 2017 (D-PSGD, arXiv:1705.09056), Assran et al. 2019 (stochastic gradient push, arXiv:1811.10792), Koloskova
et al. 2019 (compressed: CHOCO, arXiv:1902.00340).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

import numpy as np

from sparkdl import simulate
from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.comm.gossip import (
    Bipartite,
    OnePeerExponential,
    Topology,
    check_topology,
    compressed_mix,
    compressed_mix_init,
    consensus_distance,
    mix,
    push_sum_mix,
)
from sparkdl.comm.transport.metered import Metered
from sparkdl.errors import ConfigError
from sparkdl.fields import COUNT, NATURAL, Interval
from sparkdl.nn import Array
from sparkdl.strategies.pairwise import PairwiseSteps
from sparkdl.strategies.peer import OWN, Peer, PeerSteps
from sparkdl.strategies.peers import PeerStrategy
from sparkdl.strategies.reducing import MEMORY, reducer_for
from sparkdl.strategies.words import Words
from sparkdl.train import TAIL, Run, Step, Task, apply_update

__all__ = ["Gossip"]

LOOK_AHEAD = 64  # steps of a changing topology that are checked before the launch


@dataclass(frozen=True)
class Gossip(PeerStrategy):
    """After every `period` local updates each worker replaces its weights by an average over its neighbours.

    topology: who the neighbours are (`comm.gossip`). order: "adapt_then_combine" updates, then mixes;
    "combine_then_adapt" takes the gradient, mixes, then updates: communication does not need the gradient. push_sum:
    for graphs in which a worker does not receive as much as it sends; what needs it says so. compressor: changes travel
    compressed, by public copies that neighbours follow, `rate` of the way (static topologies). The optimizer's slots
    stay with their worker.

    asynchronous: there are no rounds. After `period` local updates an even rank swaps weights with an odd one, drawn by
    lot with `seed`, and both go on from the average; nobody waits for anyone else (Lian et al. 2018, AD-PSGD,
    arXiv:1710.06952). The minibatches of an epoch go to whoever is free. topology, order, push_sum and compressor play
    no part.

    When a worker is lost, the others go on with what they have; one in its place, or fewer of them, begins at their
    mean.

    The result is the mean of all workers. The history tells the consensus distance, the root mean square over the
    workers of |x_i - mean|. A wish to stop is heard of every `listen` updates and at the end of an epoch.
    """

    topology: Topology = field(default_factory=OnePeerExponential)
    order: Literal["adapt_then_combine", "combine_then_adapt"] = "adapt_then_combine"
    push_sum: bool = False
    period: int = field(default=1, metadata=COUNT)
    compressor: Compressor = field(default_factory=Uncompressed)
    rate: float = field(default=1.0, metadata={"within": Interval(0, 1, "(]")})
    listen: int = field(default=16, metadata=COUNT)
    asynchronous: bool = False
    seed: int = field(default=0, metadata=NATURAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("adapt_then_combine", "combine_then_adapt")
        if self.order not in known:
            raise ValueError(f"order must be one of {', '.join(known)}; got {self.order!r}.")
        if self.compressor != Uncompressed() and (self.push_sum or not self.topology.static):
            raise ValueError(
                f"compressor needs neighbours that stay the same, and no push_sum; got {self.topology}, "
                f"push_sum={self.push_sum}. Take ring, torus, exponential, star or full."
            )

        rounds = [n for n in ("topology", "order", "push_sum", "compressor") if getattr(self, n) != _default(n)]
        if self.asynchronous and rounds:
            raise ValueError(f"asynchronous gossip has no {rounds[0]}: pairs are drawn by lot. Leave it out.")

    def check(self, task: Task, workers: int) -> None:
        """Errors: ConfigError for a graph that does not suit the number of workers."""
        if self.asynchronous:
            return
        steps = range(1 if self.topology.static else LOOK_AHEAD)
        try:
            check_topology(self.topology, workers, steps, "column" if self.push_sum else "metropolis")
        except ValueError as e:
            raise ConfigError(f"strategy.topology: {e}") from e

    def simulated(self, workers: int) -> simulate.Mode:
        """As `Strategy.simulated`."""
        if self.asynchronous:
            return simulate.AsyncGossip(Bipartite(self.seed), self.period)
        return simulate.Gossip(self.topology, self.period, self.compressor, self.listen)

    def salvage(self, run: Run, words: Words) -> bool:
        """The others go on with their weights; who takes the place of the lost one begins at their mean."""
        words.count(run)
        for name in words.names():
            run.strategy_state[f"{OWN}{name}"] = words.rows(name)
        run.params[...] = run.strategy_state[f"{OWN}params"].mean(axis=0)
        return True

    def steps(self, peer: Peer) -> PeerSteps:
        """As `PeerStrategy.steps`."""
        return PairwiseSteps(self.period, Bipartite(self.seed), peer) if self.asynchronous else _GossipSteps(self, peer)


def _default(name: str) -> Any:
    """What a field of Gossip is unless it is given."""
    found = Gossip.__dataclass_fields__[name]
    return found.default if found.default_factory is MISSING else found.default_factory()


class _GossipSteps(PeerSteps):
    """With push-sum run.params are z = x / w, at which the gradient is taken; the update moves x."""

    def __init__(self, strategy: Gossip, peer: Peer) -> None:
        super().__init__(peer)
        run, layout = peer.run, peer.task.model.layout
        self._strategy = strategy
        self._meter = Metered(peer.comm)
        self._reducer = reducer_for("auto", peer)
        self._vec = np.empty(layout.size + TAIL, run.params.dtype)
        self._weight = 1.0
        self._memory: dict[str, Array] = {}
        if strategy.compressor != Uncompressed():
            segments = layout.trainable_segments
            self._memory = compressed_mix_init(strategy.compressor, run.params, segments)
        self._sent = 0
        self._take_own()

    def allreduce(self, vec: Array) -> None:
        self._reducer.allreduce(vec)

    def step(self, epoch: int, index: int) -> Step:
        peer, run, strategy, started = self.peer, self.peer.run, self._strategy, time.perf_counter()
        part = peer.worker.gradient(run.params, epoch, index, self._vec)
        due = (run.step + 1) % strategy.period == 0
        exposed = 0.0
        if due and strategy.order == "combine_then_adapt":
            exposed += self._mix()
        run.params *= self._weight  # x = w z
        sums = apply_update(peer.task, run, self._vec)
        run.params /= self._weight
        if due and strategy.order == "adapt_then_combine":
            exposed += self._mix()
        if run.step % strategy.listen == 0:
            met = time.perf_counter()
            self.agree()
            exposed += time.perf_counter() - met
        peer.spent_s["data"] += part.data_s
        peer.spent_s["exposed"] += exposed
        peer.spent_s["compute"] += time.perf_counter() - started - part.data_s - exposed
        return Step(sums._replace(rows=peer.task.rows_of(index)), part.metrics, part.profile)

    def parameters(self) -> Array:
        """The mean over the workers; of push-sum, of what all of them hold."""
        mean: Array = self.peer.run.params * self._weight
        self.allreduce(mean)
        mean /= self.peer.comm.size
        return mean

    def own_state(self) -> Mapping[str, Array]:
        own = {"params": self.peer.run.params, "weight": np.array([self._weight])}
        own |= {f"opt/{name}": slot for name, slot in self.peer.run.opt_state.items()}
        return own | {f"{MEMORY}{name}": a for name, a in self._memory.items()}

    def last_words(self) -> Mapping[str, Array]:
        return self.own_state()

    def figures(self) -> dict[str, Any]:
        distance = consensus_distance(self.peer.comm, self.peer.run.params)
        sent, self._sent = self._meter.sent_bytes - self._sent, self._meter.sent_bytes
        return super().figures() | {"consensus_distance": distance, "sent_mb": sent / 1e6}

    def _take_own(self) -> None:
        """Go on from this rank's own weights; all from the mean where the number of ranks has changed."""
        peer, own = self.peer, self.peer.own
        if "params" not in own or len(own["params"]) != peer.comm.size:
            return
        rank = peer.comm.rank
        peer.run.params[...] = own["params"][rank]
        self._weight = float(own["weight"][rank, 0])
        for prefix, slots in (("opt/", peer.run.opt_state), (MEMORY, self._memory)):
            for name, slot in slots.items():
                if f"{prefix}{name}" in own:
                    slot[...] = own[f"{prefix}{name}"][rank]

    def _mix(self) -> float:
        """Mix this rank's weights with its neighbours', in place; the seconds it took."""
        strategy, run, started = self._strategy, self.peer.run, time.perf_counter()
        turn = run.step // strategy.period  # the same on all ranks, before an update as after it
        if strategy.push_sum:
            run.params *= self._weight
            self._weight = push_sum_mix(self._meter, strategy.topology, run.params, self._weight, turn)
            run.params /= self._weight
        elif self._memory:
            seed = self.peer.task.training.seed
            state, rate = self._memory, strategy.rate
            compressed_mix(self._meter, strategy.topology, strategy.compressor, run.params, state, seed, turn, rate)
        else:
            mix(self._meter, strategy.topology, run.params, turn)
        return time.perf_counter() - started
