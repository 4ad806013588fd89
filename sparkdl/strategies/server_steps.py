"""How workers train with parameter servers: in clocks that keep more or less in step, or each at its own pace."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.comm import allreduce
from sparkdl.nn import Array
from sparkdl.optim.clip import norm
from sparkdl.strategies.free import FreeSteps
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.strategies.server_host import Post, Settings
from sparkdl.strategies.server_salvage import AT, RECENT
from sparkdl.strategies.team import Team
from sparkdl.train import TAIL, Part, Step, StepSums, apply_update
from sparkdl.train.update import learning_rate, nonfinite

__all__ = ["ClockSteps", "FreeServerSteps", "Settings"]


class _Work:
    """One worker's contributions: gradients, or, where workers update, changes over a window of updates.

    Those of a team are added up: where they are pushed, or, where workers update, everywhere.
    """

    def __init__(self, settings: Settings, peer: Peer, post: Post, team: Team) -> None:
        self.settings, self.peer, self.post, self.team = settings, peer, post, team
        layout = peer.task.model.layout
        self._n, self._size = layout.num_trainable, layout.size
        self._vec = np.empty(layout.size + TAIL, peer.run.params.dtype)
        self._factors = post.factors
        if self._factors is not None:
            peer.worker.outer = self._factors.take
        self._from: Array = np.empty(0)
        self._weight = self._rows = self._loss = 0.0
        self.made = 0  # updates since the last push
        self.clock = 0  # pushes since the launch
        self.begun = (0, peer.run.step)  # clock and run.step at the last pull
        self.recent = np.zeros_like(peer.run.epoch_metrics)  # figures since then
        self.pushed_s = 0.0

    def begin(self) -> None:
        """The weights have just been pulled."""
        self.made = 0
        self.begun = (self.clock, self.peer.run.step)
        self.recent = np.zeros_like(self.recent)
        if self.settings.local:
            self._from = self.peer.run.params.copy()
            self._weight = self._rows = self._loss = 0.0

    def minibatch(self, epoch: int, index: int) -> tuple[Part, StepSums]:
        """Train on one minibatch; pushes what is due. Counts run.step on."""
        peer, vec, started = self.peer, self._vec, time.perf_counter()
        if self._factors is not None:
            self._factors.begin(vec)
        part = peer.worker.gradient(peer.run.params, epoch, index, vec)
        met = time.perf_counter()
        self.team.add(vec, everywhere=self.settings.local)
        self.pushed_s = time.perf_counter() - met
        sums = self._updated(vec) if self.settings.local else self._pushed(vec)
        self.made += 1
        if self.settings.local and self.made == self.settings.window:
            self.push_window()
        peer.spent_s["data"] += part.data_s
        peer.spent_s["exposed"] += self.pushed_s
        peer.spent_s["compute"] += time.perf_counter() - started - part.data_s - self.pushed_s
        return part, sums

    def push_window(self) -> None:
        """Push the change since the last pull, if there is any."""
        if not self.settings.local or not self.made:
            return
        run, n = self.peer.run, self._n
        change = run.params - self._from
        change[:n] *= self._weight
        change[n:] = run.params[n:] * self._rows
        self._push(change, self._weight, self._rows, self._loss)
        self.made = 0

    def _updated(self, vec: Array) -> StepSums:
        loss, weight, rows = vec[self._size : self._size + 3].tolist()
        self._loss, self._weight, self._rows = self._loss + loss, self._weight + weight, self._rows + rows
        return apply_update(self.peer.task, self.peer.run, vec)

    def _pushed(self, vec: Array) -> StepSums:
        task, run, n = self.peer.task, self.peer.run, self._n
        loss, weight, rows = vec[self._size : self._size + 3].tolist()
        lr, length = learning_rate(task, run), 0.0
        if weight > 0 and self.team.speaks:
            length = self._clipped(vec[:n], weight)
            if not (np.isfinite(length) and np.isfinite(loss)):
                nonfinite(task, run, loss, length)
                vec[: self._size], weight, rows = 0, 0.0, 0.0
        if self._factors is not None and not rows:
            self._factors.nothing()
        self._push(vec[: self._size], weight, rows, loss)
        run.step += 1
        return StepSums(loss, weight, int(rows), lr, length)

    def _clipped(self, grad: Array, weight: float) -> float:
        """Clip sums over so much weight as `Clip.apply` does their mean, in place; returns the norm that it had."""
        clip, factors = self.peer.task.training.clip, self._factors
        if clip.value is not None:
            grad /= weight
            length = clip.apply(grad)
            grad *= weight
            return length
        total = norm(grad)
        if factors is not None:
            total = math.sqrt(total**2 + factors.squares())
            if total > np.finfo(grad.dtype).max:
                total = math.inf  # the product would not be finite
        length = total / weight
        if clip.norm is not None and clip.norm < length < math.inf:
            grad *= clip.norm / length
            if factors is not None:
                factors.scale(clip.norm / length)
        return length

    def _push(self, vec: Array, weight: float, rows: float, loss: float) -> None:
        started = time.perf_counter()
        self.post.push(vec, self.clock, weight, rows, loss if np.isfinite(loss) else 0.0)
        self.clock += 1
        self.pushed_s += time.perf_counter() - started


class _ServerSteps(PeerSteps):
    """What both ways have in common."""

    post: Post
    _work: _Work
    _settings: Settings
    _known: Array = np.zeros(2)  # losses and weights of all pushes, as far as they have been told of

    def told(self, losses: Array, rows: int) -> StepSums:
        """A step of others, from sums over all pushes until then (2,)."""
        loss, weight = (losses - self._known).tolist()
        self._known = losses
        return StepSums(loss, weight, rows, learning_rate(self.peer.task, self.peer.run), 0.0)

    def allreduce(self, vec: Array) -> None:
        allreduce(self.peer.comm, vec, algorithm="tree")

    def optimizer_state(self) -> Mapping[str, Array]:
        return self.post.optimizer_state()

    def own_state(self) -> Mapping[str, Array]:
        return self.post.own_state()

    def last_words(self) -> Mapping[str, Array] | None:
        work = self._work
        if not self._settings.replicate:
            return None
        at = np.array([*work.begun, work.clock, self.peer.run.step])
        return self.post.last_words() | {AT: at, RECENT: work.recent}

    def figures(self) -> dict[str, Any]:
        return super().figures() | self.post.figures()


class ClockSteps(_ServerSteps):
    """A worker's pull waits until others have come so far; all make the same number of updates in an epoch.

    Who only serves hears of every clock, so that its loop goes on with those of the others.
    """

    def __init__(self, settings: Settings, peer: Peer) -> None:
        super().__init__(peer)
        self.team = team = Team(peer, settings.group, settings.spare)
        _take_slots(settings, peer, team)
        self.post = Post(settings, peer, team)
        self._settings, self._work = settings, _Work(settings, peer, self.post, team)

    def step(self, epoch: int, index: int) -> Step:
        if not self.team.trains:
            return self._watched(index)
        peer, run, work, at = self.peer, self.peer.run, self._work, self.peer.run.step
        if work.made == 0 or not self._settings.local:
            met = time.perf_counter()
            stop, behind = self._pulled()
            peer.spent_s["exposed"] += time.perf_counter() - met
            run.step += behind  # a late worker goes on where the others are
            left = peer.task.steps_per_epoch - index
            if stop or behind >= left or (behind and self._is_due()):
                if stop:
                    run.stop(peer.wish or "the driver asked for it")
                return self._idle(run.step - at, index)
            index += behind
            work.begin()
        part, sums = work.minibatch(epoch, index)
        if index + 1 == peer.task.steps_per_epoch or self._is_due():
            work.push_window()
        made = run.step - at
        work.recent += part.metrics  # as the loop does to the epoch's
        return Step(sums._replace(rows=self._rows(index + 1 - made, made)), part.metrics, part.profile, made)

    def parameters(self) -> Array:
        """The weights with all that has been pushed."""
        self.post.pull(self.peer.run.params, self._work.clock, self._work.clock, begins=False)
        return self.peer.run.params

    def close(self, error: BaseException | None = None) -> None:
        self.post.close(error)

    def _pulled(self) -> tuple[bool, int]:
        """Get the weights to go on from; whether to stop, and how many clocks the others have closed meanwhile."""
        work, wish = self._work, self.peer.wish is not None
        need = max(0, work.clock - (self._settings.lead or 0))
        answer = self.post.pull(self.peer.run.params, work.clock, need, begins=True, wish=wish)
        behind = answer.progress - work.clock if self._settings.quorum else 0
        work.clock += behind
        return answer.stop, behind

    def _watched(self, index: int) -> Step:
        peer, run, work, met = self.peer, self.peer.run, self._work, time.perf_counter()
        answer, losses = self.post.servers.watch(work.clock, work.clock + 1, peer.wish is not None)
        peer.spent_s["exposed"] += time.perf_counter() - met
        made = 0
        if answer.stop:
            run.stop(peer.wish or "the driver asked for it")
        else:
            work.clock += 1
            made = self._window(index)
            run.step += made
        return Step(self.told(losses, self._rows(index, made)), np.zeros_like(run.epoch_metrics), None, made)

    def _window(self, index: int) -> int:
        """Updates until the next push."""
        window, every = self._settings.window, self.peer.every_steps
        window = min(window, self.peer.task.steps_per_epoch - index)
        return window if every is None else min(window, every - self.peer.run.step % every)

    def _is_due(self) -> bool:
        every = self.peer.every_steps
        return every is not None and self.peer.run.step % every == 0

    def _rows(self, index: int, made: int) -> int:
        return sum(self.peer.task.rows_of(index + i) for i in range(made))

    def _idle(self, made: int, index: int) -> Step:
        lr = learning_rate(self.peer.task, self.peer.run)
        nothing = StepSums(0.0, 0.0, self._rows(index, made), lr, 0.0)
        return Step(nothing, np.zeros_like(self.peer.run.epoch_metrics), None, made)


class FreeServerSteps(_ServerSteps, FreeSteps):
    """Nobody waits; minibatches go to whoever is free."""

    def __init__(self, settings: Settings, peer: Peer) -> None:
        super().__init__(peer, Team(peer, settings.group, settings.spare))
        _take_slots(settings, peer, self.team)
        self.post = Post(settings, peer, self.team)
        self._settings, self._work = settings, _Work(settings, peer, self.post, self.team)

    def update(self, epoch: int, index: int) -> tuple[Part, StepSums]:
        peer, work, met = self.peer, self._work, time.perf_counter()
        if work.made == 0 or not self._settings.local:
            self.post.pull(peer.run.params, work.clock, 0, begins=False)
            peer.spent_s["exposed"] += time.perf_counter() - met
            work.begin()
        return work.minibatch(epoch, index)

    def heard(self) -> StepSums:
        if self.team.trains:
            return super().heard()
        return self.told(self.post.servers.watch(0, 0, wish=False)[1], 0)

    def parameters(self) -> Array:
        """The weights with all that has been pushed."""
        self._work.push_window()
        pushed = np.array([self._work.clock if self.team.speaks else 0])
        self.allreduce(pushed)
        self.post.pull(self.peer.run.params, self._work.clock, int(pushed[0]), begins=False)
        return self.peer.run.params

    def close(self, error: BaseException | None = None) -> None:
        try:
            self.post.close(error)
        finally:  # what a server met is no reason to keep the dealer
            super().close(error)


def _take_slots(settings: Settings, peer: Peer, team: Team) -> None:
    """Workers that update go on with their own slots, a team with one's, where there are as many ranks as before."""
    for name, slot in peer.run.opt_state.items():
        rows = peer.own.get(f"opt/{name}")
        if settings.local and rows is not None and len(rows) == peer.comm.size:
            slot[...] = rows[team.speaker]
