"""The simulator against closed forms, to 1 %, and its parts against plainer ones."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from sparkdl.comm import gossip
from sparkdl.comm.cost import COSTS, Link, best_segment, hierarchical_cost
from sparkdl.comm.cost import simulate as simulate_schedule
from sparkdl.comm.schedules import ALLREDUCE
from sparkdl.comm.schedules.base import planned
from sparkdl.comm.topology import Hosts
from sparkdl.simulate import (
    ETHERNET,
    AllReduce,
    AsyncGossip,
    Averaging,
    Cluster,
    Collective,
    Compute,
    Gossip,
    ParameterServer,
    simulate,
)
from sparkdl.simulate.delivery import Message, deliver
from sparkdl.simulate.lockstep import ROTATIONAL, advance, rotated_rows, rows_of
from sparkdl.simulate.ports import play

N = 25e6
STEP = Compute(0.1)
MESSAGE_S = ETHERNET.alpha + N * ETHERNET.beta


def step_s(mode, cluster, compute=STEP, **settings):
    return simulate(mode, cluster, compute, N, **settings).throughput.step_s


# ---- collectives


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 16, 64])
@pytest.mark.parametrize("name", ALLREDUCE)
def test_allreduce_takes_compute_and_the_formula(name, size):
    segment = best_segment(size, N, ETHERNET) if name == "chain" else 1 << 19
    expected = 0.1 + COSTS[name](size, N, ETHERNET, segment)
    assert step_s(AllReduce(name), Cluster(size), steps=3) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ["ring", "rabenseifner", "recursive_doubling", "tree"])
@pytest.mark.parametrize("size", [512, 1024])
def test_allreduce_of_many_ranks_takes_as_long_as_the_formula(name, size):
    expected = 0.1 + COSTS[name](size, N, ETHERNET, 1 << 19)
    assert step_s(AllReduce(name), Cluster(size), steps=1) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 4), (4, 2), (8, 4)])
@pytest.mark.parametrize("leaders", ["one", "all"])
def test_hierarchical_allreduce_shares_the_port_of_a_host(hosts, per_host, leaders):
    within = Link(5e-6, 1e-10, 1e-10)
    cluster = Cluster(hosts * per_host, per_host=per_host, within=within)
    count = 1 if leaders == "one" else per_host
    expected = 0.1 + hierarchical_cost(Hosts.of(cluster.hosts), N, within, ETHERNET, count)
    name = "hierarchical" if leaders == "one" else "hierarchical_sliced"
    assert step_s(AllReduce(name), cluster, steps=3) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ALLREDUCE)
@pytest.mark.parametrize("size", [2, 3, 4, 8, 13])
def test_play_is_the_simulation_of_comm_cost(name, size):
    count, segment = 960 * size, 100 * size
    plans = [planned(ALLREDUCE[name], rank, size, count, segment) for rank in range(size)]
    ends = play(plans, 4, Cluster(size), np.zeros(size))
    expected = simulate_schedule(ALLREDUCE[name], size, count, segment, 4, lambda a, b: ETHERNET)
    assert max(ends) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("per_host", [1, 3])
@pytest.mark.parametrize("size", [2, 3, 4, 8, 13])
@pytest.mark.parametrize("schedule", ROTATIONAL, ids=lambda s: s.__name__)
def test_rows_are_the_schedule(schedule, size, per_host):
    """Of a ring from rank 0's steps alone; and ranks that start apart end as they do message by message."""
    cluster = Cluster(size, per_host=per_host, within=Link(1e-6, 1e-10, 1e-10))
    count, segment, starts = 96 * size, 10, np.random.default_rng(size).random(size) * 1e-3
    plans = [planned(schedule, rank, size, count, segment) for rank in range(size)]
    rotated, found = rotated_rows(schedule, count, segment, 4, cluster), rows_of(plans, 4, cluster)
    for a, b in zip(rotated, found, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-15)
    np.testing.assert_allclose(advance(rotated, starts), play(plans, 4, cluster, starts), rtol=1e-12)


@pytest.mark.parametrize("name", ["recursive_doubling", "rabenseifner"])
def test_ranks_that_move_together_take_rows(name):
    plans = [planned(ALLREDUCE[name], rank, 8, 800, 1) for rank in range(8)]
    starts = np.random.default_rng(1).random(8) * 1e-4
    rows = rows_of(plans, 4, Cluster(8))
    np.testing.assert_allclose(advance(rows, starts), play(plans, 4, Cluster(8), starts), rtol=1e-12)
    assert rows_of(plans, 4, Cluster(8, per_host=2)) is None  # a host's ranks all send out at once
    odd = [planned(ALLREDUCE[name], rank, 6, 800, 1) for rank in range(6)]
    assert rows_of(odd, 4, Cluster(6)) is None


