"""Outer optimizers and elastic averaging: contract, reductions, and fixed points known in closed form."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from sparkdl import optim
from sparkdl.optim import SGD, Average, Elastic, OuterOptimizer
from tests.catalogue import OUTER, OuterCase

each = pytest.mark.parametrize("case", OUTER, ids=lambda case: case.id)

H, B, RATE = np.array([1.0, 4.0]), np.array([0.0, 1.0]), 0.1
"""Two workers with the losses h / 2 (x - b)^2, and the local rate."""


def local_steps(x: float, steps: int) -> Any:
    """Where both workers get to from x."""
    xs = np.full(2, x)
    for _ in range(steps):
        xs -= RATE * H * (xs - B)
    return xs


def meet(outer: OuterOptimizer, steps: int, meetings: int, x: float = 3.0) -> list[float]:
    """The shared weight after each meeting."""
    params, seen = np.array([x]), []
    state = outer.init(params)
    for _ in range(meetings):
        outer.step(params, local_steps(params[0], steps).mean(keepdims=True), state, RATE, 2)
        seen.append(float(params[0]))
    return seen


@each
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_updates_are_in_place_and_keep_the_dtype(case: OuterCase, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    params = rng.standard_normal(9).astype(dtype)
    state = case.optimizer.init(params)
    slots = {name: id(slot) for name, slot in state.items()}
    for t in range(1, 4):
        case.optimizer.step(params, rng.standard_normal(9).astype(dtype), state, 0.05, 4)
        assert state["t"].tolist() == [t]
    assert params.dtype == dtype
    assert {(slot.dtype, slot.shape) for name, slot in state.items() if name != "t"} <= {(np.dtype(dtype), (9,))}
    assert {name: id(slot) for name, slot in state.items()} == slots


@each
def test_where_workers_agree_nothing_moves(case: OuterCase) -> None:
    params = np.arange(5.0)
    case.optimizer.step(params, np.arange(5.0), case.optimizer.init(params), 0.1, 3)
    assert params.tolist() == [0, 1, 2, 3, 4]


@each
@pytest.mark.parametrize("steps", [1, 4, 16])
def test_special_cases_are_plain_averaging(case: OuterCase, steps: int) -> None:
    same = np.allclose(meet(case.optimizer, steps, 20), meet(Average(), steps, 20), rtol=1e-12)
    assert same is case.averages


@each
@pytest.mark.parametrize(("steps", "fixed_point"), [(1, 0.8), (4, 0.71679), (16, 0.55099)])
def test_fixed_point_on_two_quadratics(case: OuterCase, steps: int, fixed_point: float) -> None:
    """sum c_i b_i / sum c_i with c_i = 1 - (1 - eta h_i)^H: momentum over the meetings does not move it."""
    c = 1 - (1 - RATE * H) ** steps
    assert (c * B).sum() / c.sum() == pytest.approx(fixed_point, abs=5e-6)
    assert meet(case.optimizer, steps, 1500)[-1] == pytest.approx((c * B).sum() / c.sum(), abs=1e-9)


def test_one_local_step_is_synchronous_sgd() -> None:
    x, seen = 3.0, meet(Average(), 1, 30)
    for averaged in seen:
        x -= RATE * np.mean(H * (x - B))
        assert averaged == pytest.approx(x, rel=1e-14)


def formula(outer: OuterOptimizer, x: float, means: Any, lr: float, workers: int) -> list[float]:
    """The rules as their papers write them, on one number."""
    v, seen = 0.0, []
    for mean in means:
        if isinstance(outer, optim.SlowMo):
            v = outer.beta * v + (x - mean) / lr
            x = x - outer.alpha * lr * v
        elif isinstance(outer, optim.BMUF):
            mu = 1 - 1 / workers if outer.momentum is None else outer.momentum
            v = mu * v + outer.zeta * (mean - x)
            x = x + v
        elif isinstance(outer, optim.DiLoCo):
            d = x - mean
            v = outer.momentum * v + d
            x = x - outer.lr * (d + outer.momentum * v)
        else:
            x = mean
        seen.append(x)
    return seen


@each
def test_rules_are_those_of_the_papers(case: OuterCase) -> None:
    means = np.random.default_rng(1).standard_normal(6)
    params, seen = np.array([0.7]), []
    state = case.optimizer.init(params)
    for mean in means:
        case.optimizer.step(params, np.array([mean]), state, 0.05, 5)
        seen.append(params[0])
    np.testing.assert_allclose(seen, formula(case.optimizer, 0.7, means, 0.05, 5), rtol=1e-12)


def test_bmuf_momentum_restores_what_the_mean_takes_away() -> None:
    """P workers that all move by d at each meeting: in the long run the weights move by P d."""
    outer, params = optim.BMUF(), np.zeros(1)
    state = outer.init(params)
    for _ in range(200):
        before = params.copy()
        outer.step(params, params + 0.5, state, 0.1, 4)
    assert (params - before)[0] == pytest.approx(4 * 0.5, rel=1e-9)


def test_diloco_is_sgd_with_nesterov_momentum_on_the_delta() -> None:
    outer, sgd = optim.DiLoCo(lr=0.7, momentum=0.9), SGD(momentum=0.9, nesterov=True)
    rng = np.random.default_rng(3)
    params = rng.standard_normal(6)
    other, state = params.copy(), outer.init(params)
    other_state = sgd.init(other)
    for _ in range(5):
        delta = rng.standard_normal(6)
        outer.step(params, params - delta, state, 0.1, 2)
        sgd.step(other, delta, other_state, 0.7, ())
        np.testing.assert_allclose(params, other, rtol=1e-10)


def test_slowmo_momentum_outlives_a_change_of_rate() -> None:
    outer, params = optim.SlowMo(beta=0.5), np.zeros(1)
    state = outer.init(params)
    outer.step(params, np.array([-1.0]), state, 0.1, 2)  # the mean gradient was 10
    assert params[0] == -1
    outer.step(params, params.copy(), state, 0.01, 2)
    assert params[0] == pytest.approx(-1 - 0.01 * 0.5 * 10)


# ---- elastic averaging


def meet_elastically(elastic: Elastic, xs: Any, centre: Any) -> None:
    centre += sum(elastic.pull(x, centre, len(xs)) for x in xs)


@pytest.mark.parametrize("elastic", [Elastic(), Elastic(alpha=0.2)], ids=["default", "alpha"])
def test_without_gradients_the_sum_stays_and_all_meet(elastic: Elastic) -> None:
    rng = np.random.default_rng(5)
    xs, centre = rng.standard_normal((4, 7)), rng.standard_normal(7)
    whole = xs.sum(axis=0) + centre
    for _ in range(400):
        meet_elastically(elastic, xs, centre)
        np.testing.assert_allclose(xs.sum(axis=0) + centre, whole, atol=1e-13)
    np.testing.assert_allclose(np.vstack([xs, centre]), np.tile(whole / 5, (5, 1)), atol=1e-12)


def test_elastic_moves_are_those_of_the_paper() -> None:
    xs, centre = np.array([[1.0], [4.0]]), np.array([2.0])
    meet_elastically(Elastic(alpha=0.25), xs, centre)
    assert xs.tolist() == [[1.25], [3.5]]
    assert centre.tolist() == [2 + 0.25 * (1 - 2 + 4 - 2)]
    xs, centre = np.array([[1.0], [4.0]]), np.array([2.0])
    meet_elastically(Elastic(), xs, centre)
    assert xs[0, 0] == 1 + 0.45


def test_elastic_fixed_point_on_two_quadratics() -> None:
    """Worker i rests where eta h (x - b) = alpha (c - x), the centre where sum (x - c) = 0, seen before each pull."""
    alpha, xs, centre = 0.3, np.array([[3.0], [-1.0]]), np.array([0.0])
    for _ in range(3000):
        # Both from the same time's values: the gradient at x, and the pull towards c.
        step = RATE * H[:, None] * (xs - B[:, None])
        meet_elastically(Elastic(alpha), xs, centre)
        xs -= step
    matrix = np.array([[RATE * H[0] + alpha, 0, -alpha], [0, RATE * H[1] + alpha, -alpha], [1, 1, -2]])
    expected = np.linalg.solve(matrix, [0, RATE * H[1] * B[1], 0])
    np.testing.assert_allclose([*xs[:, 0], centre[0]], expected, atol=1e-10)


def test_an_unstable_elastic_is_refused() -> None:
    Elastic(alpha=0.39).pull(np.zeros(1), np.zeros(1), 4)
    with pytest.raises(ValueError, match=r"alpha \* \(workers \+ 1\) must be below 2; got 4 workers"):
        Elastic(alpha=0.4).pull(np.zeros(1), np.zeros(1), 4)
    xs, centre = np.array([[1.0], [2.0], [0.5], [0.0]]), np.zeros(1)
    for _ in range(400):  # what the limit keeps out
        pulls = 0.41 * (xs - centre)
        xs, centre = xs - pulls, centre + pulls.sum(axis=0)
    assert np.abs(centre).max() > 100


# ---- the objects


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (optim.SlowMo, {"beta": 1.0}, "beta must be"),
        (optim.SlowMo, {"alpha": 0}, "alpha must be"),
        (optim.BMUF, {"momentum": -0.1}, "momentum must be"),
        (optim.DiLoCo, {"lr": 0}, "lr must be"),
        (Elastic, {"alpha": 1.0}, r"Elastic\(alpha=1.0\): alpha must be a number in \(0, 1\)"),
    ],
)
def test_fields_have_limits(cls: Any, fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**fields)


@each
def test_pickles_and_compares_by_value(case: OuterCase) -> None:
    assert pickle.loads(pickle.dumps(case.optimizer)) == case.optimizer


def test_every_outer_optimizer_has_a_row_and_a_name() -> None:
    rows = {type(case.optimizer) for case in OUTER}
    assert rows == set(optim.OUTER.values())
    assert {cls.__name__ for cls in rows} <= set(optim.__all__)
    assert len({case.id for case in OUTER}) == len(OUTER)
