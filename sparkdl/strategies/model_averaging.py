"""Local updates, and a meeting now and then: what is communicated are weights, once in `period` updates.

McMahan et al. 2017 (arXiv:1602.05629), Stich 2019 (arXiv:1805.09767), Lin et al. 2020 (post-local SGD,
arXiv:1808.07217); the outer rules and elastic averaging stand in `optim.outer`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sparkdl import simulate
from sparkdl.backends.base import Backend, Shards, Slots
from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.fields import COUNT, NATURAL
from sparkdl.nn import Array
from sparkdl.optim import Average, Elastic, OuterOptimizer
from sparkdl.strategies.base import Strategy
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.strategies.peers import PeerStrategy
from sparkdl.strategies.reducing import CompressedSum, check_algorithm, reducer_for
from sparkdl.strategies.rounds import OUTER, RoundSteps
from sparkdl.strategies.tree_aggregate import DRIVER_BYTES_PER_S, STAGE_S
from sparkdl.train import TAIL, Loop, Step, apply_update
from sparkdl.train.update import learning_rate

__all__ = ["ModelAveraging"]


@dataclass(frozen=True)
class ModelAveraging(PeerStrategy):
    """Every worker updates weights of its own; after `period` updates they meet, and `outer` says what becomes of them.

    Weights are averaged by the samples that each worker has trained on since the last meeting: with period 1 and plain
    SGD it is synchronous SGD. The result, what is validated and what is saved is that average at any moment.

    period: local updates between meetings. outer: average (local SGD), slowmo, bmuf, diloco. elastic: in place of
    outer, workers keep weights of their own, tied to a centre (EASGD; EAMSGD with momentum SGD). start_step: updates
    that are synchronous before the first local one (post-local SGD). optimizer_state: the local optimizers' slots are
    kept by each worker, averaged, or reset at a meeting. statistics: those of BatchNorm are averaged, or kept by each.
    compressor: of the differences that meet, unless elastic.

    through: "peers" meet in a barrier stage. "driver" makes a round of local updates one Spark job, whose weights are
    added up in a tree: it needs no slots at the same time, and Spark's own retries are its fault tolerance. Workers
    hold nothing between rounds, so that optimizer_state is "average" or "reset".
    """

    period: int = field(default=8, metadata=COUNT)
    outer: OuterOptimizer = field(default_factory=Average)
    elastic: Elastic | None = None
    optimizer_state: Literal["keep", "average", "reset"] = "keep"
    statistics: Literal["average", "keep"] = "average"
    start_step: int = field(default=0, metadata=NATURAL)
    compressor: Compressor = field(default_factory=Uncompressed)
    algorithm: str = "auto"
    through: Literal["peers", "driver"] = "peers"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm(self.algorithm)
        for name, known in (
            ("optimizer_state", ("keep", "average", "reset")),
            ("statistics", ("average", "keep")),
            ("through", ("peers", "driver")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}.")
        if self.through == "driver":
            kept = [n for n in ("optimizer_state", "statistics") if getattr(self, n) == "keep"]
            kept += ["elastic"] if self.elastic is not None else []
            kept += ["compressor"] if self.compressor != Uncompressed() else []
            if kept:
                raise ValueError(
                    f'{kept[0]}: between the rounds of through = "driver" workers hold nothing. Take "average" or '
                    '"reset", no elastic and no compressor; or through = "peers".'
                )

    def plan(self, workers: int, slots: Slots) -> tuple[Strategy, int]:
        """As `Strategy.plan`; rounds through the driver need no slots at the same time."""
        return (self, workers) if self.through == "driver" else super().plan(workers, slots)

    def train(self, loop: Loop, shards: Shards, backend: Backend) -> None:
        """As `Strategy.train`."""
        if self.through == "peers":
            super().train(loop, shards, backend)
            return
        with backend.share(loop.task) as task:
            loop.fit(RoundSteps(self, loop, shards, backend, task))

    def steps(self, peer: Peer) -> PeerSteps:
        """As `PeerStrategy.steps`."""
        return _AveragingSteps(self, peer)

    def simulated(self, workers: int) -> simulate.Mode:
        """As `Strategy.simulated`, after `start_step`."""
        if self.through == "driver":
            return simulate.ThroughDriver(STAGE_S, DRIVER_BYTES_PER_S, self.period, slots=True)
        averaged = self.optimizer_state == "average"
        return simulate.Averaging(self.period, self.algorithm, self.compressor, slots=averaged)


class _AveragingSteps(PeerSteps):
    """`shared` is where all stood after the last meeting, or the centre; `gained` this rank's weight since then."""

    def __init__(self, strategy: ModelAveraging, peer: Peer) -> None:
        super().__init__(peer)
        run, layout = peer.run, peer.task.model.layout
        self._strategy, self._m = strategy, layout.num_trainable
        self._reducer = reducer_for(strategy.algorithm, peer)
        self._vec = np.empty(layout.size + TAIL, run.params.dtype)
        self._compressed: CompressedSum | None = None
        if strategy.compressor != Uncompressed():
            self._compressed = CompressedSum(strategy.compressor, peer, self._reducer, self._m)
        state = run.strategy_state
        for name, slot in strategy.outer.init(run.params[: self._m]).items():
            state.setdefault(f"{OUTER}{name}", slot)
        self._outer = {n.removeprefix(OUTER): a for n, a in state.items() if n.startswith(OUTER)}
        self._shared = state.setdefault("shared", run.params.copy())
        self._gained = 0.0
        self._meetings, self._distance = 0, 0.0
        self._take_own()

    def allreduce(self, vec: Array) -> None:
        self._reducer.allreduce(vec)

    def step(self, epoch: int, index: int) -> Step:
        peer, run, vec, started = self.peer, self.peer.run, self._vec, time.perf_counter()
        part = peer.worker.gradient(run.params, epoch, index, vec)
        peer.spent_s["data"] += part.data_s
        wishes, exposed = 0.0, 0.0
        together = run.step < self._strategy.start_step
        if together:
            vec[-1] = peer.wish is not None
            wishes, exposed = self._timed(vec)
        else:
            self._gained += float(vec[-TAIL + 1])
        sums = apply_update(peer.task, run, vec)
        if together:
            self._shared[...] = run.params
        else:
            sums = sums._replace(rows=peer.task.rows_of(index))
            if run.step % self._strategy.period == 0:
                met = time.perf_counter()
                wishes = self._meet()
                exposed = time.perf_counter() - met
        peer.spent_s["exposed"] += exposed
        peer.spent_s["compute"] += time.perf_counter() - started - part.data_s - exposed
        peer.stop_if_wished(wishes)
        return Step(sums, part.metrics, part.profile)

    def parameters(self) -> Array:
        """The centre, or the average of the workers as a meeting at this moment would have it."""
        result: Array = self._shared.copy()
        share, _ = self._share()
        mean = (self.peer.run.params - result) * share
        self.allreduce(mean)
        at = slice(self._m, None) if self._strategy.elastic is not None else slice(None)
        result[at] += mean[at]
        return result

    def own_state(self) -> Mapping[str, Array]:
        own = {"params": self.peer.run.params, "gained": np.array([self._gained])}
        if self._strategy.optimizer_state == "keep":
            own |= {f"opt/{name}": slot for name, slot in self.peer.run.opt_state.items()}
        if self._compressed is not None:
            own |= self._compressed.own_state()
        return own

    def figures(self) -> dict[str, Any]:
        found = super().figures() | {"meetings": self._meetings, "distance": self._distance}
        self._meetings = 0
        return found | ({} if self._compressed is None else self._compressed.figures())

    def _take_own(self) -> None:
        """Go on from this rank's own weights and slots, unless the number of ranks has changed."""
        peer, own = self.peer, self.peer.own
        if "params" in own and len(own["params"]) == peer.comm.size:
            rank = peer.comm.rank
            peer.run.params[...] = own["params"][rank]
            self._gained = float(own["gained"][rank, 0])
            for name, slot in peer.run.opt_state.items():
                if f"opt/{name}" in own:
                    slot[...] = own[f"opt/{name}"][rank]
        elif self._strategy.elastic is None:
            self._shared[...] = peer.run.params

    def _share(self) -> tuple[float, float]:
        """This rank's share of the weight since the last meeting, and the wishes to stop."""
        tail = np.array([self._gained, self.peer.wish is not None])
        self.allreduce(tail)
        total, wishes = tail.tolist()
        return (self._gained / total if total else 0.0), wishes

    def _meet(self) -> float:
        """Bring the workers together, in place; the wishes to stop."""
        strategy, run, m, shared = self._strategy, self.peer.run, self._m, self._shared
        share, wishes = self._share()
        moved = run.params - shared
        self._distance = float(np.linalg.norm(moved[:m]))
        moved *= share
        if strategy.elastic is not None:
            pull = strategy.elastic.pull(run.params[:m], shared[:m], self.peer.comm.size)
            self.allreduce(pull)
            shared[:m] += pull
            self.allreduce(moved[m:])
        else:
            self._add_up(moved)
            moved[:m] += shared[:m]
            lr = learning_rate(self.peer.task, run)
            strategy.outer.step(shared[:m], moved[:m], self._outer, lr, self.peer.comm.size)
            run.params[:m] = shared[:m]
        shared[m:] += moved[m:]
        if strategy.statistics == "average":
            run.params[m:] = shared[m:]
        self._settle_slots(share)
        self._gained, self._meetings = 0.0, self._meetings + 1
        return wishes

    def _add_up(self, moved: Array) -> None:
        if self._compressed is None:
            self.allreduce(moved)
        else:
            self._compressed.add_up(moved[: self._m], self.peer.run.step)
            self.allreduce(moved[self._m :])

    def _settle_slots(self, share: float) -> None:
        slots = self.peer.run.opt_state
        if self._strategy.optimizer_state == "reset":
            for slot in slots.values():
                slot.fill(0)
        elif self._strategy.optimizer_state == "average":
            for name in sorted(name for name, slot in slots.items() if slot.dtype.kind == "f"):
                slots[name] *= share
                self.allreduce(slots[name])

    def _timed(self, vec: Array) -> tuple[float, float]:
        started = time.perf_counter()
        self.allreduce(vec)
        return float(vec[-1]), time.perf_counter() - started
