"""Allreduce in shared memory: exact, in rank order, over one host and several; wrong or missing company is an error."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sparkdl.comm import (
    AllReducer,
    CommError,
    MessageMismatch,
    OperationTimeout,
    PeerLost,
    allreduce,
    barrier,
    broadcast,
    shared_allreduce,
)
from sparkdl.comm import rendezvous as rendezvous_module
from sparkdl.comm import shared as shared_module
from sparkdl.comm.chooser import Choice
from sparkdl.comm.shared import Shared, arenas, is_short, zeros
from sparkdl.comm.transport import sharing as sharing_module
from sparkdl.comm.transport.arena import COPIED
from tests.ranks import group, held, nothing_kept, run

DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")
MIB = 1 << 20


@pytest.fixture
def small_slots(monkeypatch):
    """Slots of one page, so that a few thousand numbers take many turns; what is longer does not count as short."""
    monkeypatch.setattr(shared_module, "SHORT_BYTES", 4096)
    monkeypatch.setattr(shared_module, "MAX_SLOT_BYTES", 4096)
    monkeypatch.setattr(shared_module, "MIN_SLOT_BYTES", 4096)


def inputs(size, count, dtype, seed=0):
    """Numbers of both signs, by rank; few enough bits that integers do not overflow in the sum of nine."""
    numbers = np.random.default_rng((seed, count)).standard_normal((size, count))
    return numbers.astype(dtype) if np.dtype(dtype).kind == "f" else (3 * numbers).round().clip(0, 9).astype(dtype)


def in_order(rows, op):
    """What a butterfly's order of addition gives, to the bit; float16 is added in float32 and rounded at the end."""
    if op == "max":
        return np.max(rows, axis=0)
    wide = rows.astype(np.float32) if rows.dtype == np.float16 else rows
    terms = list(wide)
    pairs = len(terms) - 2 ** int(np.log2(len(terms)))
    terms = [terms[2 * i] + terms[2 * i + 1] for i in range(pairs)] + terms[2 * pairs :]
    while len(terms) > 1:
        terms = [(a + b).astype(wide.dtype) for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0].astype(rows.dtype)


@pytest.mark.parametrize("size", range(1, 10))
def test_every_dtype_operation_and_length_in_order(size, small_slots):
    cases = [
        (inputs(size, count, dtype), op)
        for count in sorted({0, 1, size - 1, size, size + 1, 1000, 20_000})
        for dtype in (DTYPES if count < 20_000 else ("float32",))
        for op in ("sum", "max")
    ]

    def work(t):
        for rows, op in cases:
            vec = rows[t.rank].copy()
            shared_allreduce(t, vec, op)
            assert vec.tobytes() == in_order(rows, op).tobytes(), (rows.dtype, rows.shape, op)

    with group("shm", size) as ranks:
        run(ranks, work)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_short_and_long_vectors_get_the_same_bits(size):
    """In slots of the usual size, on both sides of what counts as short."""
    limit = next(count for count in range(1, MIB) if not is_short(size, 8 * count))
    for count in (limit - 1, limit):
        rows = inputs(size, count, "float64")

        def work(t, rows=rows):
            vec = rows[t.rank].copy()
            shared_allreduce(t, vec)
            return vec.tobytes()

        with group("shm", size) as ranks:
            assert set(run(ranks, work)) == {in_order(rows, "sum").tobytes()}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_16_mib_in_slots_of_the_usual_size(size, dtype):
    count = 16 * MIB // np.dtype(dtype).itemsize

    def work(t):
        vec = (np.arange(count, dtype=np.int64) % 101 + t.rank).astype(dtype)
        shared_allreduce(t, vec, "mean")
        np.testing.assert_array_equal(vec, (np.arange(count) % 101 + (size - 1) / 2).astype(dtype))

    with group("shm", size) as ranks:
        run(ranks, work)


