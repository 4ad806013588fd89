"""Threads that share a minibatch: what they add up to is what one thread computes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import pytest

from sparkdl import nn
from sparkdl.nn import Array, Ctx, Model
from sparkdl.train import threads as threads_module
from sparkdl.train.threads import Threads, cores

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def however_little(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nets of these tests are small: have them shared all the same."""
    if "as_it_pays" not in request.fixturenames:
        monkeypatch.setattr(threads_module, "LEAST_WORK", 0)
        monkeypatch.setattr(threads_module, "LEAST_REUSE", 0)


@pytest.fixture
def as_it_pays() -> None:
    """Only what is worth it is shared."""


def images(filters: int = 4) -> nn.Layer:
    block = nn.Sequential([nn.Conv2D(filters, 3, bias=False), nn.BatchNorm()])
    stem = [nn.Conv2D(filters, 3), nn.BatchNorm(), nn.ReLU()]
    return nn.Sequential([*stem, nn.Residual(block), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense(3)])


NETS = {
    "dense": (nn.Sequential([nn.Dense(7), nn.Tanh(), nn.Dense(3)]), (5,)),
    "images": (images(), (6, 5, 2)),
    "sequence": (nn.Sequential([nn.LSTM(4), nn.Dense(3)]), (6, 3)),
    "checkpointed": (nn.Sequential([nn.Checkpointed(images()), nn.Dense(3)]), (6, 5, 2)),
}


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    """So many of them."""
    made = Threads(request.param)
    yield made
    made.close()


