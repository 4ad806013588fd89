"""The chooser: the model's pick when nothing else is known, the races' when they differ, the same on all ranks."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest

from sparkdl.comm import Transport, inproc_group
from sparkdl.comm.chooser import FIELD, LENGTHS, AllReducer, Choice, Links, algorithms, entrants, runners, tabulate
from sparkdl.comm.collectives import ALGORITHMS, SEGMENT_BYTES
from sparkdl.comm.cost import COSTS, Link, simulate
from sparkdl.comm.measure import RACE_BYTES, measure_link
from sparkdl.comm.schedules import ALLREDUCE
from sparkdl.comm.topology import Hosts
from tests.ranks import group
from tests.ranks import run as on_threads

ETHERNET = Link(alpha=50e-6, beta=8e-9, gamma=2e-10)  # 1 Gbit/s
LOCAL = Link(alpha=5e-6, beta=2e-10, gamma=1e-10)


def one_host(size):
    return Hosts.of([0] * size)


def pick(table, nbytes):
    return next(choice for choice in table if nbytes <= choice.limit)


def run(size, work):
    def live(t):
        with t:
            return work(t)

    return on_threads(inproc_group(size), live)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("link", [ETHERNET, LOCAL], ids=["ethernet", "local"])
def test_without_races_the_choice_is_within_a_tenth_of_the_best_schedule(size, link):
    table = tabulate(one_host(size), Links(link), {})
    for nbytes in (100, 3000, 40_000, 500_000, 10**7):
        simulated = {}
        for name, schedule in ALLREDUCE.items():
            segment = next(e.segment_bytes for e in entrants(one_host(size), Links(link), nbytes) if e.name == name)
            count = nbytes // 4
            simulated[name] = simulate(schedule, size, count, max(1, segment // 4), 4, lambda a, b: link)
        assert simulated[pick(table, nbytes).algorithm] <= 1.1 * min(simulated.values())


def test_short_vectors_take_few_rounds_and_long_ones_few_bytes():
    table = tabulate(one_host(8), Links(ETHERNET), {})
    assert pick(table, 64).algorithm == "recursive_doubling"
    assert pick(table, 10**8).algorithm in ("rabenseifner", "ring")
    assert [choice.limit for choice in table] == sorted({choice.limit for choice in table})
    assert table[-1].limit > 10**15


def test_slow_links_between_hosts_call_for_a_hierarchy():
    hosts = Hosts.of("aaaabbbb")
    assert list(algorithms(hosts)) == [*ALGORITHMS, "hierarchical", "hierarchical_sliced"]
    assert list(algorithms(Hosts.of("aaab"))) == [*ALGORITHMS, "hierarchical"]
    assert list(algorithms(one_host(4))) == list(ALGORITHMS) == list(algorithms(Hosts.of("abcd")))
    # Eight ranks that all use the link between the hosts at once get a fraction of it each.
    flat = ETHERNET._replace(beta=4 * ETHERNET.beta)
    table = tabulate(hosts, Links(flat, within=LOCAL, between=ETHERNET), {})
    assert {pick(table, nbytes).algorithm for nbytes in (10**6, 10**8)} <= {"hierarchical", "hierarchical_sliced"}
    assert not {choice.algorithm for choice in tabulate(hosts, Links(flat), {})} - COSTS.keys()


def test_shared_memory_takes_part_where_there_is_some():
    hosts = one_host(4)
    for links, known in ((Links(LOCAL), False), (Links(LOCAL, arenas=hosts), True)):
        for nbytes in (1 << 9, 1 << 22):
            assert ("shared" in {e.name for e in entrants(hosts, links, nbytes)}) == known
    table = tabulate(hosts, Links(LOCAL, arenas=hosts), {})
    assert {pick(table, nbytes).algorithm for nbytes in (1 << 12, 1 << 24)} == {"shared"}
    pairs = Hosts.of("aabb")
    slow = Links(ETHERNET._replace(beta=4 * ETHERNET.beta), within=LOCAL, between=ETHERNET, arenas=pairs)
    seconds = {e.name: e.predicted_s for e in entrants(pairs, slow, 1 << 22)}
    assert seconds["shared"] < 1.1 * seconds["hierarchical_sliced"] < seconds["ring"]


def test_races_overrule_the_model_near_their_lengths():
    hosts, links = one_host(4), Links(ETHERNET)
    names = ("star", "ring", "recursive_doubling")
    predicted = {n: {e.name: e.predicted_s for e in entrants(hosts, links, n)} for n in (1 << 12, 1 << 20)}
    # All take twice the time that the model says, but the star a tenth of it.
    times = {name: {n: (0.1 if name == "star" else 2) * predicted[n][name] for n in predicted} for name in names}
    table, model = tabulate(hosts, links, times), tabulate(hosts, links, {})
    assert {pick(table, nbytes).algorithm for nbytes in (64, 1 << 12, 1 << 16, 1 << 20)} == {"star"}
    assert "star" not in {choice.algorithm for choice in model}
    assert pick(table, 1 << 30) == pick(model, 1 << 30)  # far beyond, bytes decide


def test_on_crowded_cores_those_with_few_messages_race_too():
    hosts = one_host(8)
    for pair, more in ((None, set()), (ETHERNET, set()), (LOCAL, {"star", "tree"})):
        links = Links(ETHERNET, pair)
        for nbytes in (1 << 9, 1 << 20):
            assert {e.name for e in runners(hosts, links, nbytes)} == {
                e.name for i, e in enumerate(entrants(hosts, links, nbytes)) if i < FIELD or e.name in more
            }
        assert len(runners(hosts, links, 1 << 22)) == FIELD


def test_what_may_be_chance_changes_nothing():
    hosts, links = one_host(4), Links(ETHERNET)
    predicted = {e.name: e.predicted_s for e in entrants(hosts, links, 1 << 16)}
    factors = {"ring": 3.0 * 1.09, "rabenseifner": 3.0, "recursive_doubling": 3.0 / 1.09}
    times = {name: {1 << 16: factor * predicted[name]} for name, factor in factors.items()}
    table = tabulate(hosts, links, times)
    for nbytes in LENGTHS[: LENGTHS.index(1 << 20)]:
        assert pick(table, nbytes).algorithm == entrants(hosts, links, nbytes)[0].name


def test_the_ring_wins_a_tie_where_nothing_has_raced():
    even = Link(alpha=1e-9, beta=1e-9, gamma=1e-10)  # to send the least bytes is all that counts
    assert {choice.algorithm for choice in tabulate(one_host(8), Links(even), {})} == {"ring"}


def test_what_never_raced_is_trusted_no_more_than_the_worst_that_did():
    hosts, links = one_host(4), Links(ETHERNET)
    predicted = {n: {e.name: e.predicted_s for e in entrants(hosts, links, n)} for n in (1 << 12, 1 << 20)}
    # The only two that raced: one as predicted, one ten times slower.
    slow = {
        "star": {n: predicted[n]["star"] for n in predicted},
        "ring": {n: 100 * predicted[n]["ring"] for n in predicted},
    }
    assert pick(tabulate(hosts, links, slow), 1 << 12).algorithm == "star"
    assert pick(tabulate(hosts, links, {}), 1 << 12).algorithm != "star"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_agree_and_the_log_tells(size, caplog):
    caplog.set_level(logging.INFO, "sparkdl.comm.chooser")

    def work(t):
        start = time.perf_counter()
        reducer = AllReducer(t, budget_s=0.2)
        elapsed = time.perf_counter() - start
        for nbytes in (0, 8, 4096, 300_000):
            vec = np.full(nbytes // 8, t.rank + 1.0)
            reducer.allreduce(vec, "mean")
            assert (vec == (size + 1) / 2).all()
        return reducer.table, elapsed

    results = run(size, work)
    tables, elapsed = zip(*results, strict=True)
    assert len(set(tables)) == 1
    assert {choice.algorithm for choice in tables[0]} <= ALLREDUCE.keys()
    assert max(elapsed) < 2
    messages = [record.getMessage() for record in caplog.records]
    assert sum("alpha" in message and "GB/s" in message for message in messages) == 2
    assert sum(message.startswith("allreduce ") for message in messages) == len(tables[0])
    assert messages[-1].startswith("allreduce beyond: ")


def test_hosts_are_measured_apart(caplog):
    caplog.set_level(logging.INFO, "sparkdl.comm.chooser")
    tables = run(4, lambda t: AllReducer(t, hosts="xyxy", budget_s=0.1).table)
    assert len(set(tables)) == 1
    messages = [record.getMessage() for record in caplog.records]
    assert [kind for kind in ("flat", "pair", "within", "between") if any(f"ranks, {kind}" in m for m in messages)] == [
        "flat",
        "pair",
        "within",
        "between",
    ]


def test_over_shared_memory_all_agree_on_a_table_with_it():
    def work(t):
        reducer = AllReducer(t, budget_s=0.2)
        for nbytes in (8, 4096, 300_000):
            vec = np.full(nbytes // 8, t.rank + 1.0)
            reducer.allreduce(vec, "mean")
            assert (vec == 2).all()
        return reducer.table

    with group("shm", 3) as ranks:
        tables = on_threads(ranks, work)
    assert len(set(tables)) == 1
    assert {choice.algorithm for choice in tables[0]} <= ALGORITHMS.keys()


def test_a_named_algorithm_is_taken_without_measuring():
    group = inproc_group(3)  # nobody receives: any message would wait for ever
    reducers = [AllReducer(t, algorithm="tree") for t in group]
    assert {reducer.choice(nbytes).algorithm for reducer in reducers for nbytes in (0, 1, 10**9)} == {"tree"}
    assert AllReducer(inproc_group(1)[0]).table == (Choice(1 << 62, "ring", SEGMENT_BYTES),)
    with pytest.raises(ValueError, match="called 'rings' on these hosts; there are star, tree"):
        AllReducer(group[0], algorithm="rings")
    with pytest.raises(ValueError, match="called 'hierarchical' on these hosts"):
        AllReducer(group[0], algorithm="hierarchical")
    with pytest.raises(ValueError, match="one host for each of 3 ranks; got 2"):
        AllReducer(group[0], hosts="xy")


class Slow(Transport):
    """A transport on which every receive takes alpha and beta more."""

    def __init__(self, inner, alpha, beta):
        self.inner, self.alpha, self.beta = inner, alpha, beta
        self.rank, self.size, self.hosts, self.timeout_s = inner.rank, inner.size, inner.hosts, inner.timeout_s

    def isend(self, peer, tag, buf):
        return self.inner.isend(peer, tag, buf)

    def recv(self, peer, tag, out):
        time.sleep(self.alpha + self.beta * out.nbytes)
        self.inner.recv(peer, tag, out)

    def recv_reduce(self, peer, tag, out, op):
        time.sleep(self.alpha + self.beta * out.nbytes)
        self.inner.recv_reduce(peer, tag, out, op)

    def wait_any(self, peers, timeout_s=None):
        return self.inner.wait_any(peers, timeout_s)

    def abort(self, reason):
        self.inner.abort(reason)

    def interrupt(self, reason):
        self.inner.interrupt(reason)

    def close(self):
        self.inner.close()


def test_measured_alpha_and_beta_are_those_of_the_link():
    alpha, beta = 4e-3, 2e-7
    links = run(3, lambda t: measure_link(Slow(t, alpha, beta), [range(3)]))
    assert len(set(links)) == 1
    assert alpha < links[0].alpha < 2 * alpha  # sleeping takes a little longer than asked for
    assert links[0].beta == pytest.approx(beta, rel=0.5)


def test_a_slow_link_is_not_raced_beyond_the_budget():
    def work(t):
        slow = Slow(t, 1e-3, 1e-6)
        start = time.perf_counter()
        table = AllReducer(slow, budget_s=0.3).table
        return table, time.perf_counter() - start

    (table, elapsed), other = run(2, work)
    assert table == other[0]
    assert elapsed < 3  # the longest race alone would take 12 s for each algorithm
    assert RACE_BYTES[-1] * 1e-6 * FIELD > 12
    assert pick(table, 64).algorithm in ("recursive_doubling", "tree", "star", "chain")


def test_the_table_covers_all_lengths():
    assert LENGTHS[0] <= 64
    assert LENGTHS[-1] >= 10**9
