"""Processes of this machine in place of a cluster: for peers, each on a core of its own, without a JVM."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

from sparkdl.backends.base import Group, Peers, Place, Seat, Shards, Slots
from sparkdl.backends.local import LocalBackend
from sparkdl.backends.meeting import meet
from sparkdl.comm import AllGather, Transport, TransportOptions
from sparkdl.data import Handle
from sparkdl.errors import TrainingError

__all__ = ["ProcessBackend"]

PRELOADED = ["sparkdl.strategies"]  # imported once, by the server that forks the processes
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of the library that multiplies matrices


class ProcessBackend(LocalBackend):
    """As `LocalBackend`, but for peers, which are processes.

    What they are given is pickled: layers and losses of one's own must stand in a module. Each computes on one core
    unless OMP_NUM_THREADS is set. `prepare(rank)` is called first in each process; `driver_host` is an address of this
    process that all of them reach.
    """

    def __init__(
        self, processes: int, prepare: Callable[[int], None] | None = None, driver_host: str = "127.0.0.1"
    ) -> None:
        super().__init__(processes)
        self._prepare, self._driver_host = prepare, driver_host

    @property
    def driver_host(self) -> str:
        """Loopback, unless the processes are elsewhere."""
        return self._driver_host

    def slots(self) -> Slots:
        """As many processes as there are peers."""
        return Slots(None)

    def run_peers(self, shards: Shards, fn: Callable[[Seat], None]) -> Peers:
        """As `Backend.run_peers`."""
        size = len(shards.handles)
        seats = (_ProcessSeat(rank, size, handle, self._driver_host) for rank, handle in enumerate(shards.handles))
        return _Processes(seats, fn, self._prepare)


@dataclass(frozen=True)
class _ProcessSeat:
    rank: int
    size: int
    handle: Handle
    driver_host: str

    def connect(
        self, group: Group, options: TransportOptions, allgather: AllGather, place: Place | None = None
    ) -> Transport:
        return meet(self, group, options, allgather, place, self.driver_host)


class _Processes:
    def __init__(
        self, seats: Iterable[Seat], fn: Callable[[Seat], None], prepare: Callable[[int], None] | None
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        _start_server()
        self._processes: list[BaseProcess] = []
        for seat in seats:
            name = f"sparkdl-rank-{seat.rank}"
            process = context.Process(target=_run, args=(seat, fn, prepare), name=name, daemon=True)
            self._processes.append(process)
            process.start()

    def done(self) -> bool:
        return not any(process.is_alive() for process in self._processes)

    def wait(self) -> None:
        for process in self._processes:
            process.join()
        codes = [process.exitcode for process in self._processes]
        for process in self._processes:
            process.close()
        if any(codes):
            rank = next(r for r, code in enumerate(codes) if code)
            raise TrainingError(f"the process of rank {rank} ended with exit code {codes[rank]}")

    def cancel(self) -> None:
        for process in self._processes:
            process.kill()


def _start_server() -> None:
    """Start what forks the processes, once; each computes on one core unless the environment says otherwise.

    Otherwise each would have as many threads as there are cores, which spin while those of the others compute.
    """
    added = {} if any(name in os.environ for name in THREADS) else {THREADS[0]: "1"}
    os.environ.update(added)
    try:
        forkserver.ensure_running()
    finally:
        for name in added:
            del os.environ[name]


def _run(seat: Seat, fn: Callable[[Seat], None], prepare: Callable[[int], None] | None) -> None:
    if prepare is not None:
        prepare(seat.rank)
    try:
        fn(seat)
    except Exception:  # the driver has been told
        sys.exit(1)
