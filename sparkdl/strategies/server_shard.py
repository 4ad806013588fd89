"""What one parameter server holds, and what becomes of the contributions that reach it. No messages, no threads.

Li et al. 2014 (parameter server, OSDI), Ho et al. 2013 (stale synchronous parallel, NeurIPS), Dean et al. 2012
(Downpour, NeurIPS), Chen et al. 2016 (backup workers, arXiv:1604.00981), Jiang et al. 2017 (DynSGD, SIGMOD).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from sparkdl.nn import Array

__all__ = [
    "REMEMBERED",
    "Applied",
    "Contribution",
    "Damping",
    "Event",
    "Figures",
    "OnArrival",
    "Part",
    "Replica",
    "Shard",
    "Update",
    "WholeClocks",
]

REMEMBERED = 1024  # clocks whose losses are known to who asks late

Damping = Literal["staleness", "workers", "none"]
Event = dict[str, Any]
Update = Callable[[Array, float, int], None]
"""update(mean, factor, step): change the part's parameters, `factor` of the way, with the learning rate of `step`."""


class Contribution(NamedTuple):
    """What a worker pushes to one server.

    `vec` is weight x the mean gradient, or change, of this part; `buffers` rows x their next value, on the server that
    has them; `loss` a sum. `sequence` numbers a worker's pushes, from 1; `clock` those that it had made before.
    """

    worker: int
    sequence: int
    clock: int
    vec: Array
    buffers: Array
    weight: float
    rows: float
    loss: float = 0.0


class Applied(NamedTuple):
    """An update as it was made, for whoever keeps a copy: `mean` is empty where it changed nothing, `buffers` too."""

    version: int
    step: int
    factor: float
    mean: Array
    buffers: Array


@dataclass
class Figures:
    """Of an epoch: pushes that counted, those that came too late, and by how many updates the others were stale."""

    counted: int = 0
    dropped: int = 0
    stale: int = 0
    stalest: int = 0


@dataclass
class Part:
    """A part of the weights with its optimizer's slots and, on the first server, the buffers; all change in place.

    `previous`, if it is set, holds the arrays as they were before the last update.
    """

    params: Array
    buffers: Array
    slots: dict[str, Array]
    update: Update
    previous: dict[str, Array] | None = None

    def arrays(self) -> dict[str, Array]:
        """Everything by name."""
        return {"params": self.params, "buffers": self.buffers} | {f"slots/{n}": a for n, a in self.slots.items()}

    def step(self, mean: Array, buffers: Array, factor: float, step: int) -> None:
        """Make an update, which an empty mean does not; buffers are the next ones."""
        if self.previous is not None:
            self.previous = {name: array.copy() for name, array in self.arrays().items()}
        self.buffers[...] = buffers
        if mean.size:
            self.update(mean, factor, step)


@dataclass
class Shard(ABC):
    """One part of the weights as a server has it, changed by pushes.

    A push counts once, however often it is delivered. `version` counts updates since the launch. With `trace`, every
    push and read is recorded, in the order in which they took effect. `made`, if it is set, collects what was applied.
    """

    part: Part
    workers: int
    trace: list[Event] | None = None
    made: list[Applied] | None = None
    version: int = 0
    clocks: list[int] = field(init=False)
    figures: Figures = field(default_factory=Figures)

    def __post_init__(self) -> None:
        self.clocks = [0] * self.workers
        self._last = [0] * self.workers
        self._seen = [0] * self.workers
        self._copy: Array | None = None
        self.losses = np.zeros(2)  # of all pushes that counted: the sum of losses, that of weights

    @property
    @abstractmethod
    def progress(self) -> int:
        """What a read may wait for."""

    @property
    def closed(self) -> int:
        """The clocks before this one take no more pushes."""
        return 0

    @abstractmethod
    def take(self, c: Contribution) -> bool:
        """Make of a new contribution what the mode makes of it; False where it does not count."""

    def push(self, c: Contribution) -> bool:
        """Take a contribution that has arrived; whether it counts."""
        if c.sequence <= self._last[c.worker]:
            return False
        self._last[c.worker] = c.sequence
        stale = self.version - self._seen[c.worker]
        self.clocks[c.worker] = max(self.clocks[c.worker], c.clock + 1)
        counts = self.take(c)
        self.losses += counts * np.array([c.loss, c.weight])
        self._count(stale, counts)
        self._record("push", c.worker, c.clock, counted=counts, staleness=stale)
        return counts

    def read(self, worker: int, clock: int) -> Array:
        """[params | buffers] as they are, for a worker that has made `clock` pushes. Not to be changed."""
        self._seen[worker] = self.version
        self._record("read", worker, clock, slowest=min(self.clocks))
        return self.weights()

    def losses_until(self, clock: int) -> Array:
        """Sums of losses and weights (2,) over the pushes of so many clocks, or over all so far where none close."""
        return self.losses.copy()

    def weights(self) -> Array:
        """[params | buffers] as they are, for whoever pushes nothing. Not to be changed."""
        if self._copy is None:
            self._copy = np.concatenate((self.part.params, self.part.buffers))
        return self._copy

    def _apply(self, vec: Array, weight: float, buffers: Array, rows: float, factor: float, step: int) -> None:
        """Make the next version of sums; what weighs nothing changes nothing."""
        self._copy = None
        mean = np.divide(vec, weight, out=vec) if weight > 0 else vec[:0]
        following = np.divide(buffers, rows, out=buffers) if rows > 0 else self.part.buffers.copy()
        self.version += 1
        if self.made is not None:
            self.made.append(Applied(self.version, step, factor, mean.copy(), following))
        self.part.step(mean, following, factor, step)

    def _count(self, stale: int, counts: bool) -> None:
        found = self.figures
        found.counted, found.dropped = found.counted + counts, found.dropped + (not counts)
        if counts:
            found.stale, found.stalest = found.stale + stale, max(found.stalest, stale)

    def _record(self, event: str, worker: int, clock: int, **more: Any) -> None:
        if self.trace is not None:
            self.trace.append({"event": event, "worker": worker, "clock": clock, "version": self.version, **more})


