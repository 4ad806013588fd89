"""What a parameter server makes of contributions, in any order of arrival."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from sparkdl.strategies.server_shard import REMEMBERED, Contribution, OnArrival, Part, WholeClocks


def pushed(
    worker: int, clock: int, value: float, weight: float = 1.0, sequence: int | None = None, loss: float = 0.0
) -> Contribution:
    """A mean of `value` from so much weight; a row weighs 1."""
    vec, buffers = np.array([value * weight]), np.array([value * weight])
    return Contribution(worker, clock + 1 if sequence is None else sequence, clock, vec, buffers, weight, weight, loss)


def whole(workers: int, quorum: int = 0, **settings: Any) -> WholeClocks:
    return _shard(WholeClocks, workers, quorum=quorum, **settings)


def arriving(workers: int, **settings: Any) -> OnArrival:
    return _shard(OnArrival, workers, **settings)


def _shard(kind: Any, workers: int, **settings: Any) -> Any:
    params = np.zeros(1)

    def update(mean: np.ndarray, factor: float, step: int) -> None:
        params[...] += factor * mean

    return kind(Part(params, np.zeros(1), {}, update), workers, [], **settings)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_clock_is_the_weighted_mean_whatever_comes_first(order: tuple[int, ...]) -> None:
    shard, values, weights = whole(3), (1e16, 1.0, -1e16), (1.0, 2.0, 1.0)
    for n, worker in enumerate(order):
        assert shard.progress == 0
        shard.push(pushed(worker, 0, values[worker], weights[worker]))
        assert shard.progress == (n == 2)
    assert shard.part.params[0] == (1e16 + 2.0 - 1e16) / 4  # added in the order of the workers: the same bits
    assert shard.part.buffers[0] == shard.part.params[0]


def test_what_comes_early_waits_for_its_clock() -> None:
    shard = whole(2)
    shard.push(pushed(0, 0, 1.0))
    shard.push(pushed(0, 1, 10.0))
    shard.push(pushed(1, 0, 3.0))
    assert (shard.progress, shard.part.params[0]) == (1, 2.0)
    shard.push(pushed(1, 1, 30.0))
    assert (shard.progress, shard.part.params[0]) == (2, 22.0)


def test_the_first_n_close_a_clock_and_the_others_are_dropped() -> None:
    shard = whole(4, quorum=3)
    for worker in (3, 0, 2):
        assert shard.push(pushed(worker, 0, float(worker)))
    assert (shard.progress, shard.part.params[0]) == (1, 5 / 3)
    assert not shard.push(pushed(1, 0, 100.0))
    assert shard.part.params[0] == 5 / 3
    assert (shard.figures.counted, shard.figures.dropped) == (3, 1)
    # One that never comes does not hold the others up.
    for clock, worker in itertools.product(range(1, 6), (0, 2, 3)):
        shard.push(pushed(worker, clock, 1.0))
    assert shard.progress == 6
    assert shard.part.params[0] == pytest.approx(5 / 3 + 5)


def test_losses_are_those_of_the_clocks_asked_for_however_late() -> None:
    shard = whole(2)
    shard.push(pushed(0, 0, 1.0, loss=1.0))
    assert shard.losses_until(1).tolist() == [0.0, 0.0]  # not closed yet
    for clock, worker in ((0, 1), (1, 0), (1, 1), (2, 1)):
        shard.push(pushed(worker, clock, 1.0, weight=2.0, loss=10.0**clock))
    assert shard.losses_until(1).tolist() == [2.0, 3.0]
    assert shard.losses_until(2).tolist() == shard.losses_until(3).tolist() == [22.0, 7.0]
    shard = arriving(2)
    shard.push(pushed(1, 0, 1.0, loss=3.0))
    assert shard.losses_until(7).tolist() == [3.0, 1.0]


def test_losses_of_long_ago_are_forgotten() -> None:
    shard = whole(1)
    for clock in range(REMEMBERED + 10):
        shard.push(pushed(0, clock, 0.0, loss=1.0))
    assert len(shard._losses) == REMEMBERED
    assert shard.losses_until(REMEMBERED + 9)[0] == REMEMBERED + 9
    assert shard.losses_until(3)[0] == 11  # the oldest known


def test_a_push_delivered_twice_counts_once() -> None:
    for shard in (whole(2), arriving(2, damping="none")):
        assert shard.push(pushed(0, 0, 1.0))
        assert not shard.push(pushed(0, 0, 1.0))
        shard.push(pushed(1, 0, 1.0))
        assert not shard.push(pushed(1, 0, 1.0))
        assert shard.figures.counted == 2
    assert shard.part.params[0] == 2.0


def test_without_weight_nothing_changes_but_the_clock() -> None:
    shard = whole(2)
    for worker in (0, 1):
        shard.push(pushed(worker, 0, 5.0, weight=0.0))
    assert (shard.progress, shard.part.params[0]) == (1, 0.0)


@pytest.mark.parametrize(
    ("damping", "factors"), [("none", [1, 1, 1]), ("workers", [1 / 3] * 3), ("staleness", [1, 1 / 2, 1 / 3])]
)
def test_damping(damping: Any, factors: list[float]) -> None:
    """All read at once; the second to push is stale by one update, the third by two."""
    shard = arriving(3, damping=damping)
    for worker in range(3):
        shard.read(worker, 0)
    for worker in range(3):
        before = shard.part.params[0]
        shard.push(pushed(worker, 0, 6.0))
        assert shard.part.params[0] - before == pytest.approx(6 * factors[worker])
    assert (shard.figures.stale, shard.figures.stalest) == (3, 2)


def test_a_bounded_read_waits_for_the_slowest() -> None:
    shard = arriving(2, bounded=True)
    for clock in range(3):
        shard.push(pushed(0, clock, 1.0))
    assert shard.progress == 0
    shard.push(pushed(1, 0, 1.0))
    assert shard.progress == 1
    assert arriving(2).progress == 0


@pytest.mark.parametrize("tau", [0, 1, 2, 4, 8])
def test_gradients_that_come_late_are_stable_up_to_the_limit(tau: int) -> None:
    """w <- w - eta h w(t - tau) on a quadratic of curvature h: stable iff eta h < 2 sin(pi / (2 (2 tau + 1)))."""
    limit = 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
    assert round(limit, 3) == {0: 2.0, 1: 1.0, 2: 0.618, 4: 0.347, 8: 0.185}[tau]
    for factor, settles in ((0.97, True), (1.03, False)):
        # tau + 1 workers in turn: each push answers a read of tau updates ago.
        workers = tau + 1
        shard = arriving(workers, damping="none")
        shard.part.params[...] = 1.0
        held = [float(shard.read(worker, 0)[0]) for worker in range(workers)]
        for turn in range(4000):
            worker, clock = turn % workers, turn // workers
            shard.push(pushed(worker, clock, -factor * limit * held[worker]))
            held[worker] = float(shard.read(worker, clock + 1)[0])
        assert (abs(shard.part.params[0]) < 1e-3) == settles
        assert shard.figures.stalest == tau


def test_reads_do_not_change_after_they_were_given() -> None:
    shard = arriving(1, damping="none")
    first = shard.read(0, 0)
    assert first is shard.read(0, 0)
    shard.push(pushed(0, 0, 1.0))
    assert first.tolist() == [0.0, 0.0]
    assert shard.read(0, 1).tolist() == [1.0, 1.0]
    assert [event["event"] for event in shard.trace or ()] == ["read", "read", "push", "read"]
