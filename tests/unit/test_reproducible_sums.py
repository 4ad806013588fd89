"""Butterflies add up in one order: the bits of a sum depend on the number of ranks, not on algorithm or pieces."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import group, on_ranks

from sparkdl.comm import AllReducer, Transport, allreduce
from sparkdl.comm.shared import in_butterfly_order
from sparkdl.comm.topology import Hosts

COUNT = 1001


def total(size: int, algorithm: str, cut: int, kind: str = "inproc") -> bytes:
    """The sum of random float32 vectors over `size` ranks, reduced in two pieces."""

    def work(transport: Transport) -> bytes:
        vec = np.random.default_rng(transport.rank).standard_normal(COUNT).astype(np.float32)
        for piece in (vec[:cut], vec[cut:]):
            allreduce(transport, piece, "sum", algorithm)
        return vec.tobytes()

    with group(kind, size) as transports:
        found = on_ranks(size, lambda rank: work(transports[rank]))
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 9, 16])
def test_one_order_of_addition(size: int) -> None:
    sums = {total(size, a, cut) for a in ("recursive_doubling", "rabenseifner") for cut in (0, 1, 500, COUNT - 3)}
    assert len(sums) == 1


def test_a_ring_adds_in_an_order_that_depends_on_the_pieces() -> None:
    assert len({total(5, "ring", cut) for cut in (0, 500)}) == 2


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 8])
def test_memory_in_common_adds_in_the_same_order(size: int) -> None:
    assert total(size, "shared", 500, "shm") == total(size, "recursive_doubling", 0)


@pytest.mark.parametrize("kind", ["inproc", "shm", "tcp"])
def test_a_reproducible_choice_is_made_among_butterflies(kind: str) -> None:
    def work(transport: Transport) -> set[str]:
        return {choice.algorithm for choice in AllReducer(transport, budget_s=0.05, reproducible=True).table}

    with group(kind, 3) as transports:
        tables = on_ranks(3, lambda rank: work(transports[rank]))
    assert tables[0] == tables[1] == tables[2] <= {"recursive_doubling", "rabenseifner", "shared"}


def test_arenas_that_a_butterfly_could_have_made() -> None:
    orders = {"aaa": True, "abc": True, "aabb": True, "abab": False, "aaab": False, "aabbcc": False, "aaaabbbb": True}
    assert {names: in_butterfly_order(Hosts.of(names)) for names in orders} == orders
