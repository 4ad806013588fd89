"""Groups of ranks for the tests of communication: threads of this process, or processes that can be killed."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sparkdl.comm import Transport, TransportOptions, connect, inproc_group
from sparkdl.errors import SparkdlError

SECRET = b"0123456789abcdef0123456789abcdef"
KINDS = ("inproc", "tcp", "streams", "tls", "shm")


def options_of(kind: str, **settings: Any) -> TransportOptions:
    """The options under which ranks of one host use this kind of channel."""
    extra = {"streams": {"streams": 3}, "tls": {"tls": _tls_context}}.get(kind, {})
    return TransportOptions(shared_memory=kind == "shm", **{"interface": "lo", **extra, **settings})


def meeting_place(size: int) -> Callable[[str], list[str]]:
    """An allgather for threads; each rank's text begins with its card, so that any order will do."""
    texts: list[str] = []
    barrier = threading.Barrier(size, timeout=30)

    def allgather(text: str) -> list[str]:
        texts.append(text)
        barrier.wait()
        gathered = list(texts)
        if barrier.wait() == 0:
            texts.clear()
        barrier.wait()
        return gathered

    return allgather


def on_ranks(size: int, fn: Callable[[int], Any]) -> list[Any]:
    """[fn(0), fn(1), ...], each in a thread; the first exception by rank is raised."""
    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(fn, rank) for rank in range(size)]]


def _tls_context(server_side: bool) -> ssl.SSLContext:
    """Anonymous TLS needs no certificate files; who is who is proved by the handshake inside."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


@contextmanager
def group(kind: str, size: int, **settings: Any) -> Iterator[list[Transport]]:
    """The connected transports of `size` ranks of this process."""
    options = options_of(kind, **settings)
    with ExitStack() as stack:
        if kind == "inproc":
            transports = inproc_group(size, options)
        else:
            allgather = meeting_place(size)
            transports = on_ranks(
                size, lambda rank: connect(rank, size, allgather, SECRET, job_id="test", options=options)
            )
        for transport in transports:
            stack.callback(transport.close)
        yield transports


def run(transports: list[Transport], fn: Callable[[Transport], Any]) -> list[Any]:
    """fn of each transport, in a thread of its own, all at once."""
    return on_ranks(len(transports), lambda rank: fn(transports[rank]))


def held() -> tuple[int, int, int]:
    """Descriptors, threads and shared mappings of this process."""
    gc.collect()  # errors of earlier tests, whose tracebacks hold views
    maps = Path("/proc/self/maps").read_text().count("memfd:sparkdl")
    return len(os.listdir("/proc/self/fd")), threading.active_count(), maps


def shared_files() -> set[str]:
    """What lies in the memory that processes share as files, but for named semaphores: nothing here makes those."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def lasting_files(before: set[str]) -> set[str]:
    """The new ones that stay. Others on this machine, such as tests beside these, may put files there for a moment."""
    deadline = time.monotonic() + 5
    while (new := shared_files() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return new


@contextmanager
def nothing_kept() -> Iterator[tuple[int, int, int]]:
    """Inside it all that is `held`, and files of shared memory, must go again; gives what is held at the start."""
    before, files = held(), shared_files()
    yield before
    assert held() == before
    assert not lasting_files(files)


class Processes:
    """Ranks as processes: each runs fn(transport, say, *args), and may `say` something before it returns.

    `networks` names the network namespace of each rank, where they do not all stay in this one.
    """

    def __init__(
        self,
        size: int,
        fn: Callable[..., Any],
        *args: Any,
        kind: str = "tcp",
        networks: Sequence[str | None] = (),
        **settings: Any,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.ranks"])
        self._pipes, self._processes = [], []
        for rank, network in zip(range(size), networks or [None] * size, strict=True):
            here, there = context.Pipe()
            work = (there, rank, size, fn, args, options_of(kind, **settings), network)
            process = context.Process(target=_work, args=work, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        for _ in range(2):
            texts = [pipe.recv() for pipe in self._pipes]
            for pipe in self._pipes:
                pipe.send(texts)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()

    def signal(self, rank: int, what: signal.Signals) -> None:
        os.kill(self._processes[rank].pid, what)

    def heard(self, rank: int, timeout_s: float = 10.0) -> Any:
        """The next thing that the rank says; at the end what it returned, or the SparkdlError that it raised."""
        assert self._pipes[rank].poll(timeout_s), f"rank {rank} has not answered within {timeout_s} s"
        return self._pipes[rank].recv()


def _work(
    pipe: Connection,
    rank: int,
    size: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    options: TransportOptions,
    network: str | None,
) -> None:
    def allgather(text: str) -> list[str]:
        pipe.send(text)
        return pipe.recv()

    if network is not None:
        with open(f"/run/netns/{network}") as namespace:
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0
    try:
        with connect(rank, size, allgather, SECRET, job_id="test", options=options) as transport:
            value = fn(transport, pipe.send, *args)
    except SparkdlError as error:
        value = error
    pipe.send(value)
