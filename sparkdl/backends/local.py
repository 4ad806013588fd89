"""Threads of this process in place of a cluster: the same jobs over the same shards, without a JVM."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from sparkdl.backends.base import Remote, Shards
from sparkdl.data import Handle
from sparkdl.train.files import Files, LocalFiles

__all__ = ["LocalBackend"]

T = TypeVar("T")


class _Held(NamedTuple, Generic[T]):
    value: T


class LocalBackend:
    """Runs every shard's part on one of `threads` threads and adds the parts in shard order."""

    max_result_bytes: int | None = None

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"LocalBackend takes at least one thread; got {threads}.")
        self.threads = threads

    def files(self, path: str) -> Files:
        """Plain files."""
        return LocalFiles()

    @contextmanager
    def share(self, value: T) -> Iterator[Remote[T]]:
        """The value itself: threads see the same memory."""
        yield _Held(value)

    def tree_aggregate(self, shards: Shards, fn: Callable[[Handle], T], plus: Callable[[T, T], T], depth: int) -> T:
        """As `Backend.tree_aggregate`; depth is of no consequence in one process."""
        with ThreadPoolExecutor(self.threads) as pool:
            return functools.reduce(plus, pool.map(fn, shards.handles))
