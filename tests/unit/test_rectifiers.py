"""Activations of the rectifier family and of one formula each, against SciPy, onnxruntime and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from sparkdl.nn import ELU, GELU, Arctan, Arctanh, Ctx, Layer, LeakyReLU, Log, LogSigmoid, SiLU, Softplus
from sparkdl.ops import gelu as kernels
from tests.onnx_node import run_node

X = np.array([-1e30, -1000.0, -88.0, -12.0, -3.0, -1.0, -1e-8, 0.0, 1e-8, 0.3, 1.0, 3.0, 30.0, 1000.0, 1e30])
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def run(layer: Layer, x: Any, dy: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """(y, dx)."""
    x = np.asarray(x)
    y, cache = layer.forward({}, x, Ctx())
    return y, layer.backward({}, cache, np.full_like(x, dy), {}, Ctx())


FORMULAS: dict[str, tuple[Layer, Any, Any]] = {
    "leaky_relu": (LeakyReLU(0.1), lambda x: np.maximum(x, 0.1 * x), lambda x: np.where(x > 0, 1, 0.1)),
    "leaky_relu-zero": (LeakyReLU(0.0), lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
    "elu": (ELU(), lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: np.where(x > 0, 1, np.exp(x))),
    "elu-alpha": (ELU(0.5), lambda x: np.where(x > 0, x, np.expm1(x) / 2), lambda x: np.where(x > 0, 1, np.exp(x) / 2)),
    "gelu": (
        GELU(),
        lambda x: x * scipy.special.ndtr(x),
        lambda x: scipy.special.ndtr(x) + x * scipy.stats.norm.pdf(x),
    ),
    "silu": (
        SiLU(),
        lambda x: x * scipy.special.expit(x),
        lambda x: scipy.special.expit(x) * (1 + x * scipy.special.expit(-x)),
    ),
    "softplus": (Softplus(), lambda x: np.logaddexp(0, x), scipy.special.expit),
    "log_sigmoid": (LogSigmoid(), lambda x: -np.logaddexp(0, -x), lambda x: scipy.special.expit(-x)),
    "arctan": (Arctan(), np.arctan, lambda x: 1 / (1 + x**2)),
}


@pytest.mark.parametrize(("layer", "value", "slope"), FORMULAS.values(), ids=FORMULAS)
@dtypes
def test_values_and_slopes_over_the_whole_range(layer: Layer, value: Any, slope: Any, dtype: type) -> None:
    with np.errstate(over="ignore", under="ignore"):
        x = X.astype(dtype)
        y, dx = run(layer, x, 2.0)
        expected_y, expected_dx = value(x.astype(np.float64)), 2 * slope(x.astype(np.float64))
    assert (y.dtype, dx.dtype) == (dtype, dtype)
    tolerance = 2e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(y, expected_y, rtol=tolerance, atol=1e-30)  # gelu's far tail has a test of its own
    np.testing.assert_allclose(dx, expected_dx, rtol=tolerance, atol=1e-7 if dtype == np.float32 else 1e-15)


@pytest.mark.parametrize("blocks", [1 << 14, 7], ids=["one-block", "many-blocks"])
@pytest.mark.parametrize("tanh", [True, False])
def test_gelu_works_in_blocks(tanh: bool, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", blocks)
    x = np.random.default_rng(0).standard_normal((3, 5, 4))
    y, dx = run(GELU(tanh), x)
    assert (y.shape, dx.shape) == (x.shape, x.shape)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    expected = x * (0.5 * (1 + np.tanh(inner)) if tanh else scipy.stats.norm.cdf(x))
    np.testing.assert_allclose(y, expected, rtol=1e-12)


@dtypes
def test_the_normal_distribution_keeps_its_relative_precision(dtype: type) -> None:
    # Far out it is bounded by the rounding of x^2 / 2 in the exponent.
    x = np.linspace(-12 if dtype == np.float32 else -16.9, 40, 5001).astype(dtype)
    y, expected = kernels.normal_cdf(x), scipy.special.ndtr(x.astype(np.float64))
    allowed = (4 + x.astype(np.float64) ** 2) * np.finfo(dtype).eps + (2e-7 if dtype == np.float32 else 5e-14)
    assert (np.abs(y / expected - 1) <= allowed).all()


def test_gelu_approximation_is_close() -> None:
    x = np.linspace(-6, 6, 2001)
    assert 1e-4 < np.abs(run(GELU(True), x)[0] - run(GELU(), x)[0]).max() < 5e-4


@pytest.mark.parametrize(
    ("layer", "op", "attributes"),
    [
        (LeakyReLU(0.2), "LeakyRelu", {"alpha": 0.2}),
        (ELU(0.7), "Elu", {"alpha": 0.7}),
        (Softplus(), "Softplus", {}),
        (Arctan(), "Atan", {}),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Layer) else "",
)
def test_against_onnxruntime(layer: Layer, op: str, attributes: dict[str, float]) -> None:
    x = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    np.testing.assert_allclose(run(layer, x)[0], run_node(op, x, **attributes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["leaky_relu", "elu", "gelu", "gelu-tanh", "silu", "softplus", "logsigmoid", "atanh"])
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    layer, theirs = {
        "leaky_relu": (LeakyReLU(0.2), lambda x: f.leaky_relu(x, 0.2)),
        "elu": (ELU(0.7), lambda x: f.elu(x, 0.7)),
        "gelu": (GELU(), f.gelu),
        "gelu-tanh": (GELU(True), lambda x: f.gelu(x, approximate="tanh")),
        "silu": (SiLU(), f.silu),
        "softplus": (Softplus(), f.softplus),
        "logsigmoid": (LogSigmoid(), f.logsigmoid),
        "atanh": (Arctanh(), torch.atanh),
    }[name]
    x = np.random.default_rng(2).uniform(-0.99, 0.99, (4, 50)) * (1 if name == "atanh" else 10)
    tx = torch.tensor(x, requires_grad=True)
    ty = theirs(tx)
    (expected,) = torch.autograd.grad(ty.sum(), tx)
    y, dx = run(layer, x)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dx, expected.numpy(), rtol=1e-9, atol=1e-12)


def test_log_and_arctanh_within_their_range() -> None:
    y, dx = run(Log(), np.array([0.5, 1.0, np.e]))
    np.testing.assert_allclose(y, [-np.log(2), 0, 1], atol=1e-15)
    np.testing.assert_allclose(dx, [2, 1, 1 / np.e])
    x = np.array([-0.9, 0.0, 1 - 1e-12])
    y, dx = run(Arctanh(), x)
    np.testing.assert_allclose(np.tanh(y), x, rtol=1e-15)
    np.testing.assert_allclose(dx * (1 - x), 1 / (1 + x), rtol=1e-9)


def test_log_and_arctanh_beyond_their_range_are_not_numbers() -> None:
    with np.errstate(all="ignore"):
        assert run(Log(), np.array([0.0, -1.0]))[0].tolist() == pytest.approx([-np.inf, np.nan], nan_ok=True)
        assert run(Arctanh(), np.array([1.0, 2.0]))[0].tolist() == pytest.approx([np.inf, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    "make", [lambda: LeakyReLU(-0.1), lambda: ELU(-1), lambda: LeakyReLU(np.nan), lambda: ELU(np.inf)]
)
def test_slopes_are_checked(make: Any) -> None:
    with pytest.raises(ValueError, match="must be finite and at least 0"):
        make()
