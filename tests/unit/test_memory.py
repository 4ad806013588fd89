"""Arrays of one step are made of the memory of the step before."""

from __future__ import annotations

import multiprocessing
import platform
import resource
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from sparkdl.ops.scratch import scratch
from sparkdl.train import memory


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step() -> None:
    """As many pages as 30 arrays of 3 MB have, all written."""
    held = [np.ones(3 << 17) for _ in range(30)]
    held.clear()


def faults_of_steps() -> list[int]:
    """Of one step with memory held, and of one after its release."""
    found = []
    for change in (memory.hold, memory.release):
        change()
        if change is memory.hold:
            step()
        before = faults()
        step()
        found.append(faults() - before)
    return found


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's allocator")
def test_held_memory_is_used_again_and_released_memory_given_back() -> None:
    """In a process of its own: where larger arrays have lain before, the heap may consist of huge pages."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        held, released = pool.submit(faults_of_steps).result(60)
    assert held < 1000
    assert released > 10_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    memory.hold()
    memory.release()


def test_scratch_is_kept_by_name_and_by_thread() -> None:
    first = scratch("test", (3, 4), np.float32)
    assert (first.shape, first.dtype) == ((3, 4), np.float32)
    assert np.shares_memory(first, scratch("test", (5,), np.float64))
    assert not np.shares_memory(first, scratch("other", (3, 4), np.float32))
    assert scratch("test", (100,), np.float64).size == 100
    found = []
    thread = threading.Thread(target=lambda: found.append(scratch("test", (3, 4), np.float32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(found[0], scratch("test", (3, 4), np.float32))