def test_operations_of_all_lengths_follow_one_another(small_slots):
    """Slots are used again by the next operation while the slowest rank may still read them."""
    rng = np.random.default_rng(3)
    counts = rng.choice([1, 7, 300, 1024, 5000, 9000], 60).tolist()

    def work(t):
        for i, count in enumerate(counts):
            vec = np.full(count, 10.0**t.rank + i)
            shared_allreduce(t, vec)
            if i % 7 == t.rank:
                time.sleep(0.002)
            assert (vec == 1111 + 4 * i).all()

    with group("shm", 4) as ranks:
        run(ranks, work)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_vectors_that_all_can_read_are_reduced_where_they_lie(size, op, small_slots):
    def work(t):
        reducer = AllReducer(t, table=[Choice(1 << 62, "star", 1 << 19)])
        whole = reducer.zeros(30_001, np.float32)
        assert not whole.any()
        arena = t.arena
        for count in (0, 1, 100, 9000, 30_000):
            vec = whole[1 : 1 + count]
            assert not count or arena.find(vec) == ((0, 4) if size > 1 else (-1, 0))
            rows = inputs(size, count, "float32")
            vec[:] = rows[t.rank]
            reducer.allreduce(vec, op)
            if count > 9000 and size > 1:  # shorter ones go through the star
                assert vec.tobytes() == in_order(rows, op).tobytes()
            np.testing.assert_allclose(vec, in_order(rows, op), rtol=1e-4, atol=1e-5)
            vec[:] = -1  # nobody reads it any more

    with group("shm", size) as ranks:
        run(ranks, work)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_vectors_that_all_can_read_and_others_mix(dtype, small_slots):
    rows = inputs(4, 20_000, dtype)

    def work(t):
        vec = zeros(t, 20_000, np.dtype(dtype))
        vec[:] = rows[t.rank]
        mine = vec if t.rank % 2 else rows[t.rank].copy()
        shared_allreduce(t, mine)
        assert mine.tobytes() == in_order(rows, "sum").tobytes()
        assert t.rank % 2 or vec.tobytes() == rows[t.rank].tobytes()

    with group("shm", 4) as ranks:
        run(ranks, work)


@pytest.mark.parametrize("kind", ["inproc", "tcp"])
def test_without_shared_memory_zeros_are_ordinary(kind):
    def work(t):
        vec = AllReducer(t, algorithm="ring").zeros(1000)
        assert (vec.dtype, vec.shape, vec.any()) == (np.float32, (1000,), False)
        vec += t.rank
        shared_allreduce(t, vec)
        assert (vec == 3).all()

    with group(kind, 3) as ranks:
        run(ranks, work)


@pytest.mark.parametrize("layout", ["aabb", "abab", "aaab", "abbc", "aaabb", "abc"])
def test_several_hosts(layout, monkeypatch, small_slots):
    """Each host in its own memory, messages between them."""
    hosts = iter(layout)  # in whatever order the ranks come
    monkeypatch.setattr(rendezvous_module, "host_id", lambda: next(hosts))
    monkeypatch.setattr(rendezvous_module, "_check_loopback", lambda rank, cards: None)
    size = len(layout)

    def work(t):
        members = arenas(t).members
        assert sorted(map(len, members)) == sorted(layout.count(host) for host in set(layout))
        assert len({t.hosts[rank] for rank in arenas(t).host_of(t.rank)}) == 1
        common = zeros(t, 20_000, np.dtype(np.float64))
        for count in (0, 1, size - 1, size, 1000, 20_000):
            for vec in (np.zeros(count), common[:count]):
                vec[:] = np.arange(count) % 97 + t.rank
                shared_allreduce(t, vec, "mean")
                np.testing.assert_array_equal(vec, np.arange(count) % 97 + (size - 1) / 2)
            vec = np.arange(count) % 97 + t.rank
            allreduce(t, vec, "max", Shared())
            np.testing.assert_array_equal(vec, np.arange(count) % 97 + size - 1)

    with group("shm", size) as ranks:
        run(ranks, work)


def test_ranks_that_cannot_open_the_common_memory_send_messages(monkeypatch):
    monkeypatch.setattr(sharing_module, "_map", lambda *_: None)

    def work(t):
        assert arenas(t).members == ((0,), (1,), (2,))
        vec = np.full(1000, t.rank + 1.0)
        shared_allreduce(t, vec)
        assert (vec == 6).all()

    with group("shm", 3) as ranks:
        run(ranks, work)


# ---- wrong or missing company


def outcomes(ranks, work):
    def live(t):
        try:
            with t:
                return work(t)
        except Exception as error:
            return error

    return run(ranks, live)


@pytest.mark.parametrize("kwargs", [{"tag": 5}, {}], ids=["tag", "length"])
def test_another_operation_in_the_arena_names_both(kwargs):
    def work(t):
        shared_allreduce(t, np.zeros(10, np.float32))
        shared_allreduce(
            t, np.zeros(300 if kwargs or t.rank != 2 else 299, np.float32), **kwargs if t.rank == 2 else {}
        )

    with group("shm", 3) as ranks:
        results = outcomes(ranks, work)
    assert all(isinstance(result, CommError) for result in results)
    told = [str(result) for result in results if isinstance(result, MessageMismatch)]
    odd = "(tag 5, float32 x 300)" if kwargs else "(tag 0, float32 x 299)"
    assert any("(tag 0, float32 x 300)" in text and odd in text and "rank 2" in text for text in told), results


