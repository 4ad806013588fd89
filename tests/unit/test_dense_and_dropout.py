"""Dense, Flatten and Dropout on values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl.nn import Ctx, Dense, Dropout, Flatten


def test_dense_by_hand() -> None:
    p = {"W": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([10.0, 20.0])}
    g = {"W": np.ones((2, 2)), "b": np.ones(2)}
    y, cache = Dense(2).forward(p, np.array([[1.0, -1.0], [0.0, 2.0]]), Ctx())
    assert y.tolist() == [[8, 18], [16, 28]]
    dx = Dense(2).backward(p, cache, np.array([[1.0, 0.0], [0.0, 1.0]]), g, Ctx())
    assert dx.tolist() == [[1, 3], [2, 4]]
    assert g["W"].tolist() == [[1 + 1, 1 + 0], [1 - 1, 1 + 2]]  # x^T dy, added to what was there
    assert g["b"].tolist() == [2, 2]


def test_dense_takes_each_step_of_a_sequence() -> None:
    rng = np.random.default_rng(0)
    p = {"W": rng.standard_normal((4, 2)), "b": rng.standard_normal(2)}
    x, dy = rng.standard_normal((3, 5, 4)), rng.standard_normal((3, 5, 2))
    y, cache = Dense(2).forward(p, x, Ctx())
    g = {name: np.zeros_like(a) for name, a in p.items()}
    dx = Dense(2).backward(p, cache, dy, g, Ctx())
    np.testing.assert_allclose(y, np.einsum("ntd,du->ntu", x, p["W"]) + p["b"], rtol=1e-12)
    np.testing.assert_allclose(dx, np.einsum("ntu,du->ntd", dy, p["W"]), rtol=1e-12)
    np.testing.assert_allclose(g["W"], np.einsum("ntd,ntu->du", x, dy), rtol=1e-12)
    np.testing.assert_allclose(g["b"], dy.sum((0, 1)), rtol=1e-12)
    assert (Dense(2).out_shape((5, 4)), Dense(2).madds((5, 4))) == ((5, 2), 5 * 4 * 2)


def test_dense_without_bias_has_no_bias() -> None:
    assert list(Dense(2, bias=False).specs((3,))) == ["W"]
    y, _ = Dense(2, bias=False).forward({"W": np.eye(2)}, np.array([[3.0, 4.0]]), Ctx())
    assert y.tolist() == [[3, 4]]


@pytest.mark.parametrize("in_shape", [(), (4, 4, 1)])
def test_dense_asks_for_flat_samples(in_shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"Dense\(units=3\) expects samples of shape \(D,\), or sequences.*Flatten first\?"
    ):
        Dense(3).out_shape(in_shape)


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 2), (5,), (5, 2, 2, 4)])
def test_dense_names_both_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expects x of shape \(N, 4\) or \(N, T, 4\); got .*Flatten first\?"):
        Dense(3).forward({"W": np.ones((4, 3)), "b": np.ones(3)}, np.ones(shape), Ctx())


@pytest.mark.parametrize("units", [0, -1, 2.5, "8", None])
def test_dense_refuses_units(units: object) -> None:
    with pytest.raises(ValueError, match="units must be an integer of at least 1"):
        Dense(units)  # type: ignore[arg-type]


def test_flatten_runs_the_last_axis_fastest() -> None:
    x = np.arange(12).reshape(2, 3, 2)
    y, cache = Flatten().forward({}, x, Ctx())
    assert y.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert np.array_equal(Flatten().backward({}, cache, y, {}, Ctx()), x)
    assert Flatten().out_shape(()) == (1,)


def training(seed: int = 0) -> Ctx:
    return Ctx(train=True, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dropout_scales_what_it_keeps(dtype: type) -> None:
    x = np.ones((200, 500), dtype)
    y, cache = Dropout(0.1).forward({}, x, training())
    assert set(np.unique(y)) == {dtype(0), dtype(1) * dtype(1 / 0.9)}
    # 100,000 draws: the kept share is 0.9 with a standard deviation of 0.00095.
    assert np.count_nonzero(y) / y.size == pytest.approx(0.9, abs=0.005)
    assert np.array_equal(Dropout(0.1).backward({}, cache, x, {}, Ctx()), y)


def test_dropout_draws_anew_and_repeats_with_its_seed() -> None:
    x, ctx = np.ones((4, 50)), training()
    first, second = (Dropout().forward({}, x, ctx)[0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, Dropout().forward({}, x, training())[0])


def test_dropout_at_its_ends() -> None:
    x = np.array([[1.0, -2.0, 3.0]])
    assert Dropout(0).forward({}, x, Ctx(train=True))[0] is x
    y, cache = Dropout(1).forward({}, x, training())
    assert y.tolist() == [[0, 0, 0]]
    assert Dropout(1).backward({}, cache, x, {}, Ctx()).tolist() == [[0, 0, 0]]


def test_dropout_is_the_identity_in_evaluation() -> None:
    x = np.array([[1.0, -2.0, 3.0]])
    y, cache = Dropout(0.9).forward({}, x, Ctx())
    assert y is x
    assert Dropout(0.9).backward({}, cache, x, {}, Ctx()) is x


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), float("inf")])
def test_dropout_refuses_rates(rate: float) -> None:
    with pytest.raises(ValueError, match="the rate is a probability"):
        Dropout(rate)


def test_dropout_asks_for_a_generator() -> None:
    with pytest.raises(ValueError, match=r"Dropout\(rate=0.5\) draws random numbers in training; pass Ctx"):
        Dropout().forward({}, np.ones((1, 1)), Ctx(train=True))
