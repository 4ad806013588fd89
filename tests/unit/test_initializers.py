"""Initializers against their variances, bounds and orthogonality."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from sparkdl.nn import initializers as init

DENSE, CONV = (300, 200), (3, 3, 40, 60)
FANS = {DENSE: (300, 200), CONV: (3 * 3 * 40, 3 * 3 * 60)}
VARIANCE = {  # from fan_in and fan_out, as the papers have it
    init.GlorotUniform(): lambda i, o: 2 / (i + o),
    init.GlorotNormal(): lambda i, o: 2 / (i + o),
    init.HeUniform(): lambda i, o: 2 / i,
    init.HeNormal(): lambda i, o: 2 / i,
    init.LecunUniform(): lambda i, o: 1 / i,
    init.LecunNormal(): lambda i, o: 1 / i,
    init.RandomNormal(0.3): lambda i, o: 0.09,
}


def draw(initializer: init.GlorotUniform, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return initializer(np.random.default_rng(seed), shape)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(DENSE, FANS[DENSE]), (CONV, FANS[CONV]), ((7,), (1, 7)), ((), (1, 1)), ((0, 5), (1, 5))],
    ids=str,
)
def test_fans(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert init.fans(shape) == expected


@pytest.mark.parametrize("shape", [DENSE, CONV], ids=["dense", "conv"])
@pytest.mark.parametrize("initializer", VARIANCE, ids=repr)
def test_mean_and_variance(initializer: init.GlorotUniform, shape: tuple[int, ...]) -> None:
    a, variance = draw(initializer, shape), VARIANCE[initializer](*FANS[shape])
    # At least 60,000 draws: both estimates are within 4 standard errors.
    assert abs(a.mean()) < 4 * math.sqrt(variance / a.size)
    assert a.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / a.size))


@pytest.mark.parametrize("initializer", [init.GlorotUniform(), init.HeUniform(), init.LecunUniform()], ids=repr)
def test_uniform_draws_fill_their_interval(initializer: init.GlorotUniform) -> None:
    limit = math.sqrt(3 * VARIANCE[initializer](*FANS[DENSE]))
    a = draw(initializer, DENSE)
    assert 0.999 * limit < a.max() <= limit
    assert -limit <= a.min() < -0.999 * limit


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6), (3, 3, 2, 7), (1, 1, 2, 7)], ids=str)
def test_orthogonal(shape: tuple[int, ...]) -> None:
    a = draw(init.Orthogonal(gain=2.0), shape)
    assert a.shape == shape
    m = a.reshape(-1, shape[-1])
    gram = m.T @ m if len(m) >= shape[-1] else m @ m.T
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-12)


def test_orthogonal_draws_both_orientations() -> None:
    signs = {round(np.linalg.det(draw(init.Orthogonal(), (2, 2), seed))) for seed in range(20)}
    assert signs == {-1, 1}


def test_orthogonal_refuses_vectors() -> None:
    with pytest.raises(ValueError, match=r"Orthogonal\(\) needs a weight of 2 or more axes; got shape \(4,\)"):
        draw(init.Orthogonal(), (4,))


def test_constants() -> None:
    assert draw(init.Zeros(), (2, 2)).tolist() == [[0, 0], [0, 0]]
    assert draw(init.Ones(), (2,)).tolist() == [1, 1]
    assert draw(init.Constant(3), (2,)).tolist() == [3, 3]


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf")])
def test_random_normal_refuses(std: float) -> None:
    with pytest.raises(ValueError, match="std must be finite and at least 0"):
        init.RandomNormal(std)


OTHERS = [init.Orthogonal(), init.Constant(1), init.Zeros(), init.Ones()]


@pytest.mark.parametrize("initializer", [*VARIANCE, *OTHERS], ids=repr)
def test_initializers_are_values(initializer: init.GlorotUniform) -> None:
    assert pickle.loads(pickle.dumps(initializer)) == initializer
    first, again = draw(initializer, (4, 3)), draw(initializer, (4, 3))
    assert first.dtype == np.float64
    assert np.array_equal(first, again)
