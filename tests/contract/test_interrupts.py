"""A transport may be told from another thread that all is over: whoever waits in it leaves, on every rank."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from ranks import KINDS, group

from sparkdl.comm import CommError, PeerAborted, Transport
from sparkdl.comm.transport.doorbell import Doorbell


def receive(transport: Transport) -> float:
    """Wait for what never comes; the seconds until the error."""
    started = time.monotonic()
    with pytest.raises(CommError, match="the backward pass failed") as caught:
        transport.recv(1 - transport.rank, 0, np.zeros(1 << 20, np.float32))
    assert caught.value.culprit == 0
    assert transport.rank == 0 or isinstance(caught.value, PeerAborted)
    return time.monotonic() - started


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_ends_what_is_under_way_on_all_ranks(kind: str) -> None:
    with group(kind, 2) as transports, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(receive, transport) for transport in transports]
        time.sleep(0.2)
        interrupter = threading.Thread(target=transports[0].interrupt, args=("the backward pass failed",))
        interrupter.start()
        interrupter.join()
        assert max(future.result(timeout=10) for future in waiting) < 5


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_spoils_later_operations(kind: str) -> None:
    with group(kind, 2) as transports:
        transports[0].interrupt("the backward pass failed")
        with pytest.raises(CommError, match="the backward pass failed"):
            transports[0].isend(1, 0, np.zeros(1))


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_may_be_overtaken_by_the_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits hears of it at once, and closes the transport before the interrupter has rung the last bell."""
    with group(kind, 2) as transports:
        monitor: Any = getattr(transports[0], "_monitor", None)
        if monitor is None:
            pytest.skip("nothing is rung between threads")
        told = monitor._fail

        def slowly(*args: Any) -> None:
            told(*args)
            transports[0].close()

        monkeypatch.setattr(monitor, "_fail", slowly)
        transports[0].interrupt("the backward pass failed")


def test_a_closed_doorbell_wakes_nobody() -> None:
    """Its descriptors may be another's by then."""
    bell = Doorbell()
    bell.close()
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        bell.ring()
        with pytest.raises(BlockingIOError):
            os.read(read_end, 1)
    finally:
        os.close(read_end)
        os.close(write_end)
