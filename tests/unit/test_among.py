"""Some ranks of a circle among themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparkdl.comm import CommError, Transport, allreduce, broadcast, inproc_group
from sparkdl.comm.transport.among import Among

RANKS = (4, 1, 3)


def test_collectives_over_some_ranks_in_any_order() -> None:
    def work(t: Transport) -> tuple[list[float], list[float], int | None]:
        own = Among(t, RANKS)
        assert (own.size, RANKS[own.rank]) == (3, t.rank)
        vec, given = np.array([float(t.rank), 1.0]), np.array([float(t.rank)])
        allreduce(own, vec)
        broadcast(own, given, root=1)
        if own.rank:
            own.isend(0, 0, np.zeros(1)).wait()
            return vec.tolist(), given.tolist(), None
        first = own.wait_any([2])
        for peer in (2, 1):
            own.recv(peer, 0, np.empty(1))
        return vec.tolist(), given.tolist(), first

    circle = inproc_group(5)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, [circle[rank] for rank in RANKS]))
    assert [f[:2] for f in found] == [([8.0, 3.0], [1.0])] * 3
    assert found[0][2] == 2


def test_errors_name_the_ranks_of_the_whole_circle() -> None:
    circle = inproc_group(5)
    first, second = Among(circle[1], (1, 3)), Among(circle[3], (1, 3))
    second.abort("had enough")
    with pytest.raises(CommError, match="rank 3 failed: had enough") as caught:
        first.recv(1, 0, np.empty(1))
    assert caught.value.culprit == 3