def test_a_late_rank_delays_a_ring_by_as_much_as_it_is_late():
    collective, starts = Collective("ring", Cluster(16), N), np.zeros(16)
    together = collective.finish(starts).max()
    starts[5] = 10 * together
    np.testing.assert_allclose(collective.finish(starts), 11 * together, rtol=1e-9)


def test_sent_bytes():
    for name, share in (("ring", 2 * 7 / 8), ("rabenseifner", 2 * 7 / 8), ("recursive_doubling", 3), ("star", 14 / 8)):
        report = simulate(AllReduce(name), Cluster(8), STEP, N, steps=1)
        assert report.throughput.sent_bytes == pytest.approx(share * N, rel=1e-5)
    assert simulate(Averaging(5), Cluster(8), STEP, N).throughput.sent_bytes == pytest.approx(
        2 * 7 / 8 * N / 5, rel=1e-5
    )
    assert simulate(Averaging(5), Cluster(1), STEP, N).throughput.sent_bytes == 0


# ---- averaging


@pytest.mark.parametrize("period", [1, 4, 10])
def test_averaging_pays_for_communication_once_a_period(period):
    shares = COSTS["ring"](16, 16, ETHERNET, 1)  # told before the weights
    expected = 0.1 + (shares + COSTS["ring"](16, N, ETHERNET, 1)) / period
    report = simulate(Averaging(period), Cluster(16), STEP, N, steps=20)
    assert report.throughput.step_s == pytest.approx(expected, rel=0.01)
    assert report.staleness == ((period - 1) / 2, period - 1)


def test_everyone_waits_for_the_slowest():
    """The largest of P exponential times is 1 + 1/2 + ... + 1/P means."""
    harmonic = sum(1 / k for k in range(1, 65))
    compute = Compute(1.0, "exponential")
    report = simulate(AllReduce("recursive_doubling"), Cluster(64, Link(1e-9, 0, 0)), compute, 4, steps=4000)
    assert report.throughput.step_s == pytest.approx(harmonic, rel=0.01)
    # A period evens out: the sum of 100 such times is normal, about.
    report = simulate(Averaging(100, "recursive_doubling"), Cluster(64, Link(1e-9, 0, 0)), compute, 4, steps=20_000)
    assert 1.15 < report.throughput.step_s < 1.35


def test_stragglers_slow_consistent_modes_and_not_the_others():
    compute, cluster = Compute(0.1, stragglers=1, slowdown=3), Cluster(8, Link(1e-6, 1e-12, 0))
    assert step_s(AllReduce(), cluster, compute) == pytest.approx(0.3, rel=0.01)
    assert step_s(Averaging(4), cluster, compute) == pytest.approx(0.3, rel=0.01)
    assert step_s(ParameterServer("bsp"), cluster, compute) == pytest.approx(0.3, rel=0.01)
    assert step_s(ParameterServer("ssp", 3), cluster, compute, steps=60) == pytest.approx(0.3, rel=0.05)
    # 7 workers at full speed, one at a third: 8 / (7 + 1/3) of a step.
    assert step_s(ParameterServer(), cluster, compute, steps=60) == pytest.approx(0.1 * 8 / (7 + 1 / 3), rel=0.01)


# ---- gossip


@pytest.mark.parametrize(
    ("topology", "messages"),
    [
        (gossip.Ring(), 2),
        (gossip.Ring("left"), 1),
        (gossip.OnePeerExponential(), 1),
        (gossip.RandomPairs(), 1),
        (gossip.Exponential(), 4),
    ],
    ids=str,
)
def test_gossip_takes_compute_and_its_messages(topology, messages):
    report = simulate(Gossip(topology), Cluster(16), STEP, N, steps=5)
    fold_in = N * ETHERNET.gamma
    # The port takes the next message once the last has been folded in.
    assert report.throughput.step_s == pytest.approx(0.1 + messages * (MESSAGE_S + fold_in), rel=0.01)
    assert report.throughput.sent_bytes == messages * N