@dataclass(frozen=True)
class Batch:
    model: Model
    params: Array
    x: Array
    y: Array
    w: Array

    @classmethod
    def of(cls, net: nn.Layer, in_shape: tuple[int, ...], rows: int = 29) -> Batch:
        model = Model(net, nn.SoftmaxCrossEntropy(), in_shape)
        x = RNG.standard_normal((rows, *in_shape))
        return cls(model, model.init(RNG, np.float64), x, RNG.integers(3, size=rows), RNG.random(rows))

    def run(self, threads: Threads, ctx: Ctx, first: bool = True, start: float = 0.0) -> tuple[Array, Any, Array]:
        grad = np.full(self.model.layout.size, start)
        sums, z = threads.accumulate(self.model, self.params, grad, self.x, self.y, self.w, ctx, first=first)
        return grad, sums, z


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("first", [True, False])
def test_threads_are_one_thread(kind: str, first: bool, threads: Threads) -> None:
    batch = Batch.of(*NETS[kind])
    results = [batch.run(t, Ctx(train=True), first, start=0.25) for t in (Threads(1), threads)]
    (grad, sums, z), (shared, shared_sums, shared_z) = results
    np.testing.assert_allclose(shared_z, z, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(shared, grad, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(shared_sums, sums, rtol=1e-12)
    np.testing.assert_array_equal(batch.run(threads, Ctx(train=True), first, start=0.25)[0], shared)  # every time


def test_outputs_are_those_of_one_thread(threads: Threads) -> None:
    batch = Batch.of(*NETS["images"])
    expected = batch.model.outputs(batch.params, batch.x)
    np.testing.assert_allclose(threads.outputs(batch.model, batch.params, batch.x), expected, rtol=1e-12, atol=1e-14)
    assert threads.outputs(batch.model, batch.params, batch.x[:3]).shape == (3, 3)


def test_a_few_rows_stay_with_one_thread(threads: Threads) -> None:
    batch = Batch.of(*NETS["images"], rows=1)
    grad, sums, _ = batch.run(threads, Ctx(train=True))
    expected, expected_sums, _ = batch.run(Threads(1), Ctx(train=True))
    np.testing.assert_array_equal(grad, expected)
    assert sums == expected_sums


@pytest.mark.usefixtures("as_it_pays")
def test_only_what_is_worth_it_is_shared(threads: Threads) -> None:
    small, large = Batch.of(*NETS["images"]), Batch.of(images(64), (12, 12, 8), rows=64)
    wide = Batch.of(nn.Sequential([nn.Dense(2000), nn.Dense(2000), nn.Dense(3)]), (9,), rows=64)
    alone = [batch.run(Threads(1), Ctx(train=True))[0] for batch in (small, wide, large)]
    shared = [batch.run(threads, Ctx(train=True))[0] for batch in (small, wide, large)]
    np.testing.assert_array_equal(shared[0], alone[0])
    np.testing.assert_array_equal(shared[1], alone[1])
    np.testing.assert_allclose(shared[2], alone[2], rtol=1e-8, atol=1e-10)
    assert (shared[2] != alone[2]).any()  # added in another order


@pytest.mark.parametrize("kind", ["images", "sequence"])
def test_a_layer_is_reported_once_when_its_gradients_are_complete(kind: str, threads: Threads) -> None:
    batch = Batch.of(*NETS[kind])
    heard: dict[int, list[tuple[str, Array]]] = {}

    def listener(grad: Array, key: int) -> Any:
        def ready(path: str) -> None:
            heard.setdefault(key, []).append((path, grad.copy()))

        return ready

    layout = batch.model.layout
    for key, t in enumerate((Threads(1), threads)):
        grad = np.zeros(layout.size)
        ctx = Ctx(train=True, ready=listener(grad, key))
        t.accumulate(batch.model, batch.params, grad, batch.x, batch.y, batch.w, ctx, first=True)
        heard[key].append(("", grad))  # in the end everything is there
    assert [path for path, _ in heard[0]] == [path for path, _ in heard[1]]
    for (path, grad), (_, shared) in zip(heard[0], heard[1], strict=True):
        for s in layout.segments if not path else layout.trainable_segments:
            if not path or s.name.startswith(f"{path}/"):
                np.testing.assert_allclose(shared[s.start : s.stop], grad[s.start : s.stop], rtol=1e-8, atol=1e-10)


def test_workers_meet_through_the_threads_once_for_each_sum(threads: Threads) -> None:
    """With another worker that holds the same rows, sums double and means stay."""
    batch = Batch.of(*NETS["images"])
    calls = []

    def doubled(sums: Array) -> None:
        calls.append(len(sums))
        sums *= 2

    alone = batch.run(threads, Ctx(train=True))
    grad, _, z = batch.run(threads, Ctx(train=True, sync=doubled))
    np.testing.assert_allclose(z, alone[2], rtol=1e-9, atol=1e-10)
    n = batch.model.layout.num_trainable
    np.testing.assert_allclose(grad[:n], alone[0][:n], rtol=1e-8, atol=1e-10)
    assert calls == [9, 9, 8, 8]  # moments and a count forward, two sums back, for each of two normalisations


@dataclass(frozen=True)
class Picky(nn.Layer):
    """y = x, unless it does not like a row: in the forward pass where x > 8, backward where x < -8."""

    def out_shape(self, in_shape: tuple[int, ...]) -> tuple[int, ...]:
        return in_shape

    def forward(self, p: Any, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        if (x > 8).any():
            raise ValueError("forward")
        return x, x

    def backward(self, p: Any, cache: Array, dy: Array, g: Any, ctx: Ctx) -> Array:
        if (cache < -8).any():
            raise ValueError("backward")
        return dy


@pytest.mark.parametrize(("value", "where"), [(9.0, "forward"), (-9.0, "backward")])
@pytest.mark.parametrize("row", [0, 28])
def test_what_one_thread_raises_ends_all(row: int, value: float, where: str, threads: Threads) -> None:
    after = [nn.Dense(4), nn.BatchNorm(), nn.Dense(3)]
    batch = Batch.of(nn.Sequential([nn.Dense(5), Picky(), *after]), (5,))
    batch.model.layout.views(batch.params)["dense_0/W"][...] = np.eye(5)
    batch.x[...] = np.clip(batch.x, -5, 5)
    batch.x[row, 2] = value
    for _ in range(2):
        with pytest.raises(ValueError, match=where):
            batch.run(threads, Ctx(train=True))
    batch.x[row, 2] = 0.0
    expected = batch.run(Threads(1), Ctx(train=True))[0]
    np.testing.assert_allclose(batch.run(threads, Ctx(train=True))[0], expected, rtol=1e-8, atol=1e-10)


def test_an_interrupt_before_all_have_begun_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, three = Batch.of(*NETS["images"]), Threads(3)
    assert three._pool is not None
    submit, begun = three._pool.submit, []

    def interrupted(*args: Any) -> Any:
        if begun:
            raise KeyboardInterrupt
        begun.append(submit(*args))
        return begun[0]

    monkeypatch.setattr(three._pool, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.run(three, Ctx(train=True))
    assert isinstance(begun[0].exception(timeout=10), BrokenBarrierError)
    three.close()


def test_settings_of_the_caller_hold_in_all_threads(threads: Threads) -> None:
    batch = Batch.of(*NETS["dense"])
    batch.x[:] = np.inf  # inf - inf in every thread
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        assert np.isnan(batch.run(threads, Ctx(train=True))[1].loss)


def test_dropout_draws_for_each_thread_from_the_same_source(threads: Threads) -> None:
    batch = Batch.of(nn.Sequential([nn.Dropout(0.5), nn.Dense(3)]), (50,))
    batch.x[:] = 1
    runs = [batch.run(threads, Ctx(train=True, rng=np.random.default_rng(seed)))[2] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert len(np.unique(runs[0][:, 0])) == len(batch.x)  # no two rows lose the same inputs


def test_without_threadpoolctl_there_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "find_spec", lambda name: None)
    assert Threads(2).count == 1


@pytest.mark.parametrize(("text", "count"), [(None, 1), ("1", 1), ("3", 3), ("", 1), ("0", 1), ("4,2", 4), ("many", 1)])
def test_cores_are_what_the_environment_says(text: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if text is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert cores() == count
