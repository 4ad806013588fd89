"""A transport may be told from another thread that all is over: whoever waits in it leaves, on every rank."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ranks import KINDS, group

from sparkdl.comm import CommError, PeerAborted, Transport


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
