"""Every collective over the transports: exact by formula, equal bits on all ranks, and errors that reach everyone."""

from __future__ import annotations

import time

import numpy as np
import pytest
from catalogue import COLLECTIVES

from sparkdl.comm import CommError, MessageMismatch, inproc_group
from sparkdl.comm.collectives import (
    ALGORITHMS,
    allgather,
    allgatherv,
    allreduce,
    barrier,
    broadcast,
    chain_allreduce,
    hierarchical_allreduce,
    rabenseifner_allreduce,
    recursive_doubling_allreduce,
    reduce,
    reduce_scatter,
    ring_allreduce,
    segmented_ring_allreduce,
    shared_allreduce,
    star_allreduce,
    tree_allreduce,
)
from sparkdl.comm.schedules import ALLREDUCE, Hierarchical, cuts
from sparkdl.comm.topology import Hosts
from tests.ranks import group
from tests.ranks import run as on_threads

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
DTYPES = ("float64", "float32", "float16", "int64", "int32")
NAMED = (
    star_allreduce,
    tree_allreduce,
    recursive_doubling_allreduce,
    ring_allreduce,
    segmented_ring_allreduce,
    chain_allreduce,
    rabenseifner_allreduce,
    shared_allreduce,
)

by_size = pytest.mark.parametrize("size", SIZES)
by_kind = pytest.mark.parametrize("kind", ["inproc", "tcp", "shm"])


def run(size, work, kind="inproc", **settings):
    """What work(transport) returns or raises, by rank."""

    def live(t):
        try:
            with t:
                return work(t)
        except Exception as error:
            return error

    with group(kind, size, **settings) as transports:
        return on_threads(transports, live)


def run_well(size, work, kind="inproc"):
    results = run(size, work, kind)
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(errors, key=lambda e: isinstance(e, CommError)):  # what the others suffered comes last
        raise error
    return results


def lengths(size):
    return sorted({0, 1, size - 1, size, size + 1, 64, 1000, 10_000})


def values(rank, size, count, dtype):
    """Tells rank and place: over the ranks element i sums to size * (i mod m) + size (size - 1) / 2."""
    i = np.arange(count)
    return (i % modulus(dtype) + (rank - i) % size).astype(dtype)


def modulus(dtype):
    return 31 if dtype == "float16" else 997  # float16 counts to 2048


def expected(op, size, count, dtype):
    base = np.arange(count) % modulus(dtype)
    if op == "max":
        return (base + size - 1).astype(dtype)
    return ((size * base + size * (size - 1) / 2) / (size if op == "mean" else 1)).astype(dtype)


# ---- allreduce


@by_size
@pytest.mark.parametrize("name", COLLECTIVES)
def test_allreduce_is_exact(size, name):
    def work(t):
        for count in lengths(size):
            vec = values(t.rank, size, count, "float64")
            allreduce(t, vec, "sum", name, segment_bytes=8 * 50)
            np.testing.assert_array_equal(vec, expected("sum", size, count, "float64"))

    run_well(size, work)


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(
    ("op", "dtype"), [(op, d) for op in ("sum", "mean", "max") for d in DTYPES if op != "mean" or d.startswith("float")]
)
def test_allreduce_of_all_dtypes_by_all_operations(size, op, dtype):
    def work(t):
        for name in COLLECTIVES:
            vec = values(t.rank, size, 333, dtype)
            allreduce(t, vec, op, name, segment_bytes=100)
            assert vec.dtype == dtype
            np.testing.assert_array_equal(vec, expected(op, size, 333, dtype))

    run_well(size, work)


@by_kind
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_allreduce_over_all_transports(kind, size):
    def work(t):
        for name in COLLECTIVES:
            for count in (0, 1, size - 1, size + 1, 1000):
                for dtype in DTYPES:
                    vec = values(t.rank, size, count, dtype)
                    allreduce(t, vec, "sum", name, segment_bytes=500)
                    np.testing.assert_array_equal(vec, expected("sum", size, count, dtype))

    run_well(size, work, kind)


