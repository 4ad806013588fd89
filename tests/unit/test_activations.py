"""Activations and softmax against SciPy, explicit Jacobians, and the corners of the number range."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from sparkdl.nn import Ctx, LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from sparkdl.ops import activation as act
from sparkdl.ops import softmax as soft

EXTREMES = [-1e30, -1000.0, -88.0, -30.0, -1.0, -1e-8, 0.0, 1e-8, 1.0, 30.0, 88.0, 1000.0, 1e30]
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@dtypes
def test_sigmoid_matches_scipy_over_the_whole_range(dtype: type) -> None:
    x = np.array(EXTREMES, dtype)
    y = act.sigmoid(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, scipy.special.expit(x.astype(np.float64)), rtol=8 * np.finfo(dtype).eps, atol=1e-37)


def test_sigmoid_keeps_small_values() -> None:
    assert act.sigmoid(np.array([-700.0]))[0] == pytest.approx(np.exp(-700.0), rel=1e-12)


@dtypes
def test_log1pexp_matches_logaddexp(dtype: type) -> None:
    x = np.array(EXTREMES, dtype)
    y = act.log1pexp(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, np.logaddexp(0.0, x.astype(np.float64)), rtol=8 * np.finfo(dtype).eps, atol=1e-37)


def test_relu_is_zero_with_slope_zero_at_the_kink_and_passes_nan() -> None:
    x = np.array([-2.0, -0.0, 0.0, 3.0])
    y = act.relu(x)
    assert y.tolist() == [0, 0, 0, 3]
    assert act.relu_grad(y, np.full(4, 5.0)).tolist() == [0, 0, 0, 5]
    assert np.isnan(act.relu(np.array([np.nan]))[0])


def test_gradients_of_tanh_and_sigmoid() -> None:
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(act.tanh_grad(act.tanh(x), np.full(7, 2.0)), 2 / np.cosh(x) ** 2, rtol=1e-12)
    slope = np.exp(-x) / (1 + np.exp(-x)) ** 2
    np.testing.assert_allclose(act.sigmoid_grad(act.sigmoid(x), np.full(7, 2.0)), 2 * slope, rtol=1e-12)


@dtypes
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (1, 1), (0, 3)])
def test_softmax_family_matches_scipy(dtype: type, shape: tuple[int, ...]) -> None:
    z = (20 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    for ours, theirs in (
        (soft.softmax(z), scipy.special.softmax(z.astype(np.float64), axis=-1)),
        (soft.log_softmax(z), scipy.special.log_softmax(z.astype(np.float64), axis=-1)),
    ):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6 if dtype == np.float32 else 1e-14)
    if z.size:
        np.testing.assert_allclose(soft.logsumexp(z), scipy.special.logsumexp(z, axis=-1), rtol=rtol)


def test_softmax_is_shifted_by_the_row_maximum() -> None:
    z = np.array([[0.0, 0.0], [1000.0, 1000.0]], np.float32)
    assert soft.softmax(z).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert soft.logsumexp(z).tolist() == pytest.approx([np.log(2), 1000 + np.log(2)])
    np.testing.assert_allclose(soft.log_softmax(z), np.full((2, 2), -np.log(2)), rtol=1e-6)


def test_log_softmax_stays_finite_where_the_probability_underflows() -> None:
    assert soft.log_softmax(np.array([[0.0, 2000.0]], np.float32)).tolist() == [[-2000.0, 0.0]]


@pytest.mark.parametrize("constant", [1.0, 0.1, -7.3, 1e8])
@dtypes
def test_softmax_gradient_of_a_constant_is_exactly_zero(constant: float, dtype: type) -> None:
    y = soft.softmax(np.random.default_rng(1).standard_normal((50, 7)).astype(dtype))
    assert not soft.softmax_grad(y, np.full_like(y, constant)).any()


def test_softmax_gradients_are_products_with_the_full_jacobian() -> None:
    rng = np.random.default_rng(2)
    z, dy = rng.standard_normal((3, 5)), rng.standard_normal((3, 5))
    p = scipy.special.softmax(z, axis=-1)
    for row in range(3):
        jacobian = np.diag(p[row]) - np.outer(p[row], p[row])
        np.testing.assert_allclose(soft.softmax_grad(p, dy)[row], jacobian @ dy[row], atol=1e-14)
        log_jacobian = np.eye(5) - np.outer(p[row], np.ones(5))
        np.testing.assert_allclose(soft.log_softmax_grad(np.log(p), dy)[row], log_jacobian @ dy[row], atol=1e-14)


@pytest.mark.parametrize("layer", [Softmax(), LogSoftmax()], ids=repr)
def test_normalising_needs_an_axis(layer: Softmax | LogSoftmax) -> None:
    with pytest.raises(ValueError, match=r"normalises over the last axis.*shape \(\)"):
        layer.out_shape(())


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ReLU(), [0.0, 2.0]),
        (Tanh(), np.tanh([-1.0, 2.0])),
        (Sigmoid(), scipy.special.expit([-1.0, 2.0])),
        (Softmax(), scipy.special.softmax([-1.0, 2.0])),
        (LogSoftmax(), scipy.special.log_softmax([-1.0, 2.0])),
    ],
    ids=lambda v: repr(v) if not isinstance(v, list | np.ndarray) else "",
)
def test_layers_apply_their_function(layer: ReLU, expected: list[float]) -> None:
    y, _ = layer.forward({}, np.array([[-1.0, 2.0]]), Ctx())
    np.testing.assert_allclose(y, [expected], rtol=1e-12)