@dataclass
class WholeClocks(Shard):
    """One update a clock, of the mean over all workers, or over the first `quorum` of them.

    Contributions are added in the order of the workers. What comes for a clock that has been closed is dropped; what
    comes early waits.
    """

    quorum: int = 0  # 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        self._open: dict[int, list[Contribution]] = {}
        self._losses: deque[Array] = deque([self.losses.copy()], maxlen=REMEMBERED)  # until each of the last clocks

    @property
    def progress(self) -> int:
        """Clocks that have been closed."""
        return self.version

    @property
    def closed(self) -> int:
        return self.version

    def take(self, c: Contribution) -> bool:
        if c.clock < self.version:
            return False
        needed = self.quorum or self.workers
        self._open.setdefault(c.clock, []).append(c)
        while len(self._open.get(self.version, ())) >= needed:
            self._close(self._open.pop(self.version)[:needed])
        return True

    def losses_until(self, clock: int) -> Array:
        """Whoever asks late is not told of later clocks, as long as they are not too many."""
        ago = min(max(0, self.version - clock), len(self._losses) - 1)
        return self._losses[-1 - ago].copy()

    def _close(self, contributions: list[Contribution]) -> None:
        self._losses.append(self._losses[-1] + np.sum([(c.loss, c.weight) for c in contributions], axis=0))
        first, *others = sorted(contributions, key=lambda c: c.worker)
        vec, buffers, weight, rows = first.vec, first.buffers, first.weight, first.rows
        for c in others:
            vec += c.vec
            buffers += c.buffers
            weight, rows = weight + c.weight, rows + c.rows
        self._apply(vec, weight, buffers, rows, 1.0, self.version)


@dataclass
class OnArrival(Shard):
    """An update for each push as it comes. `damping` is what its step is multiplied with.

    staleness: 1 / (1 + updates since the worker's last read), which comes to about 1 / P where all are equally fast.
    workers: 1 / P, so that one push of each moves as far as a synchronous update. none: 1. Buffers are those of the
    last to come. `bounded`: reads wait for the slowest worker (stale synchronous), otherwise for a number of pushes.
    """

    damping: Damping = "staleness"
    bounded: bool = False

    @property
    def progress(self) -> int:
        """Pushes of the slowest worker, or of all."""
        return min(self.clocks) if self.bounded else self.version

    def take(self, c: Contribution) -> bool:
        stale = self.version - self._seen[c.worker]
        factor = {"staleness": 1 / (1 + stale), "workers": 1 / self.workers, "none": 1.0}[self.damping]
        self._apply(c.vec, c.weight, c.buffers, c.rows, factor, self.version // self.workers)
        return True


@dataclass
class Replica:
    """A copy of another server's part, kept up by the updates that it made: the same bits."""

    part: Part
    version: int = 0

    def follow(self, applied: Applied) -> None:
        """Make the next update as the other server made it."""
        self.part.step(applied.mean, applied.buffers, applied.factor, applied.step)
        self.version = applied.version
