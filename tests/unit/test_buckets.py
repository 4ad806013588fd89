"""Gradients that leave in pieces: every entry once, complete, in one order on all ranks; nothing is left by a fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from catalogue import LAYERS, LayerCase

from sparkdl import nn
from sparkdl.comm import PeerAborted, allreduce
from sparkdl.nn.containers import run_backward, run_forward
from sparkdl.strategies.buckets import Buckets, Courier, bucket_bounds
from tests.ranks import group, on_ranks

TAIL = 4
CASES = [pytest.param(c, id=c.id) for c in LAYERS]
NET = nn.Sequential(
    (
        nn.Dense(7),
        nn.Residual(nn.Sequential((nn.Dense(5), nn.Tanh(), nn.Dense(7, bias=False))), nn.Dense(7)),
        nn.BatchNorm(),
        nn.Concat((nn.Dense(2), nn.Sequential(()), nn.Dense(3))),
        nn.Dense(4),
    )
)
LAYOUT = nn.Layout(NET.specs((3,)))
LEAVES = sorted({s.name.rpartition("/")[0] for s in LAYOUT.trainable_segments})
SIZES = [0, 1, 30, 100, 400, 1 << 20]  # bytes of a bucket; the net's parameters take 8 to 280


class Twice:
    """A courier to a rank that sends the same: doubles at once, and notes which entries it was given."""

    def __init__(self, vec: nn.Array) -> None:
        self._vec, self.sent = vec, list[tuple[int, int] | str]()

    def send(self, part: nn.Array) -> Future[None]:
        start = (part.ctypes.data - self._vec.ctypes.data) // part.itemsize
        inside = np.shares_memory(part, self._vec)
        self.sent.append((start, start + part.size) if inside else "rest")
        part *= 2
        future: Future[None] = Future()
        future.set_result(None)
        return future


def buckets_over(layout: nn.Layout, bucket_bytes: int) -> tuple[Buckets, nn.Array, Twice]:
    vec = np.zeros(layout.size + TAIL)
    courier: Any = Twice(vec)
    return Buckets(layout, vec, bucket_bounds(layout, vec.itemsize, bucket_bytes), courier), vec, courier


def write(layout: nn.Layout, vec: nn.Array, path: str) -> None:
    """What a layer's backward pass leaves: every entry of its parameters is its place + 1."""
    for s in layout.trainable_segments:
        if not path or s.name.startswith(f"{path}/"):
            vec[s.start : s.stop] = np.arange(s.start, s.stop) + 1