@by_kind
@pytest.mark.parametrize("function", NAMED, ids=lambda f: f.__name__)
def test_chunks_of_16_mib_do_not_deadlock(kind, function):
    count = 2 * (16 << 20) // 4

    def work(t):
        vec = np.full(count, t.rank + 1, np.float32)
        vec[t.rank] += 10
        function(t, vec)
        assert vec[2] == vec[-1] == 3
        assert vec[0] == vec[1] == 13
        assert vec.sum(dtype=np.float64) == 3 * count + 20

    run_well(2, work, kind)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1025])
@pytest.mark.parametrize("function", NAMED, ids=lambda f: f.__name__)
def test_rank_r_holds_r_plus_1(count, function):
    def work(t):
        vec = np.full(count, t.rank + 1.0)
        function(t, vec)
        assert vec.tolist() == [10.0] * count

    run_well(4, work)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_all_ranks_end_with_the_same_bits(size, op, dtype):
    rng = np.random.default_rng(size)
    inputs = rng.standard_normal((size, 301)).astype(dtype)
    inputs[:, 7] = np.where(np.arange(size) % 2, 0.0, -0.0)
    inputs[rng.integers(size), 8] = np.nan
    inputs[:, 9] = [float(f"{'-' * (rank % 2)}nan") for rank in range(size)]
    inputs[rng.integers(size), 10] = np.inf

    def work(t):
        results = []
        for name in COLLECTIVES:
            results.append(inputs[t.rank].copy())
            allreduce(t, results[-1], op, name, segment_bytes=64)
        return results

    results = run_well(size, work)
    oracle = {"sum": np.sum, "mean": np.mean, "max": np.max}[op](inputs.astype(np.float64), axis=0)
    tolerance = {"float64": 1e-14, "float32": 1e-5, "float16": 2e-2}[dtype]
    for of_algorithm in zip(*results, strict=True):
        assert len({result.tobytes() for result in of_algorithm}) == 1
        np.testing.assert_allclose(of_algorithm[0], oracle, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", ["aabb", "abab", "aaab", "abcd", "aaaa", "aabbcc", "aaabbc"])
def test_hierarchical_allreduce(layout):
    size, hosts = len(layout), Hosts.of(layout)

    def work(t):
        for count in (0, 1, size, 1000):
            for leaders in {None, 1, hosts.leaders}:
                vec = values(t.rank, size, count, "float32")
                hierarchical_allreduce(t, vec, hosts, "mean", leaders)
                np.testing.assert_array_equal(vec, expected("mean", size, count, "float32"))
            vec = values(t.rank, size, count, "int64")
            allreduce(t, vec, "max", Hierarchical(hosts, between=ALLREDUCE["ring"]))
            np.testing.assert_array_equal(vec, expected("max", size, count, "int64"))

    run_well(size, work)


# ---- the others


@by_size
def test_broadcast_and_reduce_for_every_root(size):
    def work(t):
        for root in range(size):
            for count in (0, 1, 1000, 40_000):  # the longest goes along the chain
                vec = values(t.rank, size, count, "float32")
                broadcast(t, vec, root)
                np.testing.assert_array_equal(vec, values(root, size, count, "float32"))
                for op in ("sum", "max"):
                    vec = values(t.rank, size, count, "float32")
                    reduce(t, vec, op, root)
                    if t.rank == root:
                        np.testing.assert_array_equal(vec, expected(op, size, count, "float32"))

    run_well(size, work)


@by_size
def test_reduce_scatter_and_allgather(size):
    def work(t):
        for count in lengths(size):
            uneven = (0, *[count * i * i // size**2 for i in range(1, size)], count)
            for bounds in (None, uneven):
                a, b = (bounds or cuts(count, size))[t.rank : t.rank + 2]
                for op in ("sum", "max"):
                    vec = values(t.rank, size, count, "float64")
                    own = reduce_scatter(t, vec, op, bounds)
                    np.testing.assert_array_equal(own, expected(op, size, count, "float64")[a:b])
                    assert not count or np.shares_memory(own, vec) or a == b
                own[...] += 1
                allgather(t, vec, bounds)
                np.testing.assert_array_equal(vec, expected(op, size, count, "float64") + 1)

    run_well(size, work)


@by_size
def test_allgatherv_keeps_lengths_and_order(size):
    def work(t):
        part = np.arange(3 * (t.rank % 3), dtype=np.int32) + 100 * t.rank
        part.flags.writeable = False
        for rank, got in enumerate(allgatherv(t, part)):
            np.testing.assert_array_equal(got, np.arange(3 * (rank % 3)) + 100 * rank)

    run_well(size, work)


@by_kind
def test_barrier_holds_everyone_until_the_last_has_come(kind):
    def work(t):
        barrier(t)
        if t.rank == 2:
            time.sleep(0.2)
        came = time.monotonic()
        barrier(t)
        return came, time.monotonic()

    came, left = zip(*run_well(5, work, kind), strict=True)
    assert min(left) >= max(came)


# ---- mistakes and failures


def test_unsuitable_arguments_are_refused():
    (t,) = inproc_group(1)
    with pytest.raises(ValueError, match=r"contiguous one-dimensional .* float64 of shape \(2, 2\)"):
        allreduce(t, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"contiguous one-dimensional .* strides \(16,\)"):
        broadcast(t, np.zeros(8)[::2])
    with pytest.raises(ValueError, match="works in place; got a read-only array"):
        ring_allreduce(t, np.broadcast_to(np.float32(1), 1))
    with pytest.raises(ValueError, match="array of numbers; got complex128"):
        reduce(t, np.zeros(3, complex))
    with pytest.raises(ValueError, match="mean needs a floating-point vector; got int32"):
        allreduce(t, np.zeros(3, np.int32), "mean")
    with pytest.raises(ValueError, match="no allreduce algorithm is called 'rings'; there are star, tree"):
        allreduce(t, np.zeros(3), algorithm="rings")
    with pytest.raises(ValueError, match="root must be a rank below 1; got 1"):
        broadcast(t, np.zeros(3), root=1)
    for bounds in ((0, 2), (1, 3), (0, 3, 3)):
        with pytest.raises(ValueError, match="bounds must rise from 0 to 3 in 1 chunks"):
            allgather(t, np.zeros(3), bounds)


@by_kind
@pytest.mark.parametrize("name", COLLECTIVES)
def test_when_one_rank_raises_the_others_do_too(kind, name):
    def work(t):
        vec = np.zeros(5000)
        allreduce(t, vec, "sum", name, segment_bytes=4000)
        if t.rank == 1:
            time.sleep(0.05)
            raise ArithmeticError("rank 1 cannot go on")
        for _ in range(100):
            allreduce(t, vec, "sum", name, segment_bytes=4000)

    start = time.monotonic()
    results = run(4, work, kind)
    assert time.monotonic() - start < 10
    assert isinstance(results[1], ArithmeticError)
    for rank in (0, 2, 3):
        assert isinstance(results[rank], CommError), results[rank]
        assert results[rank].culprit == 1
        assert "rank 1 cannot go on" in str(results[rank])
        assert any(f"rank {rank}: to" in note for note in results[rank].__notes__)


@by_kind
def test_a_rank_that_never_comes_ends_the_wait(kind):
    def work(t):
        if t.rank == 1:
            time.sleep(1.2)
        else:
            ring_allreduce(t, np.zeros(100))

    start = time.monotonic()
    results = run(3, work, kind, timeout_s=0.6, operation_timeout_s=0.6)
    assert time.monotonic() - start < 5
    assert all(isinstance(results[rank], CommError) for rank in (0, 2))


@by_kind
def test_different_lengths_are_an_error_on_all_ranks(kind):
    results = run(3, lambda t: ring_allreduce(t, np.zeros(99 + (t.rank == 2))), kind)
    assert all(isinstance(result, CommError) for result in results)
    assert any(isinstance(result, MessageMismatch) for result in results)


def test_every_algorithm_has_a_row() -> None:
    assert set(COLLECTIVES) == set(ALGORITHMS)
