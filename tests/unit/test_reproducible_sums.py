"""Butterflies add up in one order: the bits of a sum depend on the number of ranks, not on algorithm or pieces."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import group, on_ranks

from sparkdl.comm import Transport, allreduce

COUNT = 1001


def total(size: int, algorithm: str, cut: int) -> bytes:
    """The sum of random float32 vectors over `size` ranks, reduced in two pieces."""

    def work(transport: Transport) -> bytes:
        vec = np.random.default_rng(transport.rank).standard_normal(COUNT).astype(np.float32)
        for piece in (vec[:cut], vec[cut:]):
            allreduce(transport, piece, "sum", algorithm)
        return vec.tobytes()

    with group("inproc", size) as transports:
        found = on_ranks(size, lambda rank: work(transports[rank]))
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 9, 16])
def test_one_order_of_addition(size: int) -> None:
    sums = {total(size, a, cut) for a in ("recursive_doubling", "rabenseifner") for cut in (0, 1, 500, COUNT - 3)}
    assert len(sums) == 1


def test_a_ring_adds_in_an_order_that_depends_on_the_pieces() -> None:
    assert len({total(5, "ring", cut) for cut in (0, 500)}) == 2
