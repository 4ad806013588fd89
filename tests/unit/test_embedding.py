"""Embedding: look-up by hand, repeated indices, padding, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.nn import MSE, Ctx, Dense, Embedding, Flatten, Model, Sequential

TABLE = np.arange(12.0).reshape(4, 3)


def gradients(layer: Embedding, x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(dE, dx)."""
    g = {"E": np.zeros((layer.size, layer.dim), dy.dtype)}
    _, cache = layer.forward({"E": np.zeros((layer.size, layer.dim), dy.dtype)}, x, Ctx())
    dx = layer.backward({}, cache, dy, g, Ctx())
    return g["E"], dx


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("x", [[0, 3], [[1, 1], [0, 2]], [[[3]]]], ids=["indices", "sequences", "deeper"])
def test_rows_by_index_in_any_dtype(dtype: type, x: Any) -> None:
    at = np.array(x)
    y, _ = Embedding(4, 3).forward({"E": TABLE}, at.astype(dtype), Ctx())
    assert np.array_equal(y, TABLE[at])
    assert y.shape[1:] == Embedding(4, 3).out_shape(at.shape[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_repeated_indices_add_up(dtype: type) -> None:
    dE, dx = gradients(Embedding(5, 2), np.full((1, 769), 3.0, dtype), np.ones((1, 769, 2), dtype))
    assert dE.tolist() == [[0, 0], [0, 0], [0, 0], [769, 769], [0, 0]]
    assert dE.dtype == dx.dtype == dtype
    assert dx.shape == (1, 769)
    assert not dx.any()


def test_gradient_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    x, dy = rng.integers(0, 50, (8, 30)), rng.standard_normal((8, 30, 4))
    expected = np.zeros((50, 4))
    for n, t in np.ndindex(8, 30):
        expected[x[n, t]] += dy[n, t]
    np.testing.assert_allclose(gradients(Embedding(50, 4), x, dy)[0], expected, rtol=1e-12)
    expected[7] = 0
    np.testing.assert_allclose(gradients(Embedding(50, 4, padding_idx=7), x, dy)[0], expected, rtol=1e-12)


def test_padding_is_zero_and_gets_no_gradient() -> None:
    layer, x = Embedding(4, 3, padding_idx=1), np.array([[1, 2], [1, 1]])
    y, _ = layer.forward({"E": TABLE}, x, Ctx())
    assert y.tolist() == [[[0, 0, 0], [6, 7, 8]], [[0, 0, 0], [0, 0, 0]]]
    dE, _ = gradients(layer, x, np.ones((2, 2, 3)))
    assert dE.tolist() == [[0] * 3, [0] * 3, [1] * 3, [0] * 3]


@pytest.mark.parametrize("bad", [-1.0, 4.0, 0.5, np.nan, np.inf, -np.inf])
def test_what_is_no_index_raises(bad: float) -> None:
    with pytest.raises(ValueError, match=rf"takes integers in 0\.\.3; got {bad} \(1 of 3 are none\)"):
        Embedding(4, 3).forward({"E": TABLE}, np.array([1.0, bad, 2.0]), Ctx())


def test_integers_out_of_range_raise() -> None:
    for bad in (-1, 4):
        with pytest.raises(ValueError, match=rf"got {bad} "):
            Embedding(4, 3).forward({"E": TABLE}, np.array([bad]), Ctx())


def test_float32_cannot_name_the_rows_of_a_huge_table() -> None:
    layer = Embedding(2**24 + 1, 1)
    with pytest.raises(ValueError, match=r"float32 tells integers apart up to 2\^24 only"):
        layer.forward({"E": np.zeros((4, 1))}, np.zeros(3, np.float32), Ctx())
    for dtype in (np.int32, np.float64):
        assert layer.forward({"E": np.zeros((4, 1))}, np.zeros(3, dtype), Ctx())[0].shape == (3, 1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((0, 3), "size must be"),
        ((3, 0), "dim must be"),
        ((3, 3, 3), r"index in 0\.\.2"),
        ((3, 3, -1), r"index in 0\.\.2"),
    ],
)
def test_options_are_checked(args: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedding(*args)


def test_a_model_of_words_trains() -> None:
    model = Model(Sequential([Embedding(9, 4), Flatten(), Dense(1)]), MSE(), (5,))
    vec = model.init(np.random.default_rng(0))
    grad = np.zeros_like(vec)
    x = np.random.default_rng(1).integers(0, 9, (3, 5))
    model.accumulate(vec, grad, x, np.ones((3, 1)), None, Ctx(train=True))
    rows = model.layout.views(grad)["embedding_0/E"].any(axis=1)
    assert rows.tolist() == [v in x for v in range(9)]


def test_gradient_against_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, dy = rng.integers(0, 6, (4, 7)), rng.standard_normal((4, 7, 2))
    other = torch.nn.Embedding(6, 2, padding_idx=1, dtype=torch.float64)
    other(torch.tensor(x)).backward(torch.tensor(dy))
    np.testing.assert_allclose(gradients(Embedding(6, 2, 1), x, dy)[0], other.weight.grad.numpy(), rtol=1e-12)
