"""The contract of a backend: where code runs, as jobs of the driver or as peers that meet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

from sparkdl.comm import AllGather, Transport, TransportOptions
from sparkdl.data import DataInfo, Handle
from sparkdl.train.files import Files

__all__ = ["Backend", "Group", "Peers", "Place", "Remote", "Seat", "Shards", "Slots"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Remote(Protocol[T_co]):
    """A value that the driver has shared with the workers; pickles to a reference."""

    @property
    def value(self) -> T_co: ...


class Shards(Protocol):
    """The data of a fit, one shard a worker; a context manager that deletes them at its end."""

    @property
    def info(self) -> DataInfo: ...
    @property
    def handles(self) -> tuple[Handle, ...]: ...
    def delete(self) -> None:
        """Remove the shards."""


class Slots(NamedTuple):
    """How many tasks may run at once, None where nothing limits them; and whether that number changes by itself."""

    tasks: int | None
    dynamic: bool = False


class Group(NamedTuple):
    """What tells one launch of peers from all others; secret is known to its driver and workers only."""

    job_id: str
    attempt: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Group({self.job_id}, attempt {self.attempt})"


class Place(NamedTuple):
    """One end of a circle: `rank` of `size`, joined with `peers` (None: all) and with those that name it."""

    rank: int
    size: int
    peers: tuple[int, ...] | None = None


class Seat(Protocol):
    """The place of one rank among peers that run at the same time."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def handle(self) -> Handle: ...
    def connect(
        self, group: Group, options: TransportOptions, allgather: AllGather, place: Place | None = None
    ) -> Transport:
        """Meet the other ranks, finding them by small texts. Errors: CommError.

        All ranks call it together, with a group of its own for each circle. Without a place the circle is that of the
        ranks; a rank may take several places of another one, each from a thread of its own.
        """


class Peers(Protocol):
    """Peers that have been launched."""

    def done(self) -> bool:
        """Whether all have ended, or none runs any more."""

    def wait(self) -> None:
        """Return when they are done. Errors: what ended them, if it was a failure."""

    def cancel(self) -> None:
        """End them as soon as can be."""


class Backend(Protocol):
    """Where code runs. The driver's plane: a call is one job over all shards; the executors': peers that meet."""

    @property
    def max_result_bytes(self) -> int | None:
        """What one job may bring to the driver, or None where nothing bounds it."""

    def files(self, path: str) -> Files:
        """What reads and writes this path from the driver."""

    def share(self, value: T) -> AbstractContextManager[Remote[T]]:
        """Make the value available to workers while the context is open; nothing is left behind after it."""

    def tree_aggregate(self, shards: Shards, fn: Callable[[Handle], T], plus: Callable[[T, T], T], depth: int) -> T:
        """fn of every shard's handle, brought together by plus in a tree of `depth` levels.

        plus may change and return its first argument. The order of additions depends only on the number of shards
        and the depth, so that the same input gives the same bits. A shard counts once, however often it is tried.
        """

    @property
    def driver_host(self) -> str:
        """The name or address under which workers reach the driver."""

    def slots(self) -> Slots:
        """What peers may take up at this moment."""

    def heal(self, shards: Shards) -> None:
        """Write the shards anew where one was not found. Errors: TrainingError where the rows are not the same."""

    def spread(self, shards: Shards, parts: int) -> Shards:
        """The same rows as `parts` shards, which are the caller's to delete."""

    def run_peers(self, shards: Shards, fn: Callable[[Seat], None]) -> Peers:
        """Start fn for every shard, all at the same time; returns at once."""
