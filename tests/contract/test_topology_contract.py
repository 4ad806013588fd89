"""What every topology promises, over the catalogue: lists that agree, weights that add up, a mean that stays."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from sparkdl.comm import gossip
from sparkdl.comm.gossip import check_agreement, check_topology, mix, mixing_matrix, push_sum_mix, spectral_gap
from tests.catalogue import TOPOLOGIES, TopologyCase
from tests.ranks import group, run

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 64)
STEPS = range(7)

each = pytest.mark.parametrize("case", TOPOLOGIES, ids=lambda case: case.id)
balanced = pytest.mark.parametrize("case", [c for c in TOPOLOGIES if c.balanced], ids=lambda case: case.id)


@each
def test_lists_agree_and_columns_sum_to_1(case: TopologyCase) -> None:
    for size in SIZES:
        check_topology(case.topology, size, STEPS[:1] if case.topology.static else STEPS, "column")


@balanced
def test_metropolis_weights_are_doubly_stochastic(case: TopologyCase) -> None:
    for size in SIZES:
        check_topology(case.topology, size, STEPS[:1] if case.topology.static else STEPS)


@each
def test_neighbours_of_rotational_topologies_go_round(case: TopologyCase) -> None:
    for size in SIZES:
        alike = all(
            tuple((peer - rank) % size for peer in case.topology(step, rank, size).targets)
            == case.topology(step, 0, size).targets
            for step in STEPS
            for rank in range(size)
        )
        assert alike or not case.topology.rotational


@each
def test_lone_ranks_have_no_neighbours_and_steps_repeat(case: TopologyCase) -> None:
    for step in STEPS:
        assert case.topology(step, 0, 1) == ((), ())
        assert case.topology(step, 3, 8) == case.topology(step, 3, 8)
    if case.topology.static:
        assert len({case.topology(step, 3, 8) for step in STEPS}) == 1
    else:
        assert len({tuple(case.topology(step, rank, 8) for rank in range(8)) for step in STEPS}) > 1


@each
@pytest.mark.parametrize("size", [2, 5, 8, 12])
def test_information_reaches_everyone(case: TopologyCase, size: int) -> None:
    """Over enough steps each rank hears of each other: the product of the matrices has no zero."""
    product = np.eye(size)
    for step in range(60):
        product = mixing_matrix(case.topology, size, step, "column") @ product
    assert (product > 0).all()


@balanced
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_mixing_is_the_matrix_and_keeps_the_mean(case: TopologyCase, size: int) -> None:
    start = np.random.default_rng(size).standard_normal((size, 50))

    def work(t: Any) -> Any:
        vec, seen = start[t.rank].copy(), []
        for step in range(6):
            mix(t, case.topology, vec, step)
            seen.append(vec.copy())
        return seen

    with group("inproc", size) as transports:
        seen = np.array(run(transports, work))
    expected = start
    for step in range(6):
        expected = mixing_matrix(case.topology, size, step) @ expected
        np.testing.assert_allclose(seen[:, step], expected, atol=1e-14)
        np.testing.assert_allclose(seen[:, step].mean(axis=0), start.mean(axis=0), atol=1e-12)


@balanced
def test_disagreement_shrinks_at_the_spectral_rate(case: TopologyCase) -> None:
    """No vector orthogonal to 1 shrinks by less than the gap says, and some vector by no more."""
    product = np.eye(12)
    for step in range(24):
        product = mixing_matrix(case.topology, 12, step) @ product
    worst = np.linalg.svd(product - 1 / 12, compute_uv=False)[0]
    assert worst < 1 - 1e-6
    assert 1 - spectral_gap(product) <= worst + 1e-12
    if case.topology.static:
        rate = 1 - spectral_gap(mixing_matrix(case.topology, 12))
        assert worst == pytest.approx(rate**24, rel=1e-6, abs=1e-12)


@each
@pytest.mark.parametrize("size", [1, 2, 5])
def test_push_sum_finds_the_mean(case: TopologyCase, size: int) -> None:
    start = np.random.default_rng(size).standard_normal((size, 20))

    def work(t: Any) -> Any:
        vec, weight, weights = start[t.rank].copy(), 1.0, []
        for step in range(200):
            weight = push_sum_mix(t, case.topology, vec, weight, step)
            weights.append(weight)
        return vec / weight, weights

    with group("inproc", size) as transports:
        results, weights = zip(*run(transports, work), strict=True)
    np.testing.assert_allclose(np.sum(weights, axis=0), size, rtol=1e-12)
    for z in results:
        np.testing.assert_allclose(z, start.mean(axis=0), atol=1e-9)


@each
def test_agreement_is_checked_over_the_wire(case: TopologyCase) -> None:
    with group("inproc", 5) as transports:
        run(transports, lambda t: [check_agreement(t, case.topology, step) for step in STEPS])


@each
def test_float32_stays(case: TopologyCase) -> None:
    def work(t: Any) -> Any:
        vec = np.full(7, t.rank, np.float32)
        weight = push_sum_mix(t, case.topology, vec, 1.0, 0)
        mix(t, case.topology, vec, 1)
        assert (vec.dtype, type(weight)) == (np.float32, float)

    with group("inproc", 3) as transports:
        run(transports, work)


@each
def test_pickles_and_compares_by_value(case: TopologyCase) -> None:
    assert pickle.loads(pickle.dumps(case.topology)) == case.topology
    assert eval(repr(case.topology), vars(gossip)) == case.topology


def test_every_topology_has_a_row_a_name_and_an_export() -> None:
    rows = {type(case.topology) for case in TOPOLOGIES}
    assert rows == set(gossip.TOPOLOGIES.values())
    assert {cls.__name__ for cls in rows} <= set(gossip.__all__)
    assert len({case.id for case in TOPOLOGIES}) == len(TOPOLOGIES)
    assert set(gossip.TOPOLOGIES) <= {case.id for case in TOPOLOGIES}
