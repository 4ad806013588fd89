"""The simulator against closed forms, to 1 %, and its parts against plainer ones."""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from sparkdl.comm import gossip
from sparkdl.comm.compress import (
    QSGD,
    Float16,
    Int8,
    OneBit,
    PowerSGD,
    RandomK,
    TopK,
    break_even,
)
from sparkdl.comm.cost import COSTS, Link, best_segment, hierarchical_cost, shared_cost
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
    SharedMemory,
    ThroughDriver,
    simulate,
)
from sparkdl.simulate.choice import chosen
from sparkdl.simulate.delivery import Message, deliver
from sparkdl.simulate.lockstep import ROTATIONAL, advance, rotated_rows, rows_of
from sparkdl.simulate.ports import play

N = 25e6
STEP = Compute(0.1)
MESSAGE_S = ETHERNET.alpha + N * ETHERNET.beta


class Tensor(NamedTuple):
    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


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


@pytest.mark.parametrize("size", [8, 64, 512, 4096])
@pytest.mark.parametrize("name", ["ring", "rabenseifner", "recursive_doubling", "tree", "star"])
def test_allreduce_of_up_to_4096_ranks_takes_as_long_as_the_formula(name, size):
    expected = COSTS[name](size, N, ETHERNET, 1)
    assert step_s(AllReduce(name), Cluster(size), Compute(1e-9), steps=1) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("size", [2, 8, 64, 4096])
def test_auto_takes_the_cheapest_butterfly_and_fastest_the_cheapest_of_all(size):
    """Within 10 %: the table has a row for each doubling of the length, and prefers rings to what is hardly better."""
    for nbytes in (100, 1e5, 25e6):
        segment = best_segment(size, nbytes, ETHERNET)
        costs = {name: cost(size, nbytes, ETHERNET, segment) for name, cost in COSTS.items()}
        least = min(costs["rabenseifner"], costs["recursive_doubling"])
        assert costs[chosen("auto", Cluster(size), nbytes)] <= 1.1 * least
        assert costs[chosen("fastest", Cluster(size), nbytes)] <= 1.1 * min(costs.values())
    assert chosen("ring", Cluster(size), N) == "ring"
    assert chosen("auto", Cluster(size, per_host=size), N) == "shared"


def test_memory_of_a_host_takes_its_formula():
    within = Link(5e-6, 1e-10, 1e-10)
    cluster = Cluster(8, per_host=4, within=within)
    expected = 0.1 + shared_cost(Hosts.of(cluster.hosts), N, within, ETHERNET)
    report = simulate(AllReduce("shared"), cluster, STEP, N)
    assert report.throughput.step_s == pytest.approx(expected)
    assert report.throughput.sent_bytes == pytest.approx(N / 4)  # a quarter of a host's vector to the other and back


# ---- overlap


def test_buckets_leave_while_the_backward_pass_runs():
    """k buckets of L seconds each: the last fills up at the end; where L is long they go on one after the other."""
    compute = Compute(0.3)
    few = COSTS["ring"](8, N / 4, ETHERNET, 1)
    assert few < 0.2 / 4  # a quarter of the backward pass
    assert step_s(AllReduce("ring", N / 4), Cluster(8), compute) == pytest.approx(0.3 + few, rel=0.01)
    slow = ETHERNET._replace(beta=2e-8)
    long = COSTS["ring"](8, N / 4, slow, 1)
    expected = 0.1 + 0.2 / 4 + 4 * long  # from the first bucket on nothing but messages
    assert step_s(AllReduce("ring", N / 4), Cluster(8, slow), compute) == pytest.approx(expected, rel=0.01)
    best = min(step_s(AllReduce("ring", b), Cluster(8), compute) for b in (0, 1 << 20, 4 << 20, 16 << 20))
    assert step_s(AllReduce("ring", None), Cluster(8), compute) == pytest.approx(best)
    assert step_s(AllReduce("ring", None), Cluster(1), compute) == pytest.approx(0.3)


# ---- compressors


