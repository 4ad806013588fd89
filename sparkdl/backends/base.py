"""The contract of a backend: where code runs and how the driver hears of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sparkdl.data import DataInfo, Handle
from sparkdl.train.files import Files

__all__ = ["Backend", "Remote", "Shards"]

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


class Backend(Protocol):
    """The driver's plane of an execution: each call is one job over all shards."""

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