def test_gossip_waits_for_neighbours_alone():
    """Delays spread by one rank a step."""
    starts = np.zeros(9)
    starts[4] = 1.0
    rows = [[Message(rank, peer, 0) for peer in gossip.Ring()(0, rank, 9).targets] for rank in range(9)]
    ends = deliver(rows, Cluster(9, Link(1e-6, 0, 0)), starts)
    assert [end > 0.5 for end in ends] == [False, False, False, True, True, True, False, False, False]


def test_asynchronous_gossip_delays_those_who_ask():
    """Half of the workers pay for two messages a step, folded in at both ends; the others compute all the time."""
    swap = 2 * (MESSAGE_S + N * ETHERNET.gamma)
    report = simulate(AsyncGossip(), Cluster(2), STEP, N, batch=5, steps=20)
    assert report.throughput.samples_per_s == pytest.approx(5 * (1 / (0.1 + swap) + 1 / 0.1), rel=0.01)
    assert report.throughput.sent_bytes == pytest.approx(2 * N * 0.1 / (0.2 + swap), rel=0.01)
    alone = simulate(AsyncGossip(), Cluster(1), STEP, N).throughput
    assert (alone.efficiency, alone.sent_bytes) == (pytest.approx(1), 0)
    # One passive worker for two active ones, and swaps that outlast all else: its ports are busy all the time, each way
    # with one message a swap, the way in with folding it in as well.
    busy = simulate(AsyncGossip(), Cluster(3), Compute(1e-6), N, steps=200).throughput
    fold_in = N * ETHERNET.gamma
    asked = 1 / (MESSAGE_S + fold_in)
    assert busy.samples_per_s - 1e6 == pytest.approx(asked, rel=0.01)


def test_asynchronous_gossip_does_not_wait_for_stragglers():
    compute, cluster = Compute(0.1, stragglers=1, slowdown=5), Cluster(8, Link(1e-6, 0, 0))
    assert step_s(AsyncGossip(), cluster, compute) == pytest.approx(0.1 * 8 / 7.2, rel=0.01)
    assert step_s(Gossip(gossip.Full()), cluster, compute) == pytest.approx(0.5, rel=0.01)


def test_ranks_of_a_host_share_its_port():
    pairs = [[Message(rank, (rank + 2) % 4, 1e6)] for rank in range(4)]
    alone = deliver(pairs, Cluster(4, Link(0, 1e-6, 0)), np.zeros(4))
    shared = deliver(pairs, Cluster(4, Link(0, 1e-6, 0), per_host=2), np.zeros(4))
    assert alone == [1.0] * 4
    assert sorted(shared) == [1.0, 1.0, 2.0, 2.0]
    inside = [[Message(rank, rank ^ 1, 1e6)] for rank in range(4)]
    within = Cluster(4, Link(0, 1e-6, 0), per_host=2, within=Link(0, 1e-7, 0))
    assert deliver(inside, within, np.zeros(4)) == pytest.approx([0.1] * 4)


# ---- parameter server


def test_a_lone_worker_pushes_and_pulls():
    expected = 0.1 + 2 * MESSAGE_S + N * ETHERNET.gamma
    for consistency in ("bsp", "ssp", "async"):
        report = simulate(ParameterServer(consistency), Cluster(1), STEP, N, steps=20)
        assert report.throughput.step_s == pytest.approx(expected, rel=0.01)
        assert report.staleness == (0, 0)


@pytest.mark.parametrize(("workers", "servers"), [(32, 1), (64, 4), (4096, 16)])
def test_a_busy_server_sets_the_pace(workers, servers):
    report = simulate(ParameterServer(servers=servers), Cluster(workers), STEP, N, batch=10, steps=20)
    per_push = ETHERNET.alpha + N * (ETHERNET.beta + ETHERNET.gamma) / servers
    assert report.throughput.samples_per_s == pytest.approx(10 / per_push, rel=0.01)
    assert report.staleness.mean == pytest.approx(workers - 1, rel=0.01)


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_bsp_waits_for_all_pushes(workers):
    """The first pull, its computation, then all pushes in a row: pushes take longer than the pulls that spread them."""
    expected = 0.1 + 2 * ETHERNET.alpha + N * ETHERNET.beta + workers * N * (ETHERNET.beta + ETHERNET.gamma)
    assert step_s(ParameterServer("bsp"), Cluster(workers), steps=20) == pytest.approx(expected, rel=0.01)