@pytest.mark.parametrize("size", [2, 8, 64])
@pytest.mark.parametrize(
    "compressor",
    [Float16(), Int8(), OneBit(), TopK(0.01), RandomK(0.01), PowerSGD(2), QSGD()],
    ids=lambda c: type(c).__name__,
)
def test_compressed_sums_send_what_the_compressor_says(compressor, size):
    """Bytes as `break_even` predicts, at the length of one segment, and the time of a ring's way with them."""
    segments = (Tensor("w", 0, 1000 * 1250, (1000, 1250)),)
    report = simulate(AllReduce("ring", 0, compressor), Cluster(size), STEP, 5e6, segments=segments)
    predicted = break_even(compressor, 1000 * 1250, 4, size, segments).sent
    small = 2 * 16 * size  # the rest of the step vector, and lengths of messages
    assert report.throughput.sent_bytes == pytest.approx(predicted, rel=0.01, abs=small)
    dense = simulate(AllReduce("ring"), Cluster(size), STEP, 5e6).throughput
    ratio = report.throughput.sent_bytes / dense.sent_bytes
    alphas = 0.1 + 6 * size * ETHERNET.alpha
    assert report.throughput.step_s <= alphas + ratio * (dense.step_s - 0.1) * 1.01


def test_compressed_gossip_and_servers_send_less():
    topk = TopK(0.01)
    nbytes = topk.nbytes(int(N / 4), 4)
    gossiped = simulate(Gossip(gossip.Ring(), compressor=topk), Cluster(8), STEP, N).throughput
    assert gossiped.sent_bytes == pytest.approx(2 * nbytes)
    served = simulate(ParameterServer("bsp", compressor=topk), Cluster(8), STEP, N).throughput
    assert served.sent_bytes == pytest.approx(N + nbytes)


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


@pytest.mark.parametrize("size", [8, 64, 512])
def test_the_largest_of_lognormal_times(size):
    """E max of P draws is the integral of 1 - F(x)^P."""
    cv, x = 0.4, np.linspace(0, 20, 200_001)
    sigma = np.sqrt(np.log1p(cv**2))
    cdf = np.array(
        [0.5 * (1 + math.erf(z / math.sqrt(2))) for z in (np.log(np.maximum(x, 1e-12)) + sigma**2 / 2) / sigma]
    )
    largest = np.sum(1 - cdf**size) * (x[1] - x[0])
    fast = Cluster(size, Link(1e-9, 0, 0))
    report = simulate(AllReduce("recursive_doubling"), fast, Compute(1.0, "lognormal", cv=cv), 4, steps=3000)
    assert report.throughput.step_s == pytest.approx(largest, rel=0.01)
    assert report.throughput.waiting == pytest.approx(1 - 1 / largest, abs=0.01)


# ---- through the driver


@pytest.mark.parametrize(("size", "depth", "fan_in"), [(8, 1, 8), (8, 2, 3), (64, 2, 8), (4096, 3, 16), (4096, 12, 2)])
def test_jobs_through_the_driver(size, depth, fan_in):
    """Weights go down to every host in a pipeline, sums come up, level by level and vector by vector."""
    mode = ThroughDriver(0.1, 120e6, depth=depth)
    block, levels = 4 << 20, size.bit_length()
    out = levels * (50e-6 + block * 8e-10) + (N - block) * 8e-10
    up = depth * (0.1 + fan_in * (50e-6 + N * (8e-10 + 1 / 120e6)))
    assert step_s(mode, Cluster(size)) == pytest.approx(0.1 + out + up, rel=0.01)
    free = step_s(ThroughDriver(0.1, 120e6), Cluster(size))
    assert free <= step_s(mode, Cluster(size))
    rounds = simulate(ThroughDriver(0.1, 120e6, period=5, depth=depth), Cluster(size), STEP, N)
    assert rounds.throughput.step_s == pytest.approx(0.1 + (out + up) / 5, rel=0.01)
    assert rounds.staleness == (2, 4)


