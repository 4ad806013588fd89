"""Steps of workers that do not wait for one another: the minibatches of an epoch are dealt to whoever is free.

With P workers and S steps an epoch is S P local minibatches, however they are spread: a worker that is three times as
fast makes three times as many. Workers meet at the end of an epoch, and where a checkpoint is due. A team counts as one
worker.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from sparkdl.backends.base import Place
from sparkdl.comm import CommError, Transport
from sparkdl.comm.transport.among import Among
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.strategies.team import Team
from sparkdl.train import Part, Step, StepSums
from sparkdl.train.update import learning_rate

__all__ = ["Deal", "FreeSteps", "Service", "Word", "deal"]

TAG = 0


class Word(IntEnum):
    """The dealer's answer: take a minibatch, or hear of others'; all of them are dealt; the fit is to stop."""

    TAKE = 0
    DEALT = 1
    STOP = 2


class Deal(NamedTuple):
    """What the dealer says, and how many minibatches it has dealt since the launch."""

    word: Word
    dealt: int


def deal(t: Transport) -> None:
    """Serve the ranks 0..P-1 of a circle of P + 1, whose last is the dealer, until all have left.

    A rank asks with (limit, wish, need): up to how many minibatches may be dealt, the same for all at a time, and
    whether the driver wishes to stop. After such a wish nobody is dealt anything; all hear of the same number of
    minibatches. Who gives a need takes none, and hears once so many are dealt, or no more will be.
    """
    here, dealt, stopping, waiting = list(range(t.rank)), 0, False, dict[int, tuple[int, int]]()
    request = np.empty(3, np.int64)
    while here:
        rank = t.wait_any(here)
        assert rank is not None
        t.recv(rank, TAG, request)
        limit, wish, need = request.tolist()
        if limit < 0:
            here.remove(rank)
            continue
        stopping = stopping or bool(wish)
        waiting[rank] = limit, need
        for asker, (end, enough) in list(waiting.items()):
            word = Word.DEALT if dealt >= end else Word.STOP if stopping else Word.TAKE
            if word is not Word.TAKE or dealt >= enough:
                dealt += word is Word.TAKE and not enough
                t.isend(asker, TAG, np.array([word, dealt]))
                del waiting[asker]
        here = [*here[here.index(rank) + 1 :], *here[: here.index(rank) + 1]]  # the one just served comes last


class Service:
    """A thread that serves others over a transport of its own until they have left, or communication ends."""

    def __init__(self, serve: Callable[[Transport], None], transport: Transport, name: str) -> None:
        self._serve, self._transport = serve, transport
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"sparkdl-{name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the service, if that was a failure of its own."""
        if self._error is not None and not isinstance(self._error, CommError):
            raise self._error

    def close(self) -> None:
        """Wait until the others have left; where communication has failed, that is at once."""
        self._thread.join()

    def _run(self) -> None:
        with self._transport:
            try:
                self._serve(self._transport)
            except BaseException as e:
                self._error = e
                self._transport.abort(f"{type(e).__name__}: {e}")


class FreeSteps(PeerSteps):
    """`update` is one local step; how far the epoch has come is what all workers have been dealt, divided by P.

    A worker goes through the minibatches of its own shard in their order, epoch after epoch, at its own pace. Of a team
    one asks the dealer, and all hear the answer.
    """

    def __init__(self, peer: Peer, team: Team | None = None) -> None:
        super().__init__(peer)
        self.team = team = team or Team(peer)
        rank, size = peer.comm.rank, peer.comm.size
        places = [Place(rank, size + 1, (size,) if team.calls else ())]
        line, *dealer = peer.meet("dealer", places + ([Place(size, size + 1, ())] if rank == 0 else []))
        circle = (*team.callers, size)
        self._dealer = Among(line, circle) if team.calls else line
        self._service = Service(deal, Among(dealer[0], circle), "dealer") if dealer else None
        self._base = self._made = peer.run.step

    @abstractmethod
    def update(self, epoch: int, index: int) -> tuple[Part, StepSums]:
        """Train on this worker's rows of minibatch `index` of `epoch`; run.step may change as it likes."""

    def heard(self) -> StepSums:
        """What a step tells in which this rank has trained on nothing."""
        return StepSums(0.0, 0.0, 0, learning_rate(self.peer.task, self.peer.run), 0.0)

    def step(self, epoch: int, index: int) -> Step:
        peer, run = self.peer, self.peer.run
        boundary, at = self._boundary(index), run.step
        started = time.perf_counter()
        word, dealt = self._ask(boundary)
        peer.spent_s["exposed"] += time.perf_counter() - started
        reached = self._base + dealt // self.team.count
        if word is Word.TAKE and self.team.trains:
            part, sums = self.update(*divmod(self._made, peer.task.steps_per_epoch))
            self._made += 1
            reached = min(reached, boundary - 1)
        else:
            part, sums = Part(np.empty(0), np.zeros_like(run.epoch_metrics)), self.heard()
            if word is Word.STOP:
                run.stop(peer.wish or "the driver asked for it")
        run.step = reached
        made = reached - at
        rows = sum(peer.task.rows_of(index + i) for i in range(made))
        return Step(sums._replace(rows=rows), part.metrics, part.profile, made)

    def close(self, error: BaseException | None = None) -> None:
        if error is not None:
            self._dealer.abort(f"{type(error).__name__}: {error}")
        self.team.close(error)
        with suppress(CommError), self._dealer:  # where that has failed before, somebody has told already
            if self.team.calls:
                self._dealer.isend(self._dealer.size - 1, TAG, np.array([-1, 0, 0])).wait()
        if self._service is not None:
            self._service.close()

    def _ask(self, boundary: int) -> Deal:
        team, answer = self.team, np.empty(2, np.int64)
        if team.calls:
            dealer, limit = self._dealer.size - 1, (boundary - self._base) * team.count
            need = 0 if team.trains else (self.peer.run.step - self._base + 1) * team.count
            self._dealer.isend(dealer, TAG, np.array([limit, self.peer.wish is not None, need])).wait()
            self._dealer.recv(dealer, TAG, answer)
        team.hand_on(answer)
        word, dealt = answer.tolist()
        return Deal(Word(word), dealt)

    def _boundary(self, index: int) -> int:
        """The step at which all meet next: the end of the epoch, or a checkpoint before it."""
        step, every = self.peer.run.step, self.peer.every_steps
        end = step - index + self.peer.task.steps_per_epoch
        return end if every is None else min(end, (step // every + 1) * every)