def expected(layout: nn.Layout) -> nn.Array:
    return 2.0 * (np.arange(layout.size + TAIL) + 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bucket_bytes", SIZES)
@pytest.mark.parametrize("itemsize", [4, 8])
def test_cuts_lie_at_parameters_and_buckets_are_no_larger_than_they_must_be(
    case: LayerCase, bucket_bytes: int, itemsize: int
) -> None:
    layout = nn.Layout(case.layer.specs(case.in_shape))
    bounds = bucket_bounds(layout, itemsize, bucket_bytes)
    starts = [s.start for s in layout.trainable_segments]
    assert (bounds[0], bounds[-1]) == (layout.num_trainable, 0)
    assert set(bounds[1:]) <= {0, *starts}
    assert len(bounds) == 2 or all(a > b for a, b in pairwise(bounds))
    for stop, start in pairwise(bounds[:-1]):
        assert (stop - start) * itemsize >= bucket_bytes
        first = min(s for s in [*starts, stop] if s > start)
        assert (stop - first) * itemsize < bucket_bytes  # it would not have been enough without its first parameter
    if bucket_bytes == 0:
        assert len(bounds) == 2


@pytest.mark.parametrize("bucket_bytes", SIZES)
@pytest.mark.parametrize("order", [*range(6), "forward", "backward"])
def test_every_entry_leaves_once_and_complete_in_whatever_order_layers_report(
    bucket_bytes: int, order: int | str
) -> None:
    buckets, vec, courier = buckets_over(LAYOUT, bucket_bytes)
    paths = list(LEAVES)
    if isinstance(order, int):
        np.random.default_rng(order).shuffle(paths)
    elif order == "backward":
        paths.reverse()
    everywhere = None
    for _ in range(2):  # a step like any other
        vec[:] = np.arange(vec.size) + 1
        vec[: LAYOUT.num_trainable] = np.nan  # whatever leaves before it is written stays NaN
        courier.sent.clear()
        buckets.begin()
        for path in paths:
            write(LAYOUT, vec, path)
            buckets.ready(path)
        buckets.finish()
        np.testing.assert_array_equal(vec, expected(LAYOUT))
        assert everywhere in (None, courier.sent)
        everywhere = list(courier.sent)


@pytest.mark.parametrize("bucket_bytes", SIZES)
def test_the_order_of_messages_is_that_of_a_rank_without_rows(bucket_bytes: int) -> None:
    """One calls `ready` from its layers, another from the whole net, a third has an empty minibatch and never does."""
    sent = []
    for paths in (LEAVES[::-1], LEAVES, [""], []):
        buckets, vec, courier = buckets_over(LAYOUT, bucket_bytes)
        vec[:] = np.arange(vec.size) + 1
        buckets.begin()
        for path in paths:
            buckets.ready(path)
        buckets.finish()
        np.testing.assert_array_equal(vec, expected(LAYOUT))
        sent.append(courier.sent)
    bounds = bucket_bounds(LAYOUT, 8, bucket_bytes)
    spans = [(start, stop) for stop, start in pairwise(bounds[:-1])]
    assert sent == [[*spans, "rest"]] * 4


def test_buckets_leave_before_the_pass_has_ended() -> None:
    buckets, _, courier = buckets_over(LAYOUT, 100)
    buckets.begin()
    last = max(LAYOUT.trainable_segments, key=lambda s: s.start).name.rpartition("/")[0]
    buckets.ready(last)
    assert len(courier.sent) == 1
    buckets.ready(LEAVES[0])  # a layer of the start cannot overtake those of the end
    assert len(courier.sent) == 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bucket_bytes", [1, 60])
def test_a_backward_pass_through_every_layer(case: LayerCase, bucket_bytes: int) -> None:
    """Leaves, the whole net being one (path ""), and containers of any depth: twice what the plain pass adds up."""
    layout = nn.Layout(case.layer.specs(case.in_shape))
    buckets, vec, courier = buckets_over(layout, bucket_bytes)
    params = layout.init(np.random.default_rng(0), np.dtype(np.float64))
    x = case.make_x(np.random.default_rng(1), (3, *case.in_shape))

    def pass_into(grad: nn.Array, ready: Callable[[str], None] | None) -> None:
        ctx = nn.Ctx(train=True, rng=np.random.default_rng(2), ready=ready)
        p, g = layout.tree(params), layout.tree(grad)
        y, cache = run_forward(case.layer, p, x, ctx)
        run_backward(case.layer, p, cache, np.ones_like(y), g, ctx)

    plain = np.zeros(layout.size)
    pass_into(plain, None)
    buckets.begin()
    pass_into(vec[: layout.size], buckets.ready)
    if layout.num_trainable:
        left = len(bucket_bounds(layout, 8, bucket_bytes)) - 2 - len(courier.sent)
        assert left == 0  # every layer has reported
    buckets.finish()
    np.testing.assert_array_equal(vec[: layout.size], 2 * plain)


@pytest.fixture
def _no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.usefixtures("_no_threads_are_left")
class TestCourier:
    """Over threads that are ranks."""

    @pytest.mark.parametrize("size", [2, 3, 5])
    @pytest.mark.parametrize("bucket_bytes", SIZES)
    def test_ranks_that_report_differently_add_up_the_same(self, size: int, bucket_bytes: int) -> None:
        with group("inproc", size, operation_timeout_s=10) as transports:

            def work(rank: int) -> nn.Array:
                comm = transports[rank]
                vec = np.zeros(LAYOUT.size + TAIL)
                courier = Courier(partial(allreduce, comm, op="sum", algorithm="ring"), comm.interrupt)
                buckets = Buckets(LAYOUT, vec, bucket_bounds(LAYOUT, 8, bucket_bytes), courier)
                paths = list(LEAVES)
                np.random.default_rng(rank).shuffle(paths)
                for _ in range(3):
                    vec[:] = (rank + 1) * np.arange(vec.size)
                    buckets.begin()
                    for path in paths if rank else ():
                        buckets.ready(path)
                    buckets.finish()
                courier.close()
                return vec

            for vec in on_ranks(size, work):
                np.testing.assert_array_equal(vec, size * (size + 1) / 2 * np.arange(vec.size))

    def test_a_failure_while_a_bucket_is_under_way_ends_at_once_and_is_told(self) -> None:
        with group("inproc", 2, operation_timeout_s=60) as transports:
            couriers = [Courier(partial(allreduce, t, op="sum", algorithm="ring"), t.interrupt) for t in transports]
            started = time.monotonic()
            stuck = couriers[0].send(np.ones(1000))
            waiting = couriers[0].send(np.ones(1000))
            time.sleep(0.1)
            couriers[0].close()  # the other never comes: its pass, or this one's, has failed
            assert time.monotonic() - started < 2
            assert isinstance(stuck.exception(0), PeerAborted)
            assert waiting.cancelled() or waiting.exception(0) is not None
            told = couriers[1].send(np.ones(1000)).exception(2)
            assert isinstance(told, PeerAborted)
            assert told.culprit == 0
            assert "the step failed while its gradients were under way" in str(told)
            couriers[1].close()

    def test_one_that_has_delivered_everything_leaves_the_transport_alone(self) -> None:
        with group("inproc", 2) as transports:

            def work(rank: int) -> None:
                comm, vec = transports[rank], np.ones(3)
                courier = Courier(partial(allreduce, comm, op="sum", algorithm="ring"), comm.interrupt)
                courier.send(vec).result()
                courier.close()
                allreduce(comm, vec, "sum", "ring")
                np.testing.assert_array_equal(vec, 4.0)

            on_ranks(2, work)

    def test_an_error_of_the_reduction_reaches_whoever_waits(self) -> None:
        def reduce(vec: nn.Array) -> None:
            raise OSError("cut off")

        courier = Courier(reduce, lambda reason: None)
        with pytest.raises(OSError, match="cut off"):
            courier.send(np.ones(1)).result()
        courier.close()