def test_slots_of_the_optimizer_travel_where_they_meet():
    for mode in (ThroughDriver(0.1, 120e6, depth=1, slots=True), Averaging(1, slots=True)):
        plain = dataclasses.replace(mode, slots=False)
        three = simulate(mode, Cluster(8), STEP, N, slots=2).throughput
        one = simulate(plain, Cluster(8), STEP, N, slots=2).throughput
        assert three.sent_bytes == pytest.approx(3 * one.sent_bytes, rel=1e-5)
        assert three.step_s > one.step_s


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


@pytest.mark.parametrize("servers", [1, 4, 16])
@pytest.mark.parametrize("workers", [64, 512, 4096])
def test_bsp_takes_all_pushes_and_pulls_through_the_servers(workers, servers):
    """2 P n beta / m of the servers' ports, n gamma / m of adding up P times, and an alpha a message."""
    ports = workers * (2 * ETHERNET.alpha + N * (2 * ETHERNET.beta + ETHERNET.gamma) / servers)
    found = step_s(ParameterServer("bsp", servers=servers), Cluster(workers), steps=10)
    assert found == pytest.approx(0.1 + ETHERNET.alpha + ports, rel=0.01)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 512])
def test_servers_on_every_worker_are_a_ring_in_two_phases(size):
    """P parts, one on each worker: a push and a pull carry (P - 1) / P of the vector through each port, both ways."""
    away = (size - 1) / size
    expected = 0.1 + away * (2 * size * ETHERNET.alpha + N * (2 * ETHERNET.beta + ETHERNET.gamma))
    mode = ParameterServer("bsp", servers=size, colocated=True)
    report = simulate(mode, Cluster(size), STEP, N, steps=10)
    assert report.throughput.step_s == pytest.approx(expected, rel=0.01, abs=3 * size * ETHERNET.alpha)
    assert report.throughput.sent_bytes == pytest.approx(2 * away * N)


@pytest.mark.parametrize("size", [2, 8])
def test_one_server_on_a_worker_serves_the_others(size):
    """P - 1 whole pushes, then P - 1 whole pulls; the worker beside the server needs neither."""
    messages = (size - 1) * (2 * ETHERNET.alpha + N * (2 * ETHERNET.beta + ETHERNET.gamma))
    mode = ParameterServer("bsp", colocated=True)
    assert step_s(mode, Cluster(size), steps=20) == pytest.approx(0.1 + ETHERNET.alpha + messages, rel=0.01)


def test_a_window_pushes_less_often():
    report = simulate(ParameterServer(window=10), Cluster(1), STEP, N, steps=100)
    assert report.throughput.step_s == pytest.approx(0.1 + (2 * MESSAGE_S + N * ETHERNET.gamma) / 10, rel=0.01)
    assert report.throughput.sent_bytes == pytest.approx(2 * N / 10)


@pytest.mark.parametrize("backup", [0, 1, 3])
def test_backup_workers_stand_in_for_stragglers(backup):
    """Of 8 workers, 2 take three times as long: from two backups on they no longer count."""
    compute = Compute(0.1, stragglers=2, slowdown=3)
    mode = ParameterServer("bsp", backup=backup)
    through = simulate(mode, Cluster(8, Link(1e-9, 0, 0)), compute, 4, steps=50).throughput
    seconds = 0.1 if backup > 2 else 0.3
    assert through.samples_per_s == pytest.approx((8 - backup) / seconds, rel=0.01)


@pytest.mark.parametrize("needed", [4, 12])
def test_the_first_of_exponential_times(needed):
    """The N-th of N + b exponential times comes after H(N + b) - H(b) means; a step takes no less: late ones lag."""
    size, harmonic = 16, lambda n: sum(1 / k for k in range(1, n + 1))
    compute = Compute(1.0, "exponential")
    mode = ParameterServer("bsp", backup=size - needed)
    through = simulate(mode, Cluster(size, Link(1e-9, 0, 0)), compute, 4, steps=6000).throughput
    least = harmonic(size) - harmonic(size - needed)
    assert 0.99 * least <= through.step_s * needed / size < harmonic(size)


def test_backups_are_for_synchronous_steps():
    with pytest.raises(ValueError, match='Take consistency "bsp"'):
        ParameterServer("ssp", 2, backup=1)


