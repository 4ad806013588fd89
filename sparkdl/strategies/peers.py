"""Modes in which workers train among themselves: launching them, following them, and starting again after a failure."""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from sparkdl.backends.base import Backend, Group, Shards, Slots
from sparkdl.comm import TransportOptions
from sparkdl.comm.transport.auth import Identity
from sparkdl.control import Coordinator
from sparkdl.errors import ConfigError
from sparkdl.fields import NATURAL, check_fields
from sparkdl.simulate import Mode
from sparkdl.strategies.base import Strategy
from sparkdl.strategies.follow import Failure, Follower
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.strategies.rank import Call, PeerJob, run_rank, state_of
from sparkdl.strategies.tree_aggregate import TreeAggregate
from sparkdl.strategies.words import Words
from sparkdl.train import Loop, Run, Task

__all__ = ["PeerStrategy"]

log = logging.getLogger(__name__)

SLOTS_S = 60.0  # how long to wait for the slots of lost executors to come back
POLL_S = 0.5
MARGIN_BYTES = 1 << 20  # what a report may hold beside the run's own arrays
OWN_VECTORS = 3  # a rank may have, like the parameters and beside slots: weights, two memories or public copies


@dataclass(frozen=True)
class PeerStrategy(ABC):
    """Base of the modes in which workers meet; one class a mode says how a step is made.

    All workers run at the same time, in one barrier stage on Spark. A worker that fails, freezes or is cut off is
    noticed within `network.timeout_s`; all leave, and training goes on from the last state that the driver has, at
    most `max_restarts` times. The driver has the state of every epoch, and of every checkpoint; some modes go on from
    what the others hold.

    few_slots says what to do where fewer tasks can run at once than there are workers: "error", "run" on as many
    workers as there are slots, or "tree_aggregate" instead. min_workers is how few may go on after executors are lost
    for good (0: all must come back).
    """

    max_restarts: int = field(default=3, kw_only=True, metadata=NATURAL)
    min_workers: int = field(default=0, kw_only=True, metadata=NATURAL)
    few_slots: Literal["error", "run", "tree_aggregate"] = field(default="error", kw_only=True)
    network: TransportOptions = field(default_factory=TransportOptions, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.few_slots not in ("error", "run", "tree_aggregate"):
            raise ValueError(f'few_slots must be "error", "run" or "tree_aggregate"; got {self.few_slots!r}.')

    @abstractmethod
    def steps(self, peer: Peer) -> PeerSteps:
        """How this mode makes its steps on one rank. All ranks call it together."""

    @abstractmethod
    def simulated(self, workers: int) -> Mode:
        """As `Strategy.simulated`."""

    def check(self, task: Task, workers: int) -> None:  # noqa: B027  # most modes go with any task
        """Before the launch: raise ConfigError, or warn, where the mode does not suit the task."""

    def salvage(self, run: Run, words: Words) -> bool:
        """After a loss: bring run to where the others were, by their last words; False leaves it as it is."""
        return False

    @property
    def spare(self) -> int:
        """As `Strategy.spare`."""
        return 0

    def plan(self, workers: int, slots: Slots) -> tuple[Strategy, int]:
        """This strategy, or what few_slots puts in its place, and the number of workers (0: as the backend has it).

        Errors: ConfigError where all workers cannot run at once.
        """
        if slots.dynamic:
            return self._instead(
                "Workers that train together need a fixed number of executors, but spark.dynamicAllocation.enabled is "
                "true. Set it to false and give the number of executors",
                workers,
            )
        if slots.tasks is None or (workers or 1) <= slots.tasks:
            return self, workers or slots.tasks or 0
        if self.few_slots == "run" and slots.tasks:
            log.warning("training on %d workers instead of %d: there are no more slots", slots.tasks, workers)
            return self, slots.tasks
        return self._instead(
            f"{workers or 1} workers that train together need as many task slots at once; this cluster has "
            f"{slots.tasks}. Lower training.workers, add executors or cores (spark.task.cpus counts per task), set "
            'strategy.few_slots = "run"',
            workers,
        )

    def train(self, loop: Loop, shards: Shards, backend: Backend) -> None:
        """Train loop.task over the shards, starting again after failures that need not recur."""
        self.check(loop.task, len(shards.handles))
        with loop.watching(), ExitStack() as stack:
            for restart in range(self.max_restarts + 1):
                if _is_over(loop):
                    return
                failure = self._attempt(loop, shards, backend, restart)
                if failure is None:
                    return
                if loop.run.stop_reason is not None:
                    log.info("the workers ended while the fit was being stopped: %s", failure.error)
                    return
                if restart == self.max_restarts or not failure.transient:
                    raise failure.error
                words = Words.of(failure.words, loop.run, len(shards.handles), loop.task.steps_per_epoch)
                saved = words is not None and self.salvage(loop.run, words)
                log.warning(
                    "%s; going on from %sepoch %d, step %d (restart %d of %d)",
                    failure.error,
                    "what the others hold, " if saved else "",
                    loop.run.epoch,
                    loop.run.step,
                    restart + 1,
                    self.max_restarts,
                )
                shards = self._recovered(failure, shards, backend, stack)

    def _attempt(self, loop: Loop, shards: Shards, backend: Backend, attempt: int) -> Failure | None:
        run, size = loop.run, len(shards.handles)
        group = Group(uuid.uuid4().hex, attempt, secrets.token_bytes(32))
        if run.step_in_epoch == 0:
            run.epoch_metrics = loop.task.metrics.zeros()
        arrays = state_of(run, run.opt_state, run.strategy_state)
        # Every rank may have state of its own.
        limit = (size + 2) * sum(a.nbytes for a in arrays.values()) + size * OWN_VECTORS * run.params.nbytes
        identity = Identity.of(size, size + 1, group.job_id, attempt, group.secret)
        here = replace(self.network, interface=None, cidr=None, route_to=backend.driver_host)
        with ExitStack() as stack:
            coordinator = stack.enter_context(Coordinator(identity, here, limit + MARGIN_BYTES))
            job = PeerJob(
                self,
                replace(loop.task, info=shards.info),
                run.counters(),
                run.schedule_state,
                {name: value for name, value in run.strategy_state.items() if not isinstance(value, np.ndarray)},
                None if loop.checkpoints is None else loop.checkpoints.every_steps,
            )
            shared = stack.enter_context(backend.share(job))
            states = {name: stack.enter_context(backend.share(a)) for name, a in arrays.items()}
            call = Call(group, (backend.driver_host, coordinator.port), self.network)
            peers = backend.run_peers(shards, partial(run_rank, call, shared, states))
            follower = Follower(loop, coordinator, peers)
            return follower.follow(self.network.timeout_s, self.network.connect_timeout_s)

    def _recovered(self, failure: Failure, shards: Shards, backend: Backend, stack: ExitStack) -> Shards:
        """The shards to go on with: those there are, written anew where one was missing, or fewer where slots are."""
        wanted = len(shards.handles)
        slots = _slots(backend, wanted)
        if slots < wanted:
            if not self.min_workers or slots < max(self.min_workers, self.spare + 1):
                raise failure.error
            log.warning("going on with %d workers instead of %d", slots, wanted)
            shards = backend.spread(shards, slots)
            stack.callback(shards.delete)
        elif failure.missing:
            backend.heal(shards)
        return shards

    def _instead(self, problem: str, workers: int) -> tuple[Strategy, int]:
        if self.few_slots != "tree_aggregate":
            raise ConfigError(f'{problem}, or let strategy.few_slots = "tree_aggregate" train through the driver.')
        log.warning("%s. Training by tree aggregation instead.", problem)
        return TreeAggregate(), workers


def _is_over(loop: Loop) -> bool:
    """Whether there is nothing to launch workers for."""
    return loop.run.stop_reason is not None or loop.run.epoch >= loop.task.training.epochs


def _slots(backend: Backend, wanted: int) -> int:
    """Task slots, after waiting a while for as many as are wanted."""
    deadline = time.monotonic() + SLOTS_S
    while True:
        found = backend.slots().tasks
        if found is None or found >= wanted:
            return wanted
        if time.monotonic() >= deadline:
            return found
        time.sleep(POLL_S)
