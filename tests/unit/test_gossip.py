"""Topologies one by one, spectra from the literature, compressed and asynchronous gossip."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from sparkdl.comm import compress, gossip, inproc_group
from sparkdl.comm.gossip import (
    Bipartite,
    Neighbours,
    Topology,
    answer,
    ask,
    check_agreement,
    check_topology,
    compressed_mix,
    compressed_mix_init,
    consensus_distance,
    mix,
    mixing_matrix,
    push_sum_mix,
    say_goodbye,
    spectral_gap,
    weights_of,
)
from tests.ranks import group, on_ranks, run


def test_neighbours():
    """Targets by how far on they are, sources by how far back."""
    assert gossip.Ring()(0, 0, 5) == ((1, 4), (4, 1))
    assert gossip.Ring()(0, 1, 2) == ((0,), (0,))
    assert gossip.Ring("right")(0, 4, 5) == ((0,), (3,))
    assert gossip.Ring("left")(0, 4, 5) == ((3,), (0,))
    assert gossip.Torus()(0, 0, 12).targets == (1, 3, 4, 8)  # 3 rows of 4
    assert gossip.Torus()(0, 5, 7).targets == (6, 4)
    assert gossip.Star()(3, 0, 4).targets == (1, 2, 3)
    assert gossip.Star()(3, 2, 4).targets == (0,)
    assert gossip.Full()(0, 2, 4) == ((3, 0, 1), (1, 0, 3))
    assert gossip.Exponential()(0, 1, 10) == ((2, 3, 5, 9), (0, 9, 7, 3))
    assert [gossip.OnePeerExponential()(step, 0, 8).targets for step in range(4)] == [(1,), (2,), (4,), (1,)]
    assert gossip.Hierarchical(group=2)(0, 3, 6).targets == (2,)
    assert gossip.Hierarchical(group=2)(1, 3, 6).targets == (5, 1)
    assert gossip.Hierarchical(group=2)(1, 3, 5).targets == (1,)  # the third group has no second rank


def test_random_pairs_are_pairs_and_even_chances():
    met = np.zeros((6, 6))
    for step in range(600):
        for rank in range(6):
            (partner,) = gossip.RandomPairs(1)(step, rank, 6).targets
            assert gossip.RandomPairs(1)(step, partner, 6).targets == (rank,)
            met[rank, partner] += 1
    np.testing.assert_allclose(met + 120 * np.eye(6), 120, atol=50)
    assert sum(not gossip.RandomPairs(1)(0, rank, 7).targets for rank in range(7)) == 1


@pytest.mark.parametrize(("size", "rho"), [(8, 0.805), (16, 0.949), (32, 0.987), (64, 0.997)])
def test_spectral_radius_of_the_ring(size, rho):
    """(1 + 2 cos(2 pi / n)) / 3."""
    found = 1 - spectral_gap(mixing_matrix(gossip.Ring(), size))
    assert found == pytest.approx((1 + 2 * math.cos(2 * math.pi / size)) / 3, abs=1e-12)
    assert found == pytest.approx(rho, abs=5e-4)


@pytest.mark.parametrize("rounds", range(1, 8))
def test_spectral_gap_of_the_exponential_graph(rounds):
    gap = spectral_gap(mixing_matrix(gossip.Exponential(), 1 << rounds))
    assert gap == pytest.approx(2 / (1 + rounds), abs=1e-12)


def test_the_full_graph_is_exact_at_once():
    for size in (1, 2, 9):
        np.testing.assert_allclose(mixing_matrix(gossip.Full(), size), np.full((size, size), 1 / size), atol=1e-15)
        assert spectral_gap(mixing_matrix(gossip.Full(), size)) == pytest.approx(1, abs=1e-12)


def test_one_peer_exponential_is_exact_only_for_powers_of_two():
    for size in range(2, 70):
        product = np.eye(size)
        for step in range((size - 1).bit_length()):
            product = mixing_matrix(gossip.OnePeerExponential(), size, step) @ product
        exact = np.abs(product - 1 / size).max() < 1e-12
        assert bool(exact) is (size & (size - 1) == 0), size


def test_metropolis_weights_of_a_star():
    assert weights_of(gossip.Star(), 0, 2, 5) == (1 - 1 / 5, (1 / 5,))
    own, others = weights_of(gossip.Star(), 0, 0, 5)
    assert own == pytest.approx(1 / 5)
    assert others == (1 / 5,) * 4
    assert weights_of(gossip.Star(), 0, 2, 5, "column") == (1 / 2, (1 / 5,))


def test_plain_mixing_is_off_where_push_sum_is_not():
    """On a graph that is not balanced."""
    start, topology = np.arange(6.0), gossip.RandomOut(2, seed=4)

    def work(t):
        x, z, weight = start[[t.rank]].copy(), start[[t.rank]].copy(), 1.0
        for step in range(200):
            mix(t, topology, x, step)
            weight = push_sum_mix(t, topology, z, weight, step)
        return x[0], z[0] / weight

    with group("inproc", 6) as transports:
        plain, push = zip(*run(transports, work), strict=True)
    np.testing.assert_allclose(push, 2.5, atol=1e-12)
    assert abs(np.mean(plain) - 2.5) > 0.01


@dataclass(frozen=True)
class Table(Topology):
    """Given by its lists."""

    rows: tuple[Neighbours, ...]

    def __call__(self, step, rank, size):
        return self.rows[rank]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([((1,), ()), ((), ())], "rank 0 sends to rank 1, which does not expect it"),
        ([((), ()), ((), (0,))], "rank 1 expects rank 0, which does not send to it"),
        ([((0,), (0,)), ((), ())], r"neighbours \(0,\) of rank 0 must be other ranks, each once"),
        ([((2,), ()), ((), ())], r"neighbours \(2,\) of rank 0 must be other ranks, each once"),
        ([((1,), ()), ((), (0,))], "metropolis weights: the column of rank 0 sums to 1.5, not 1. Use push-sum"),
    ],
)
def test_bad_graphs_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        check_topology(Table(tuple(Neighbours(*row) for row in rows)), len(rows))


def test_different_settings_are_found_before_anyone_waits():
    def work(t):
        with pytest.raises(ValueError, match=r"rank \d, step 0: RandomPairs\(seed=\d\) expects messages from"):
            check_agreement(t, gossip.RandomPairs(seed=t.rank), 0)

    with group("inproc", 2) as transports:
        run(transports, lambda t: check_agreement(t, gossip.RandomPairs(seed=t.rank), 0))  # two are always a pair
    with group("inproc", 3) as transports:
        seeds = (0, 1, 0)
        partners = [gossip.RandomPairs(seed)(0, rank, 3).targets for rank, seed in enumerate(seeds)]
        assert partners[1] != gossip.RandomPairs(0)(0, 1, 3).targets
        outcomes = run(transports, lambda t: _outcome(t, gossip.RandomPairs(seeds[t.rank])))
    assert any("All ranks must have the same topology and seed" in outcome for outcome in outcomes)


def _outcome(t, topology):
    try:
        check_agreement(t, topology, 0)
    except ValueError as error:
        return str(error)
    return ""


def test_fields_have_limits():
    with pytest.raises(ValueError, match='direction must be "both", "left" or "right"'):
        gossip.Ring("up")
    with pytest.raises(ValueError, match="group must be an integer"):
        gossip.Hierarchical(group=0)
    with pytest.raises(ValueError, match="seed must be an integer"):
        gossip.RandomPairs(-1)


@pytest.mark.parametrize("size", [1, 4])
def test_consensus_distance(size):
    start = np.random.default_rng(0).standard_normal((size, 30)).astype(np.float32)
    with group("inproc", size) as transports:
        found = run(transports, lambda t: consensus_distance(t, start[t.rank]))
    wide = start.astype(np.float64)
    expected = np.sqrt(np.mean(np.sum((wide - wide.mean(axis=0)) ** 2, axis=1)))
    assert found == pytest.approx([expected] * size, rel=1e-12)


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_over_the_wire_as_in_process(kind):
    """With vectors longer than what the channels take at once."""

    def work(t):
        vec, weight = np.random.default_rng(t.rank).standard_normal(300_000), 1.0
        state = compressed_mix_init(compress.TopK(), vec)
        for topology in (gossip.Full(), gossip.Exponential(), gossip.RandomPairs(), gossip.Star()):
            mix(t, topology, vec, 0)
            weight = push_sum_mix(t, topology, vec, weight, 0)
        compressed_mix(t, gossip.Ring(), compress.TopK(), vec, state, 0, 0)
        return vec

    with group(kind, 4) as transports, group("inproc", 4) as threads:
        np.testing.assert_array_equal(run(transports, work), run(threads, work))


# ---- compressed


@pytest.mark.parametrize(
    ("compressor", "rate", "steps"),
    [
        (compress.Uncompressed(), 1.0, 60),
        (compress.Int8(), 0.9, 80),
        (compress.TopK(0.2), 0.2, 500),
        (compress.RandomK(0.2), 0.2, 500),
        (compress.OneBit(), 0.2, 500),
        (compress.PowerSGD(1), 0.2, 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, compress.Compressor) else "",
)
def test_compressed_mixing_reaches_the_mean(compressor, rate, steps):
    start = np.random.default_rng(3).standard_normal((4, 40))

    def work(t):
        vec, seen = start[t.rank].copy(), []
        state = compressed_mix_init(compressor, vec, [Segment()])
        for step in range(steps):
            traffic = compressed_mix(t, gossip.Ring(), compressor, vec, state, 0, step, rate)
            seen.append(vec.copy())
        assert traffic.dense == 2 * vec.nbytes
        return seen

    with group("inproc", 4) as transports:
        seen = np.array(run(transports, work))
    mean = start.mean(axis=0)
    np.testing.assert_allclose(seen.mean(axis=0), np.tile(mean, (steps, 1)), atol=1e-12)
    np.testing.assert_allclose(seen[:, -1], np.tile(mean, (4, 1)), atol=1e-4)


class Segment:
    name, start, stop, shape = "W", 0, 40, (5, 8)


def test_compressed_mixing_needs_a_static_graph():
    (t,) = inproc_group(1)
    state = compressed_mix_init(compress.TopK(), np.zeros(3))
    with pytest.raises(ValueError, match="same neighbours in every step; RandomPairs"):
        compressed_mix(t, gossip.RandomPairs(), compress.TopK(), np.zeros(3), state, 0, 0)


# ---- asynchronous


def test_roles():
    roles = Bipartite(seed=2)
    assert [roles.active(rank) for rank in range(4)] == [True, False, True, False]
    assert list(roles.peers(2, 6)) == [1, 3, 5]
    assert list(roles.peers(3, 5)) == [0, 2, 4]
    assert {roles.peer(step, 0, 6) for step in range(50)} == {1, 3, 5}
    assert roles.peer(0, 0, 1) is None


@pytest.mark.parametrize("size", [2, 5, 6])
def test_asynchronous_averaging_keeps_the_sum_and_agrees(size):
    """While ranks ask and answer, each also adds updates of its own, under its lock."""
    roles, steps = Bipartite(), 150
    edges = {(a, b): inproc_group(2) for a in range(size) if roles.active(a) for b in roles.peers(a, size)}
    vecs = np.random.default_rng(size).standard_normal((size, 200))
    locks = [threading.Lock() for _ in range(size)]
    whole, updated = vecs.sum(axis=0), []
    barrier = threading.Barrier(size, action=lambda: updated.append(np.ptp(vecs, axis=0)))

    def work(rank):
        if not roles.active(rank):
            threads = [
                threading.Thread(target=serve, args=(edges[peer, rank][1], rank)) for peer in roles.peers(rank, size)
            ]
            for thread in threads:
                thread.start()
        for step in range(steps):
            if step == 100:
                barrier.wait()
            if step < 100:
                with locks[rank]:
                    vecs[rank] += 0.25  # exact, so that the sum stays comparable
            if roles.active(rank):
                peer = roles.peer(step, rank, size)
                ask(edges[rank, peer][0], 1, vecs[rank], locks[rank])
        if roles.active(rank):
            for peer in roles.peers(rank, size):
                say_goodbye(edges[rank, peer][0], 1)
        else:
            for thread in threads:
                thread.join()

    def serve(t, rank):
        while answer(t, 0, vecs[rank], locks[rank]):
            pass

    on_ranks(size, work)
    np.testing.assert_allclose(vecs.sum(axis=0), whole + size * 25, rtol=1e-12)
    assert (np.ptp(vecs, axis=0) <= updated[0] + 1e-12).all()  # after the last update, averaging only brings together
    if size == 2:
        np.testing.assert_array_equal(vecs[0], vecs[1])
