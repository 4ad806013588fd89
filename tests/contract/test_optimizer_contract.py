"""What every optimizer promises, over the catalogue."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparkdl.nn.layer import Array
from sparkdl.optim import LARS, SGD, AdaGrad, Elementwise, Optimizer, State
from sparkdl.optim import OPTIMIZERS as REGISTRY
from tests.catalogue import OPTIMIZERS, OptimizerCase

each_optimizer = pytest.mark.parametrize("case", OPTIMIZERS, ids=lambda case: case.id)
each_elementwise = pytest.mark.parametrize(
    "case", [case for case in OPTIMIZERS if isinstance(case.optimizer, Elementwise)], ids=lambda case: case.id
)


class Seg(NamedTuple):
    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


SEGMENTS = (
    Seg("dense/W", 0, 6, (2, 3)),
    Seg("dense/b", 6, 9, (3,)),
    Seg("none/W", 9, 9, (0, 3)),
    Seg("head/W", 9, 12, (3, 1)),
    Seg("head/b", 12, 13, (1,)),
)
SIZE = 13


def run(optimizer: Optimizer, params: Array, state: State, grads: Array, segments: tuple[Seg, ...] = SEGMENTS) -> None:
    for g in grads:
        optimizer.step(params, g.copy(), state, 0.05, segments)


def problem(steps: int = 4, dtype: Any = np.float64) -> tuple[Array, Array]:
    rng = np.random.default_rng(11)
    return rng.normal(size=SIZE).astype(dtype), rng.normal(size=(steps, SIZE)).astype(dtype)


@each_optimizer
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_stays(case: OptimizerCase, dtype: Any) -> None:
    params, grads = problem(dtype=dtype)
    state = case.optimizer.init(params)
    run(case.optimizer, params, state, grads)
    assert params.dtype == dtype
    assert (state["t"].dtype, state["t"].shape, int(state["t"][0])) == (np.int64, (1,), len(grads))
    assert {(slot.dtype, slot.shape) for name, slot in state.items() if name != "t"} <= {(np.dtype(dtype), (SIZE,))}
    assert all(np.isfinite(slot).all() for slot in (params, *state.values()))


@each_optimizer
def test_float32_follows_float64(case: OptimizerCase) -> None:
    results = []
    for dtype in (np.float32, np.float64):
        params, grads = problem(10, dtype)
        run(case.optimizer, params, case.optimizer.init(params), grads)
        results.append(params)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@each_optimizer
def test_updates_are_in_place_and_move_every_weight(case: OptimizerCase) -> None:
    params, grads = problem()
    state, before = case.optimizer.init(params), params.copy()
    slots = {name: id(slot) for name, slot in state.items()}
    run(case.optimizer, params, state, grads[:1])
    assert (params != before).all()
    assert ((params < before) == (grads[0] > 0)).all()  # downhill, each weight: decay is weaker here
    assert {name: id(slot) for name, slot in state.items()} == slots


@each_optimizer
def test_a_vector_of_no_weights(case: OptimizerCase) -> None:
    params = np.zeros(0, np.float32)
    state = case.optimizer.init(params)
    run(case.optimizer, params, state, np.zeros((2, 0), np.float32), ())
    assert int(state["t"][0]) == 2


@each_optimizer
def test_zero_gradients_from_zero_weights_change_nothing(case: OptimizerCase) -> None:
    params = np.zeros(SIZE, np.float32)
    state = case.optimizer.init(params)
    run(case.optimizer, params, state, np.zeros((3, SIZE), np.float32))
    assert not params.any()
    assert all(not slot.any() for name, slot in state.items() if name != "t")


@each_optimizer
def test_a_pickled_optimizer_and_copied_state_go_on_bit_for_bit(case: OptimizerCase) -> None:
    whole, grads = problem(10)
    run(case.optimizer, whole, case.optimizer.init(whole), grads)
    params, _ = problem()
    state = case.optimizer.init(params)
    run(case.optimizer, params, state, grads[:5])
    twin = pickle.loads(pickle.dumps(case.optimizer))
    assert twin == case.optimizer
    resumed, params = {name: slot.copy() for name, slot in state.items()}, params.copy()
    run(twin, params, resumed, grads[5:])
    np.testing.assert_array_equal(params, whole)


@each_optimizer
def test_tensors_do_not_see_each_other(case: OptimizerCase) -> None:
    whole, grads = problem()
    start = whole.copy()
    run(case.optimizer, whole, case.optimizer.init(whole), grads)
    for seg in SEGMENTS:
        at, alone = slice(seg.start, seg.stop), (seg._replace(start=0, stop=seg.stop - seg.start),)
        part = start[at].copy()
        run(case.optimizer, part, case.optimizer.init(part), grads[:, at], alone)
        np.testing.assert_array_equal(part, whole[at])


@each_elementwise
@pytest.mark.parametrize("cut", [1, 4, 7, 9, 12])
def test_an_elementwise_rule_updates_slices_as_it_does_the_whole(case: OptimizerCase, cut: int) -> None:
    whole, grads = problem()
    pieces = [whole[:cut].copy(), whole[cut:].copy()]
    run(case.optimizer, whole, case.optimizer.init(whole), grads)
    for first, piece in zip((0, cut), pieces, strict=True):
        last = first + piece.size
        segments = tuple(
            s._replace(start=max(s.start, first) - first, stop=min(s.stop, last) - first)
            for s in SEGMENTS
            if s.start < last and s.stop > first
        )
        run(case.optimizer, piece, case.optimizer.init(piece), grads[:, first:last], segments)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def parabola(w: Array) -> tuple[float, Array]:
    """h (w - b)^2 / 2, least at b."""
    h, b = np.array([1.0, 2.0, 4.0]), np.array([1.0, -2.0, 0.5])
    return float((h * (w - b) ** 2).sum() / 2), h * (w - b)


def valley(w: Array) -> tuple[float, Array]:
    """Rosenbrock's function with a valley less steep, least at (1, 1)."""
    x, y = w
    bend = y - x * x
    return float((1 - x) ** 2 + 5 * bend * bend), np.array([2 * (x - 1) - 20 * x * bend, 10 * bend])


def rate(optimizer: Optimizer) -> float:
    """A base rate that suits these problems: LARS scales its steps by 0.001."""
    if isinstance(optimizer, SGD | LARS):
        return 0.02 / (1.0 if isinstance(optimizer, SGD) else 0.001)
    return 0.5 if isinstance(optimizer, AdaGrad) else 0.05


@each_optimizer
@pytest.mark.parametrize(
    ("function", "start", "steps"),
    [(parabola, [3.0, 3.0, 3.0], 400), (valley, [-1.0, 1.5], 1500)],
    ids=["parabola", "valley"],
)
def test_it_finds_the_minimum(
    case: OptimizerCase, function: Callable[[Array], tuple[float, Array]], start: list[float], steps: int
) -> None:
    w = np.array(start)
    state, base, segments = case.optimizer.init(w), rate(case.optimizer), (Seg("W", 0, w.size, (w.size, 1)),)
    for step in range(steps):
        case.optimizer.step(w, function(w)[1], state, base * (1 - step / steps), segments)
    assert function(w)[0] < 2e-3 * function(np.array(start))[0]


def test_the_registry_names_them_all() -> None:
    assert set(REGISTRY.values()) == {type(case.optimizer) for case in OPTIMIZERS}
    assert all(name == cls.__name__.lower() for name, cls in REGISTRY.items())
