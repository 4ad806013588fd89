"""What one rank does from meeting the others to its last report: it runs the loop, and tells the driver what happens.

Rank 0 tells of steps, epochs and states; the driver's answers reach all ranks with the next step or, after an epoch,
before it goes on.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl.backends.base import Group, Remote, Seat
from sparkdl.comm import CommError, Transport, TransportOptions, barrier
from sparkdl.comm.transport.auth import Identity
from sparkdl.control import Link
from sparkdl.data import Handle, ShardMissing
from sparkdl.nn import Array
from sparkdl.strategies.circle import Meet, meeting
from sparkdl.strategies.peer import OWN, Peer, PeerSteps
from sparkdl.strategies.words import leave_word
from sparkdl.train import Callback, Loop, Run, ShardWorker, Task
from sparkdl.train.callbacks import Logs
from sparkdl.train.tensors import under

if TYPE_CHECKING:
    from sparkdl.strategies.peers import PeerStrategy

__all__ = ["Call", "PeerJob", "run_rank", "state_of"]

log = logging.getLogger(__name__)

LOG_S = 0.1  # steps are reported together, this often


@dataclass(frozen=True)
class Call:
    """Where a rank finds its driver and the others. It travels with the code: whatever fails after it can be told."""

    group: Group
    driver: tuple[str, int]
    network: TransportOptions


@dataclass(frozen=True)
class PeerJob:
    """What every rank is given besides arrays. `counters`, `schedule` and `mode` say where the run stands."""

    strategy: PeerStrategy
    task: Task
    counters: Mapping[str, Any]
    schedule: Mapping[str, Any]
    mode: Mapping[str, Any]
    every_steps: int | None = None


def run_rank(call: Call, job: Remote[PeerJob], arrays: Mapping[str, Remote[Array]], seat: Seat) -> None:
    """All that one rank does, from meeting the others to the last report. Failures reach the driver, then the peers."""
    network, group = call.network, call.group
    identity = Identity.of(seat.rank, seat.size + 1, group.job_id, group.attempt, group.secret)
    with Link.to(call.driver, identity, network.timeout_s, network.connect_timeout_s, network.tls) as link:
        try:
            link.send("hello", {"host": socket.gethostname(), "pid": os.getpid()})
            given, handle = job.value, seat.handle
            with seat.connect(group, network, link.allgather) as comm:
                meet = meeting(seat, group, network, link.allgather)
                _train(given, arrays, handle, comm, meet, link)
        except BaseException as error:
            _report(link, seat.size, error)
            raise


def _train(
    job: PeerJob, arrays: Mapping[str, Remote[Array]], handle: Handle, comm: Transport, meet: Meet, link: Link
) -> None:
    run = _restored(job, {name: shared.value for name, shared in arrays.items()}, comm.rank)
    own = {n.removeprefix(OWN): run.strategy_state.pop(n) for n in list(run.strategy_state) if n.startswith(OWN)}
    with ExitStack() as stack:
        worker = ShardWorker(job.task, handle)
        stack.callback(worker.close)
        peer = Peer(job.task, run, comm, worker, meet, job.every_steps, own=own)
        steps = job.strategy.steps(peer)
        stack.push(partial(_close, steps))
        reporter = _Reporter(peer, steps, link, job.every_steps)
        loop = Loop(job.task, run, [reporter])
        try:
            loop.train(steps)
            reporter.last(loop)
            barrier(comm)
        except CommError:
            leave_word(link, run, steps.last_words())
            raise


def _close(steps: PeerSteps, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
    steps.close(error)


def _restored(job: PeerJob, arrays: Mapping[str, Array], rank: int) -> Run:
    """The run as this rank goes on with it; what has been counted of the epoch so far is rank 0's."""
    run = Run(np.array(arrays["params"]), schedule_state=dict(job.schedule))
    run.opt_state = {name: np.array(a) for name, a in under("opt/", arrays).items()}
    run.strategy_state = {**job.mode, **{name: np.array(a) for name, a in under("mode/", arrays).items()}}
    run.epoch_metrics = np.array(arrays["metrics"]) if rank == 0 else np.zeros_like(arrays["metrics"])
    run.count_from(job.counters)
    return run


