"""The driver's side of one launch of peers: it plays their reports to the loop's callbacks and checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparkdl import errors
from sparkdl.backends.base import Peers
from sparkdl.control import GONE, Coordinator, Message
from sparkdl.errors import SparkdlError, TrainingError
from sparkdl.strategies.words import WORDS
from sparkdl.train import Loop, Profile
from sparkdl.train.tensors import under

__all__ = ["Failure", "Follower"]

log = logging.getLogger(__name__)

TICK_S = 0.05
SETTLE_S = 2.0  # for a job to end by itself after all of its ranks have
GRACE_S = 10.0  # for all ranks to leave by themselves after one has failed, on top of the time-out
# What Spark says of tasks that died with their process; anything else in a job that no rank reported is final.
LOST = (
    "ExecutorLostFailure",
    "Python worker exited unexpectedly",
    "Executor heartbeat",
    "FetchFailed",
    "ended with exit code",
)


@dataclass(frozen=True)
class Failure:
    """Why a launch ended: the error for the user, whether another launch may fare better, whether a shard was lost.

    `words` are the last of ranks that were well, by rank.
    """

    error: Exception
    transient: bool
    missing: bool = False
    words: Mapping[int, Message] = field(default_factory=dict)


@dataclass
class Follower:
    """Follows one launch until it ends; the run then stands where the last whole state left it."""

    loop: Loop
    coordinator: Coordinator
    peers: Peers
    _hosts: dict[int, str] = field(default_factory=dict)
    _failed: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _gone: dict[int, str] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _words: dict[int, Message] = field(default_factory=dict)
    _present: set[int] = field(default_factory=set)
    _told: bool = False
    _trouble_since: float | None = None
    _ended_since: float | None = None
    _first_came: float | None = None
    _cancelled: bool = False

    def follow(self, patience_s: float, arrival_s: float) -> Failure | None:
        """Return when nothing runs any more: None if all went well. Callbacks raise through.

        Ranks start together: one that has not come arrival_s after the first is taken for lost.
        """
        self._mark = self.loop.run.counters()
        try:
            if self._listen(patience_s, arrival_s):
                return None
        except BaseException:
            self._call_off()
            raise
        try:
            self.peers.wait()
        except Exception as e:
            self.loop.run.count_from(self._mark)
            return replace(self._failure(e), words=self._words)
        return None

    def _listen(self, patience_s: float, arrival_s: float) -> bool:
        """Until nothing runs, and everyone who was there has been heard to the last word; True: all have ended well."""
        deadline = math.inf
        while True:
            report = self.coordinator.next(TICK_S)
            if report is not None:
                self._hear(report.rank, report.message)
            elif self.peers.done():
                stopping = self.loop.run.stop_reason is not None  # who wants to leave need not wait for last words
                deadline = min(deadline, time.monotonic() + (SETTLE_S if stopping else patience_s + GRACE_S))
                if not self._present or time.monotonic() >= deadline:
                    return False
            elif self._complete():
                return True
            self._ask_to_stop()
            self._miss_who_has_not_come(arrival_s)
            self._end_what_lingers(patience_s)

    def _miss_who_has_not_come(self, arrival_s: float) -> None:
        if not self._hosts or self._trouble_since is not None:
            return
        self._first_came = self._first_came or time.monotonic()
        if time.monotonic() - self._first_came > arrival_s:
            for rank in sorted({*range(self.coordinator.size)} - {*self._hosts}):
                self._gone[rank] = f"it has not come within {arrival_s:g} s of the first"
                self._spread_word(rank, self._gone[rank])

    def _call_off(self) -> None:
        """The driver itself cannot go on: end the workers, and wait a while until they have left."""
        self.coordinator.abort(None, "the driver has called the fit off")
        deadline = time.monotonic() + GRACE_S
        while (self._present or not self.peers.done()) and time.monotonic() < deadline:
            self.peers.cancel()  # again and again: the launch itself may have been under way
            report = self.coordinator.next(TICK_S)
            if report is not None and report.message.kind == GONE:
                self._present.discard(report.rank)

    def _hear(self, rank: int, message: Message) -> None:
        kind, data = message.kind, message.data
        if kind == "hello":
            self._hosts[rank] = f"{data['host']}, process {data['pid']}"
            self._present.add(rank)
        elif kind == "steps":
            for step in data["steps"]:
                self.loop.run.count_from(step["run"])
                self.loop.step_end(step["logs"])
        elif kind == "state":
            self._take(message)
            self._answer()
            self.loop.save()
        elif kind == "epoch":
            self._take(message)
            self.loop.epoch_end(data["record"])
            self._answer()
            self.loop.save()
        elif kind == "end":
            self._ended.add(rank)
            if data["profile"] is not None and self.loop.profile is not None:
                self.loop.profile.merge(Profile.from_dict(data["profile"]))
        elif kind == WORDS:
            self._words[rank] = message
        elif kind == "failed":
            # What a rank meets because it has been cancelled is no cause.
            self._failed[rank] = {**data, "own": False, "culprit": None} if self._cancelled else data
            self._spread_word(rank, f"{data['kind']}: {data['text']}")
        elif kind == GONE:
            self._present.discard(rank)
            if rank not in self._ended and rank not in self._failed:
                self._gone[rank] = data["reason"]
                self._spread_word(rank, data["reason"])

    def _spread_word(self, rank: int, reason: str) -> None:
        """The first failure: who waits for the driver and not for a peer must hear of it too."""
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
            self.coordinator.abort(rank, f"rank {rank} failed: {reason}")

    def _take(self, message: Message) -> None:
        """Bring the loop's run to the state that rank 0 has sent, in place."""
        run, data, arrays = self.loop.run, message.data, message.arrays
        np.copyto(run.params, arrays["params"])
        for name, slot in run.opt_state.items():
            np.copyto(slot, arrays[f"opt/{name}"])
        run.epoch_metrics = arrays["metrics"]
        run.count_from(data["run"])
        run.schedule_state = dict(data["schedule"])
        run.strategy_state = {**data["mode"], **under("mode/", arrays)}
        self._mark = run.counters()

    def _answer(self) -> None:
        reason = self.loop.run.stop_reason
        self.coordinator.send(0, "go", {"stop": reason})
        self._told = reason is not None

    def _ask_to_stop(self) -> None:
        """Pass on a wish to stop that has come up between two states, as Ctrl-C and time budgets do."""
        reason = self.loop.run.stop_reason
        if reason is not None and not self._told:
            self._told = self.coordinator.send(0, "stop", {"stop": reason})

    def _complete(self) -> bool:
        """Whether every rank has ended well; a job that does not then end, as on a frozen host, is not waited for."""
        if len(self._ended) < self.coordinator.size:
            return False
        self._ended_since = self._ended_since or time.monotonic()
        if time.monotonic() - self._ended_since < GRACE_S:
            return False
        log.warning("all workers are done, but their tasks do not end; cancelling them")
        self.peers.cancel()
        return True

    def _end_what_lingers(self, patience_s: float) -> None:
        """After a failure: cancel a job that does not end, as with a frozen worker, once all are heard."""
        if self._trouble_since is None:
            return
        all_known = len({*self._failed, *self._gone, *self._ended}) == self.coordinator.size
        if time.monotonic() - self._trouble_since > (SETTLE_S if all_known else patience_s + GRACE_S):
            log.info("cancelling workers that have not ended after a failure")
            self._trouble_since, self._cancelled = math.inf, True
            self.peers.cancel()

    def _failure(self, job_error: Exception) -> Failure:
        """The first failure of all: one that a rank met itself, else a rank that was lost, else what the job says."""
        for rank, data in self._failed.items():
            if data["own"]:
                return self._own(rank, data)
        blamed = Counter(data["culprit"] for data in self._failed.values() if data["culprit"] is not None)
        lost = [rank for rank, _ in blamed.most_common() if rank not in self._failed] or list(self._gone)
        lost = lost or [rank for rank, _ in blamed.most_common()]
        if lost:
            return Failure(self._lost(lost[0]), True)
        transient = any(sign in f"{job_error} {job_error.__cause__}" for sign in LOST)
        first = next(iter(self._failed.values()), None)
        return Failure(job_error if first is None else TrainingError(first["text"]), transient or first is not None)

    def _own(self, rank: int, data: Mapping[str, Any]) -> Failure:
        kind, text = data["kind"], data["text"]
        cls = getattr(errors, kind, None)
        if isinstance(cls, type) and issubclass(cls, SparkdlError):
            error: Exception = cls(text)
        else:
            error = TrainingError(f"{self._name(rank)} failed: {kind}: {text}")
        error.add_note(f"On {self._name(rank)}:\n{data['traceback']}")
        return Failure(error, data["transient"], data["missing"])

    def _lost(self, rank: int) -> TrainingError:
        told = next((f"{d['text']}" for d in self._failed.values() if d["culprit"] == rank), None)
        why = self._gone.get(rank) or told or "it does not answer"
        error = TrainingError(f"{self._name(rank)} was lost: {why}")
        if told is not None:
            error.add_note(f"As another rank saw it: {told}")
        return error

    def _name(self, rank: int) -> str:
        where = self._hosts.get(rank)
        return f"rank {rank}" if where is None else f"rank {rank} (host {where})"
