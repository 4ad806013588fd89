"""Threads of this process in place of a cluster: the same jobs over the same shards, without a JVM."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from sparkdl.backends.base import Group, Peers, Place, Remote, Seat, Shards, Slots
from sparkdl.comm import AllGather, Transport, TransportOptions, inproc_group
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

    @property
    def driver_host(self) -> str:
        """Threads of this process."""
        return "127.0.0.1"

    def slots(self) -> Slots:
        """As many threads as there are peers."""
        return Slots(None)

    def heal(self, shards: Shards) -> None:
        """Threads see the disk that the shards were written to."""

    def spread(self, shards: Shards, parts: int) -> Shards:
        """Threads do not run out of slots."""
        raise AssertionError((shards, parts))

    def run_peers(self, shards: Shards, fn: Callable[[Seat], None]) -> Peers:
        """As `Backend.run_peers`."""
        return _LocalPeers(shards.handles, fn)


@dataclass
class _Table:
    """Where threads find the transports of each circle: the first to come lays them."""

    size: int
    circles: dict[Group, list[Transport]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lay(self, group: Group, size: int, options: TransportOptions) -> list[Transport]:
        with self.lock:
            if group not in self.circles:
                self.circles[group] = inproc_group(size, options)
            return self.circles[group]


@dataclass(frozen=True)
class _LocalSeat:
    rank: int
    handle: Handle
    table: _Table

    @property
    def size(self) -> int:
        return self.table.size

    def connect(
        self, group: Group, options: TransportOptions, allgather: AllGather, place: Place | None = None
    ) -> Transport:
        rank, size, _ = place or Place(self.rank, self.size)
        return self.table.lay(group, size, options)[rank]


class _LocalPeers:
    """A thread for each rank."""

    def __init__(self, handles: tuple[Handle, ...], fn: Callable[[Seat], None]) -> None:
        self._table = _Table(len(handles))
        pool = ThreadPoolExecutor(len(handles), thread_name_prefix="sparkdl-rank")
        seats = (_LocalSeat(rank, handle, self._table) for rank, handle in enumerate(handles))
        self._futures: list[Future[None]] = [pool.submit(fn, seat) for seat in seats]
        pool.shutdown(wait=False)

    def done(self) -> bool:
        if any(future.done() and future.exception() is not None for future in self._futures):
            self.cancel()  # the others may be waiting for a rank that never met them
        return all(future.done() for future in self._futures)

    def wait(self) -> None:
        for future in self._futures:
            future.result()

    def cancel(self) -> None:
        with self._table.lock:
            transports = [transport for circle in self._table.circles.values() for transport in circle]
        for transport in transports:
            transport.interrupt("the fit was cancelled")