def state_of(run: Run, optimizer: Mapping[str, Array], mode: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a run by name, as they travel between driver and ranks."""
    arrays = {"params": run.params, "metrics": run.epoch_metrics}
    arrays |= {f"opt/{name}": slot for name, slot in optimizer.items()}
    return arrays | {f"mode/{name}": value for name, value in mode.items() if isinstance(value, np.ndarray)}


class _Reporter(Callback):
    """Tells the driver what the loop does. Every rank has one, since what is told may have to be gathered first."""

    def __init__(self, peer: Peer, steps: PeerSteps, link: Link, every_steps: int | None) -> None:
        self._peer, self._steps, self._link, self._every = peer, steps, link, every_steps
        self._first = peer.comm.rank == 0
        self._told = peer.run.step  # the step whose state the driver has
        self._logs: list[dict[str, Any]] = []
        self._logged = time.monotonic()

    def step_end(self, run: Run, logs: Logs) -> None:
        if self._first:
            self._logs.append({"run": run.counters(), "logs": dict(logs)})
            if time.monotonic() - self._logged >= LOG_S:
                self._flush()
            self._hear()
        due = self._every is not None and run.step % self._every == 0 and run.step != self._told
        if due and run.step_in_epoch < run.steps_per_epoch:
            self._tell("state", self._steps.totals(run.epoch_metrics), {})

    def epoch_end(self, run: Run, record: Logs) -> None:
        self._tell("epoch", run.epoch_metrics, {"record": run.history[-1]})

    def last(self, loop: Loop) -> None:
        """The state in which the loop has ended, where the driver does not know it, and this rank's profile."""
        if loop.run.step_in_epoch:
            self._tell("state", self._steps.totals(loop.run.epoch_metrics), {})
        profile = None if loop.profile is None else loop.profile.to_dict()
        self._link.send("end", {"profile": profile})

    def _tell(self, kind: str, metrics: Array, data: dict[str, Any]) -> None:
        """Send the whole state from rank 0, and wait for the driver's word."""
        run, params = self._peer.run, self._steps.parameters()
        self._told = run.step
        optimizer, mode = self._steps.optimizer_state(), self._steps.mode_state()
        if not self._first:
            return
        self._flush()
        plain = {name: value for name, value in mode.items() if not isinstance(value, np.ndarray)}
        data |= {"run": run.counters(), "schedule": run.schedule_state, "mode": plain}
        self._link.send(kind, data, state_of(run, optimizer, mode) | {"params": params, "metrics": metrics})
        self._obey(self._link.receive().data)

    def _flush(self) -> None:
        if self._logs:
            self._link.send("steps", {"steps": self._logs})
        self._logs, self._logged = [], time.monotonic()

    def _hear(self) -> None:
        if (message := self._link.poll()) is not None:
            self._obey(message.data)

    def _obey(self, data: Mapping[str, Any]) -> None:
        self._peer.wish = data.get("stop") or self._peer.wish


def _report(link: Link, size: int, error: BaseException) -> None:
    """Tell the driver why this rank fails, as far as it can still be told."""
    culprit = error.culprit if isinstance(error, CommError) else None
    if isinstance(error, CommError) and culprit is not None and culprit >= size:
        culprit -= size  # who serves a further circle is numbered after its members
    own = not isinstance(error, CommError) or culprit == error.rank
    missing = isinstance(error, ShardMissing)
    data = {
        "kind": type(error).__name__,
        "text": str(error),
        "traceback": "".join(traceback.format_exception(error))[-16_384:],
        "culprit": None if own else culprit,
        "own": own,
        "missing": missing,
        "transient": missing or isinstance(error, OSError | MemoryError),
    }
    try:
        link.send("failed", data)
    except Exception as e:
        log.warning("the driver could not be told: %s", e)