def test_ssp_with_no_slack_is_bsp_and_with_much_is_async():
    compute, cluster = Compute(0.1, "lognormal", cv=0.5), Cluster(16)
    ssp = simulate(ParameterServer("ssp", 0), cluster, compute, N / 100, steps=30)
    assert ssp == simulate(ParameterServer("bsp"), cluster, compute, N / 100, steps=30)
    loose = simulate(ParameterServer("ssp", 30), cluster, compute, N / 100, steps=30)
    assert loose == simulate(ParameterServer("async"), cluster, compute, N / 100, steps=30)
    between = simulate(ParameterServer("ssp", 2), cluster, compute, N / 100, steps=30)
    assert ssp.throughput.step_s > between.throughput.step_s > loose.throughput.step_s


@pytest.mark.parametrize("slack", [1, 3])
def test_ssp_bounds_staleness(slack):
    """Of P workers that are at most s + 1 steps apart when one pushes, the others made at most so many pushes since."""
    compute = Compute(0.01, "exponential")
    report = simulate(ParameterServer("ssp", slack), Cluster(8, Link(1e-6, 0, 0)), compute, 4, steps=200)
    assert 0 < report.staleness.most <= 7 * (2 * slack + 1)
    free = simulate(ParameterServer("async"), Cluster(8, Link(1e-6, 0, 0)), compute, 4, steps=200)
    assert free.staleness.mean == pytest.approx(7, rel=0.05)


# ---- compute times


@pytest.mark.parametrize("distribution", ["constant", "normal", "lognormal", "exponential"])
def test_compute_times_have_the_stated_moments(distribution):
    times = Compute(0.2, distribution, cv=0.3).draw(np.random.default_rng(0), 100, 2000)
    assert times.shape == (2000, 100)
    assert times.min() >= 0
    assert times.mean() == pytest.approx(0.2, rel=0.01)
    cv = {"constant": 0.0, "exponential": 1.0}.get(distribution, 0.3)
    assert times.std() / times.mean() == pytest.approx(cv, abs=0.01)


def test_stragglers_and_pauses():
    times = Compute(1.0, stragglers=2, slowdown=4, pause=0.25, pause_s=10).draw(np.random.default_rng(0), 5, 4000)
    np.testing.assert_allclose(times.mean(axis=0), [6.5, 6.5, 3.5, 3.5, 3.5], rtol=0.05)
    assert set(np.unique(times)) == {1, 4, 11, 14}


# ---- the whole


def test_same_seed_same_report_and_efficiency():
    compute = Compute(0.1, "lognormal", cv=0.4)
    mode, cluster = AllReduce(), Cluster(16)
    first = simulate(mode, cluster, compute, N, batch=32, seed=1)
    assert first == simulate(mode, cluster, compute, N, batch=32, seed=1)
    assert first != simulate(mode, cluster, compute, N, batch=32, seed=2)
    ideal = simulate(mode, Cluster(1), STEP, N, batch=32).throughput
    assert ideal == pytest.approx((320.0, 0.1, 1.0, 0.0, 0.0))
    t = first.throughput
    assert t.samples_per_s * t.step_s == pytest.approx(16 * 32)
    assert t.efficiency == pytest.approx(0.1 / t.step_s)


@pytest.mark.parametrize(
    "mode",
    [AllReduce(), Averaging(8), AsyncGossip(), Gossip(gossip.OnePeerExponential()), ParameterServer("ssp", 3)],
    ids=repr,
)
def test_thousands_of_workers_in_seconds(mode):
    start = time.process_time()
    report = simulate(mode, Cluster(4096, per_host=8), Compute(0.1, "lognormal", stragglers=4), N, steps=3)
    assert time.process_time() - start < 10
    assert 0 < report.throughput.efficiency < 1


def test_fields_have_limits():
    with pytest.raises(ValueError, match="workers must be an integer"):
        Cluster(0)
    with pytest.raises(ValueError, match="distribution must be constant, normal"):
        Compute(0.1, "uniform")
    with pytest.raises(ValueError, match='it must be "bsp", "ssp" or "async"'):
        ParameterServer("sync")
    with pytest.raises(ValueError, match="no allreduce algorithm is called 'rings'; there are star, tree"):
        simulate(AllReduce("rings"), Cluster(4), STEP, N)


def test_settings_pickle():
    for value in (Cluster(3), STEP, AllReduce(), Averaging(), Gossip(), AsyncGossip(), ParameterServer()):
        assert pickle.loads(pickle.dumps(value)) == value