@pytest.mark.parametrize("astray", [0, 1])
@pytest.mark.parametrize("sends", [True, False])
def test_a_message_where_the_others_work_in_the_arena_is_an_error(astray, sends):
    def work(t):
        vec = np.zeros(MIB)  # more than a ring holds
        shared_allreduce(t, vec)
        if t.rank == astray:
            broadcast(t, vec, root=astray if sends else 1 - astray, tag=7)
        shared_allreduce(t, vec)

    start = time.monotonic()
    with group("shm", 2) as ranks:
        results = outcomes(ranks, work)
    assert time.monotonic() - start < 2
    assert all(isinstance(result, CommError) for result in results)
    assert any(isinstance(result, MessageMismatch) for result in results)


def test_messages_that_are_still_under_way_are_none():
    """What one rank has sent before an operation may be longer than the ring, and asked for late."""
    much = np.arange(8 * MIB // 8)

    def work(t):
        out = np.zeros_like(much)
        if t.rank == 0:
            pending = t.isend(1, 3, much)
        else:
            time.sleep(0.2)
            t.recv(0, 3, out)
            assert (out == much).all()
        vec = np.full(100_000, t.rank + 1.0)
        shared_allreduce(t, vec)
        assert (vec == 3).all()
        if t.rank == 0:
            pending.wait()

    with group("shm", 2) as ranks:
        run(ranks, work)


def test_who_posts_between_two_looks_and_goes_on_is_not_lost(monkeypatch):
    """Rank 1 is through with the operation, and has sent the next message, when rank 0 looks where it is."""

    def work(t):
        shared_allreduce(t, np.zeros(10))
        if t.rank == 0:
            t.arena.post(COPIED, t.arena.turn)
            look = t._near[1].peek
            monkeypatch.setattr(t._near[1], "peek", lambda: (go.set(), gone.wait(10), look())[2])
            t.arena.wait(COPIED, t.arena.turn, 0, np.zeros(1))
            t.recv(1, 0, np.zeros(1))
        else:
            go.wait(10)
            t.arena.post(COPIED, t.arena.turn)
            t.isend(0, 0, np.zeros(1)).wait()
            gone.set()

    go, gone = threading.Event(), threading.Event()
    with group("shm", 2) as ranks:
        run(ranks, work)


def test_a_live_rank_that_never_comes_is_waited_for_until_the_deadline():
    come = threading.Event()

    def work(t):
        shared_allreduce(t, np.zeros(10))
        if t.rank == 2:
            come.wait(10)
            return
        try:
            shared_allreduce(t, np.zeros(50_000))
        finally:
            come.set()

    start = time.monotonic()
    with group("shm", 3, operation_timeout_s=0.6) as ranks:
        results = outcomes(ranks, work)
    assert 0.6 <= time.monotonic() - start < 3
    errors = [result for result in results[:2] if isinstance(result, OperationTimeout)]
    assert any("share with rank 2 (tag 0, float64 x 50000)" in str(error) for error in errors)


def test_a_rank_that_has_left_in_peace_is_lost():
    def work(t):
        vec = np.ones(10_000)
        shared_allreduce(t, vec)
        if t.rank != 1:
            shared_allreduce(t, vec)

    with group("shm", 3) as ranks:
        results = outcomes(ranks, work)
    assert results[1] is None
    for result in (results[0], results[2]):
        assert isinstance(result, CommError)
        assert result.culprit == 1
    assert any(isinstance(result, PeerLost) for result in results)


@pytest.mark.parametrize("how", ["close", "abort", "error"])
def test_nothing_leaks(how):
    with group("shm", 3):
        pass
    with nothing_kept() as before, group("shm", 3, operation_timeout_s=0.3) as ranks:
        run(ranks, lambda t: shared_allreduce(t, np.zeros(100_000)))
        run(ranks, barrier)
        assert held()[2] == before[2] + 6 + 3  # three pairs, and one arena, mapped by each end
        run(ranks, lambda t: shared_allreduce(t, zeros(t, 100_000, np.dtype(np.float64))))
        assert held()[2] == before[2] + 6 + 3 + 3
        if how == "error":
            with pytest.raises(OperationTimeout):
                shared_allreduce(ranks[0], np.zeros(100_000))
        elif how == "abort":
            ranks[1].abort("test")


def test_after_the_end_nothing_works():
    with group("shm", 2) as ranks:
        run(ranks, lambda t: shared_allreduce(t, np.zeros(10)))
        ranks[0].close()
        for count in (10, 1_000_000):
            with pytest.raises(CommError, match="rank 0: the transport is closed"):
                shared_allreduce(ranks[0], np.zeros(count))
