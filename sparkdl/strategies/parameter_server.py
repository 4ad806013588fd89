"""Weights on servers: workers push what they have found and pull what has become of it, more or less in step.

The sources are named in `server_shard`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sparkdl import simulate
from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.errors import ConfigError
from sparkdl.fields import COUNT, NATURAL
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.strategies.peers import PeerStrategy
from sparkdl.strategies.server_salvage import restore
from sparkdl.strategies.server_shard import Damping
from sparkdl.strategies.server_steps import ClockSteps, FreeServerSteps, Settings
from sparkdl.strategies.words import Words
from sparkdl.train import Run, Task, Training

__all__ = ["ParameterServer"]

CHOICES = {
    "consistency": ("bsp", "ssp", "async"),
    "update_on": ("servers", "workers"),
    "damping": ("staleness", "workers", "none"),
}


@dataclass(frozen=True)
class ParameterServer(PeerStrategy):
    """The weights are cut into parts, one on each of `servers` workers (0: on all), where a thread serves it.

    consistency: "bsp" makes one update of the contributions of all workers, as allreduce does. "ssp" makes an update of
    each as it comes, and a worker may be `staleness` contributions ahead of the slowest: what it reads holds all that
    anyone has contributed up to so many before its own. With staleness 0 it is bsp. "async" has no bound, and the
    minibatches of an epoch go to whoever is free.

    update_on: the optimizer runs on the "servers", on gradients; or each of the "workers" runs its own for `window`
    updates and pushes the change of its weights (Downpour). Momentum on servers that update at each push, all of them
    somewhat stale, soon is too much: there take less of it, or let workers update. damping: what a contribution that is
    applied as it comes is multiplied with: "staleness", 1 / (1 + updates since the worker's last read); "workers", 1 /
    P; or "none". backup: with bsp, an update is made of the first P - backup contributions, and later ones are dropped.

    replicate: each server keeps a copy of the part of the one before it, and answers once its own copy is up to date:
    when a worker is lost, training goes on from what the others have, and no update is lost with a server.

    group: so many consecutive workers act as one, the last group of those that are left; servers move as many times
    fewer bytes. The members' gradients are added up, and the first of them pushes the sum, pulls, and hands on what it
    gets. Between groups the consistency is as set; staleness, damping and backup count groups. dedicated: the first
    `servers` workers only serve; they hold no rows, and the others train. training.workers counts both.

    factors: of a dense layer, x and delta are pushed in place of the gradient x^T delta wherever they are smaller,
    which depends on the worker's rows of the minibatch (Chilimbi et al. 2014). That goes with update_on = "servers",
    group 1 and accumulate 1, without compressor and clip_value; otherwise it has no effect.

    training.clip_* clip the gradient of each worker, or group. compressor: of what is pushed, with error feedback on
    the worker. trace: a folder on the workers' disks into which each server writes, as JSON lines, every push and read
    in the order in which they took effect. The history tells the staleness, by updates of others, and the pushes
    dropped.
    """

    consistency: Literal["bsp", "ssp", "async"] = "ssp"
    staleness: int = field(default=2, metadata=NATURAL)
    servers: int = field(default=0, metadata=NATURAL)
    update_on: Literal["servers", "workers"] = "servers"
    window: int = field(default=1, metadata=COUNT)
    damping: Damping = "staleness"
    backup: int = field(default=0, metadata=NATURAL)
    replicate: bool = False
    compressor: Compressor = field(default_factory=Uncompressed)
    trace: str = ""
    group: int = field(default=1, metadata=COUNT)
    dedicated: bool = False
    factors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}.")
        if self.dedicated and not self.servers:
            raise ConfigError("dedicated servers are so many of the workers: set strategy.servers to 1 or more.")
        if self.window > 1 and self.update_on == "servers":
            raise ValueError(
                f"window = {self.window}: between two pushes workers update weights of their own. "
                'Set update_on = "workers".'
            )
        if self.backup and not (self.whole_clocks and self.window == 1 and self.update_on == "servers"):
            raise ValueError(
                f'backup = {self.backup} goes with consistency = "bsp", update_on = "servers" and window 1 only.'
            )

    @property
    def spare(self) -> int:
        """The servers, where they only serve."""
        return self.servers if self.dedicated else 0

    @property
    def whole_clocks(self) -> bool:
        """Whether an update is made of one contribution of each worker."""
        return self.consistency == "bsp" or (self.consistency == "ssp" and self.staleness == 0)

    def check(self, task: Task, workers: int) -> None:
        """Errors: ConfigError for more servers or backup workers than there are workers for."""
        if self.servers > workers:
            raise ConfigError(f"strategy.servers = {self.servers}, but there are {workers} workers to serve on.")
        if self.replicate and (self.servers or workers) < 2:
            raise ConfigError("strategy.replicate keeps a copy on another server; there is only one. Take two or more.")
        teams, what = self._teams(workers), "workers" if self.group == 1 else f"groups of {self.group} workers"
        if self.backup >= teams:
            raise ConfigError(
                f"strategy.backup = {self.backup} of {teams} {what} leaves none whose contribution counts."
            )

    def simulated(self, workers: int) -> simulate.Mode:
        """As `Strategy.simulated`."""
        consistency = "bsp" if self.whole_clocks else self.consistency
        return simulate.ParameterServer(
            consistency,
            self.staleness,
            self.servers or workers,
            self.window,
            self.backup,
            self.compressor,
            colocated=not self.dedicated,
        )

    def salvage(self, run: Run, words: Words) -> bool:
        """As `PeerStrategy.salvage`."""
        return self.replicate and restore(run, words, self.servers or words.size, self.whole_clocks)

    def steps(self, peer: Peer) -> PeerSteps:
        """As `PeerStrategy.steps`."""
        size = peer.comm.size
        settings = Settings(
            servers=self.servers or size,
            group=self.group,
            spare=self.spare,
            factors=self._sends_factors(peer.task.training),
            local=self.update_on == "workers",
            window=self.window,
            quorum=self._teams(size) - self.backup if self.whole_clocks else 0,
            lead=None if self.consistency == "async" else 0 if self.whole_clocks else self.staleness,
            damping=self.damping,
            replicate=self.replicate,
            compressor=self.compressor,
            trace=self.trace,
        )
        return (FreeServerSteps if settings.lead is None else ClockSteps)(settings, peer)

    def _sends_factors(self, training: Training) -> bool:
        plain = self.compressor == Uncompressed() and self.update_on == "servers" and self.group == 1
        return self.factors and plain and training.accumulate == 1 and training.clip.value is None

    def _teams(self, workers: int) -> int:
        return -(-(workers - self.spare) // self.group)