def test_a_lone_worker_pushes_and_pulls():
    expected = 0.1 + 2 * MESSAGE_S + N * ETHERNET.gamma
    for consistency in ("bsp", "ssp", "async"):
        report = simulate(ParameterServer(consistency), Cluster(1), STEP, N, steps=20)
        assert report.throughput.step_s == pytest.approx(expected, rel=0.01)
        assert report.staleness == (0, 0)


@pytest.mark.parametrize("workers", [2, 8, 64])
@pytest.mark.parametrize("nbytes", [1e6, 25e6])
def test_an_asynchronous_server_is_a_closed_queueing_network(workers, nbytes):
    """Mean value analysis (Reiser and Lavenberg, 1980), exact for shared stations whatever their service times."""
    push = ETHERNET.alpha + nbytes * (ETHERNET.beta + ETHERNET.gamma)
    pull = ETHERNET.alpha + nbytes * ETHERNET.beta
    queues, rate = [0.0, 0.0], 0.0
    for population in range(1, workers + 1):
        stays = [demand * (1 + queue) for demand, queue in zip((push, pull), queues, strict=True)]
        rate = population / (0.1 + ETHERNET.alpha + sum(stays))
        queues = [rate * stay for stay in stays]
    steps, compute = 60_000 // workers, Compute(0.1, "exponential")
    report = simulate(ParameterServer(), Cluster(workers), compute, nbytes, batch=10, steps=steps)
    assert report.throughput.samples_per_s == pytest.approx(10 * rate, rel=0.02)
    assert report.staleness.mean == pytest.approx(workers - 1, rel=0.01)


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_bsp_waits_for_all_pushes(workers):
    """All pushes end together, and so do all pulls: they share the server's port."""
    pushes = workers * (ETHERNET.alpha + N * (ETHERNET.beta + ETHERNET.gamma))
    pulls = workers * (ETHERNET.alpha + N * ETHERNET.beta)
    expected = 0.1 + ETHERNET.alpha + pushes + pulls
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


def test_workers_in_one_memory_neither_send_nor_wait():
    """Of P memoryless workers the others make P - 1 updates in one's step, on average."""
    report = simulate(SharedMemory(), Cluster(8), Compute(0.1, "exponential"), N, batch=3, steps=3000)
    assert report.throughput == pytest.approx((8 * 3 / 0.1, 0.1, 1.0, 0.0, 0.0), rel=0.02)
    assert report.staleness.mean == pytest.approx(7, rel=0.02)
    assert simulate(SharedMemory(), Cluster(1), STEP, N).staleness == (0, 0)


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


# ---- what must grow or fall

MODES = [
    AllReduce("auto"),
    AllReduce("ring", None),
    Averaging(4, "auto"),
    ThroughDriver(0.1, 120e6),
    Gossip(gossip.Ring(), listen=4),
    AsyncGossip(),
    ParameterServer("bsp"),
    ParameterServer("ssp", 2, servers=16),  # where ports decide, workers out of step are faster: both ways are in use
    ParameterServer("async", servers=4, colocated=True),
]


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_slower_links_and_slower_workers_never_help(mode):
    def rate(link=ETHERNET, nbytes=N, **compute):
        return simulate(
            mode, Cluster(16, link), Compute(**{"seconds": 0.1} | compute), nbytes, steps=12
        ).throughput.step_s

    base = rate()
    assert base <= rate(nbytes=2 * N) * 1.0001
    assert base <= rate(ETHERNET._replace(beta=4e-9)) * 1.0001
    assert base <= rate(ETHERNET._replace(alpha=5e-4)) * 1.0001
    assert base <= rate(seconds=0.2) * 1.0001
    assert base <= rate(stragglers=1) * 1.0001
    assert base <= rate(pause=0.5, pause_s=0.2) * 1.0001


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_efficiency_falls_with_the_workers(mode):
    compute, sizes = Compute(0.1, "exponential"), (1, 4, 32, 256)
    found = [simulate(mode, Cluster(size), compute, N, steps=max(20, 2000 // size)).throughput for size in sizes]
    for few, many in pairwise(t.efficiency for t in found):
        assert many < few * 1.03
    assert all(0 <= t.waiting < 1 for t in found)


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
