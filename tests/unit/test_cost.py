"""The cost formulas against a simulation of the schedules themselves."""

from __future__ import annotations

import math

import pytest

from sparkdl.comm.cost import (
    COSTS,
    Link,
    best_segment,
    chain_cost,
    hierarchical_cost,
    rabenseifner_cost,
    shared_cost,
    simulate,
)
from sparkdl.comm.schedules import ALLREDUCE, Hierarchical, Recv, Send, Step
from sparkdl.comm.topology import Hosts

ETHERNET = Link(alpha=30e-6, beta=4e-10, gamma=1e-10)
SIZES = [*range(1, 18), 23, 31, 32, 33, 64]


@pytest.mark.parametrize("name", ALLREDUCE)
def test_formula_equals_simulation(name):
    for size in SIZES:
        count = 64 * size * 32  # every chunk and segment comes out even
        for segment in (count // 32, count // 8, count // size // 4):
            simulated = simulate(ALLREDUCE[name], size, count, segment, 4, lambda a, b: ETHERNET)
            assert COSTS[name](size, 4 * count, ETHERNET, 4 * segment) == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("per_host", [1, 2, 3, 4])
def test_hierarchical_formula_equals_simulation(hosts, per_host):
    within, between = Link(5e-6, 1e-10, 1e-10), Link(1e-4, 1e-9, 1e-10)
    size = hosts * per_host
    layout = Hosts.of([rank // per_host for rank in range(size)])
    for leaders in {1, per_host}:
        shared = between._replace(beta=leaders * between.beta)  # the simulation gives each pair a link of its own
        simulated = simulate(
            Hierarchical(layout, leaders),
            size,
            64 * size,
            1,
            4,
            lambda a, b, shared=shared: within if a // per_host == b // per_host else shared,
        )
        assert hierarchical_cost(layout, 4 * 64 * size, within, between, leaders) == pytest.approx(simulated, rel=1e-9)


def test_shared_memory_takes_three_meetings_and_fewer_copies_than_a_ring():
    within, between, n = Link(5e-6, 1e-10, 2e-10), Link(1e-4, 1e-9, 1e-10), 1e6
    # Copied at 0.8 beta: the others' slices in, the own one, the others' out. Added: a slice, k - 1 times.
    inner = {2: 15e-6 + 1.5e6 * 0.8e-10 + 0.5e6 * 2e-10, 4: 15e-6 + 1.75e6 * 0.8e-10 + 0.75e6 * 2e-10}
    for size, seconds in inner.items():
        layout = Hosts.of([0] * size)
        assert shared_cost(layout, n, within, between) == pytest.approx(seconds)
        assert shared_cost(layout, 100, within, between, short=True) == pytest.approx(
            5e-6 + 100 * (0.8e-10 + (size - 1) * 2e-10)
        )
    link = between._replace(gamma=between.gamma / 2)
    for short in (False, True):
        seconds = shared_cost(Hosts.of("aabb"), n, within, between, short)
        assert seconds == pytest.approx(inner[2] + rabenseifner_cost(2, n, link))


def test_simulation_by_hand():
    # Rank 0 sends 10 bytes to 1, which passes them on to 2 while it takes 20 more and adds them up.
    steps = (
        (Step((Send(1, 0, 10),)), Step((Send(1, 10, 30),))),
        (Step(recvs=(Recv(0, 0, 10),)), Step((Send(2, 0, 10),), (Recv(0, 10, 30, "reduce"),))),
        (Step(recvs=(Recv(1, 0, 10, "reduce"),)),),
    )
    link = Link(alpha=1.0, beta=0.1, gamma=0.01)
    assert simulate(lambda r, p, n, s: iter(steps[r]), 3, 30, 1, 1, lambda a, b: link) == pytest.approx(2 + 3 + 0.2)
    with pytest.raises(AssertionError, match="blocks"):
        simulate(lambda r, p, n, s: iter(steps[r][:1] if r else ()), 3, 30, 1, 1, lambda a, b: link)


def test_crossover_of_recursive_doubling_and_rabenseifner():
    link, p = Link(1e-5, 1e-9, 0.0), 16
    rounds = math.log2(p)
    crossover = link.alpha * rounds / (link.beta * (rounds - 2 * (p - 1) / p))
    both = COSTS["recursive_doubling"], COSTS["rabenseifner"]
    assert both[0](p, crossover, link, 1) == pytest.approx(both[1](p, crossover, link, 1))
    assert both[0](p, 0.9 * crossover, link, 1) < both[1](p, 0.9 * crossover, link, 1)
    assert both[0](p, 1.1 * crossover, link, 1) > both[1](p, 1.1 * crossover, link, 1)


def test_best_segment_is_best():
    nbytes = 1 << 26
    best = best_segment(8, nbytes, ETHERNET)
    costs = {scale: chain_cost(8, nbytes, ETHERNET, nbytes / (round(nbytes / best) * scale)) for scale in (0.5, 1, 2)}
    assert min(costs, key=costs.get) == 1
    assert best_segment(2, nbytes, ETHERNET) == nbytes
    assert best_segment(8, 100, ETHERNET) == 4096


def test_one_rank_costs_nothing():
    assert all(cost(1, 1e6, ETHERNET, 1e3) == 0 for cost in COSTS.values())
    assert COSTS.keys() == ALLREDUCE.keys()
