"""Batch normalisation against its formula, onnxruntime and torch; its statistics as sums over shards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from sparkdl.nn.layer import Array, Ctx
from sparkdl.nn.norm import BatchNorm
from sparkdl.ops import norm
from sparkdl.ops.norm import batch_norm, batch_norm_grad, batch_norm_grad_sums, channel_sum, mean_var, moment_sums
from tests.onnx_node import channels_first, channels_last, run_node

RNG = np.random.default_rng(23)
SHAPES = [(6, 3), (64, 1), (3, 4, 5, 2), (2, 3, 3, 7), (4, 8, 8, 600), (5, 2, 1500)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(params=["one-block", "many-blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in one block, or one folded row a block."""
    if request.param == "many-blocks":
        monkeypatch.setattr(norm, "BLOCK_ELEMENTS", 1)


class Pass(NamedTuple):
    y: Array
    dx: Array
    g: dict[str, Array]


def params(c: int, affine: bool = True, dtype: Any = np.float64) -> dict[str, Array]:
    p = {"gamma": RNG.uniform(0.5, 2, c), "beta": RNG.standard_normal(c)} if affine else {}
    p |= {"mean": RNG.standard_normal(c), "var": RNG.uniform(0.5, 2, c)}
    return {name: a.astype(dtype) for name, a in p.items()}


def run(layer: BatchNorm, p: dict[str, Array], x: Array, dy: Array, train: bool = True) -> Pass:
    g = {name: np.zeros_like(a) for name, a in p.items()}
    y, cache = layer.forward(p, x, Ctx(train=train))
    return Pass(y, layer.backward(p, cache, dy, g, Ctx(train=train)), g)


def channel_axes(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


@each_shape
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.usefixtures("blocks")
def test_training_is_its_formula(shape: tuple[int, ...], affine: bool) -> None:
    x, p = 3 + 2 * RNG.standard_normal(shape), params(shape[-1], affine)
    axes = channel_axes(x)
    y = run(BatchNorm(eps=1e-3, affine=affine), p, x, x).y
    expected = (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-3)
    np.testing.assert_allclose(y, expected * p.get("gamma", 1) + p.get("beta", 0), rtol=1e-9, atol=1e-9)


@each_shape
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.usefixtures("blocks")
def test_training_gradient_goes_through_the_statistics(shape: tuple[int, ...], affine: bool) -> None:
    """The gradient as the chain of x -> x - mean -> xhat -> y, each step's adjoint written out."""
    x, dy, p = RNG.standard_normal(shape), RNG.standard_normal(shape), params(shape[-1], affine)
    axes, n = channel_axes(x), x.size // x.shape[-1]
    centred = x - x.mean(axes)
    std = np.sqrt(x.var(axes) + 1e-5)
    dxhat = dy * p.get("gamma", 1)
    dvar = (dxhat * centred).sum(axes) * -0.5 / std**3
    dcentred = dxhat / std + 2 * dvar * centred / n
    got = run(BatchNorm(affine=affine), p, x, dy)
    np.testing.assert_allclose(got.dx, dcentred - dcentred.mean(axes), rtol=1e-7, atol=1e-10)
    assert set(got.g) == {"mean", "var"} | ({"gamma", "beta"} if affine else set())
    if affine:
        np.testing.assert_allclose(got.g["gamma"], (dy * centred / std).sum(axes), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(got.g["beta"], dy.sum(axes), rtol=1e-9, atol=1e-9)


@each_shape
def test_training_against_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x, dy, p = RNG.standard_normal(shape), RNG.standard_normal(shape), params(shape[-1])
    flat = (-1, shape[-1])
    tx = torch.tensor(x.reshape(flat), requires_grad=True)
    mean, var, gamma, beta = (torch.tensor(p[name]) for name in ("mean", "var", "gamma", "beta"))
    gamma.requires_grad_()
    beta.requires_grad_()
    ty = torch.nn.functional.batch_norm(tx, mean, var, gamma, beta, training=True, momentum=0.3, eps=1e-4)
    expected = torch.autograd.grad(ty, (tx, gamma, beta), torch.tensor(dy.reshape(flat)))
    got = run(BatchNorm(momentum=0.7, eps=1e-4), p, x, dy)
    np.testing.assert_allclose(got.y.reshape(flat), ty.detach().numpy(), rtol=1e-9, atol=1e-9)
    for ours, theirs in zip((got.dx.reshape(flat), got.g["gamma"], got.g["beta"]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.g["mean"], len(x) * mean.numpy(), rtol=1e-12)  # torch moves its buffers in place
    np.testing.assert_allclose(got.g["var"], len(x) * var.numpy(), rtol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
def test_evaluation_against_onnxruntime(affine: bool) -> None:
    x, p = RNG.standard_normal((3, 4, 5, 6)).astype(np.float32), params(6, affine, np.float32)
    dy = RNG.standard_normal(x.shape).astype(np.float32)
    got = run(BatchNorm(eps=1e-3, affine=affine), p, x, dy, train=False)
    gamma, beta = p.get("gamma", np.ones(6)), p.get("beta", np.zeros(6))
    expected = run_node("BatchNormalization", channels_first(x), gamma, beta, p["mean"], p["var"], epsilon=1e-3)
    assert (got.y.dtype, got.dx.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(got.y, channels_last(expected), rtol=1e-5, atol=1e-5)
    inv = 1 / np.sqrt(p["var"] + 1e-3)
    np.testing.assert_allclose(got.dx, dy * (gamma * inv), rtol=1e-5)  # the statistics are constants
    if affine:
        np.testing.assert_allclose(got.g["gamma"], (dy * (x - p["mean"]) * inv).sum((0, 1, 2)), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got.g["beta"], dy.sum((0, 1, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_running_statistics_keep_the_share_momentum(momentum: float) -> None:
    x, p = RNG.standard_normal((5, 2, 2, 3)), params(3)
    before = {name: a.copy() for name, a in p.items()}
    g = run(BatchNorm(momentum=momentum), p, x, x).g
    mean, unbiased = x.mean((0, 1, 2)), x.var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(g["mean"], 5 * (momentum * p["mean"] + (1 - momentum) * mean), rtol=1e-12)
    np.testing.assert_allclose(g["var"], 5 * (momentum * p["var"] + (1 - momentum) * unbiased), rtol=1e-12)
    assert all(np.array_equal(p[name], before[name]) for name in p)


def test_evaluation_keeps_the_running_statistics() -> None:
    x, p = RNG.standard_normal((5, 3)), params(3)
    g = run(BatchNorm(), p, x, x, train=False).g
    np.testing.assert_allclose([g["mean"], g["var"]], [5 * p["mean"], 5 * p["var"]], rtol=1e-15)


def test_one_value_a_channel_stays_finite() -> None:
    x, p = RNG.standard_normal((1, 4)), params(4)
    got = run(BatchNorm(momentum=0.75), p, x, np.ones((1, 4)))
    np.testing.assert_allclose(got.y, p["beta"][None], rtol=1e-12)
    np.testing.assert_allclose(got.g["mean"], 0.75 * p["mean"] + 0.25 * x[0], rtol=1e-12)
    assert np.array_equal(got.g["var"], p["var"])  # one value has no variance: nothing is learned of it
    np.testing.assert_allclose(got.dx, 0, atol=1e-9)
    again = run(BatchNorm(), p, x, x, train=False)
    np.testing.assert_allclose(again.y, (x - p["mean"]) / np.sqrt(p["var"] + 1e-5) * p["gamma"] + p["beta"], rtol=1e-12)


@pytest.mark.parametrize("train", [True, False])
def test_no_rows_change_nothing(train: bool) -> None:
    got = run(BatchNorm(), params(3), np.empty((0, 2, 3)), np.empty((0, 2, 3)), train)
    assert (got.y.shape, got.dx.shape) == ((0, 2, 3), (0, 2, 3))
    assert not any(a.any() for a in got.g.values())


@pytest.mark.parametrize("view", ["transposed", "reversed", "every-other"])
def test_strides_do_not_matter(view: str) -> None:
    a = RNG.standard_normal((8, 6, 8))
    x = {"transposed": a.T, "reversed": a[:, ::-1], "every-other": a[::2]}[view]
    p = params(8)
    for one, other in zip(run(BatchNorm(), p, x, x)[:2], run(BatchNorm(), p, x.copy(), x.copy())[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_a_small_variance_beside_a_large_mean_survives_in_float32(mean: float) -> None:
    x = (mean + RNG.standard_normal((50, 16, 16, 3))).astype(np.float32)
    got_mean, got_var = mean_var(moment_sums(x), x.size // 3)
    np.testing.assert_allclose(got_mean, x.astype(np.float64).mean((0, 1, 2)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got_var, x.astype(np.float64).var((0, 1, 2)), rtol=1e-4)


@pytest.mark.parametrize("cuts", [(0, 4), (2, 2), (1, 3, 5)], ids=str)
def test_statistics_of_shards_add_up(cuts: tuple[int, ...]) -> None:
    """Sums reduced over shards give each shard what the whole batch would have given it."""
    x, dy = 5 + RNG.standard_normal((9, 4, 3)), RNG.standard_normal((9, 4, 3))
    p, n = params(3), 9 * 4
    xs, dys = np.split(x, cuts), np.split(dy, cuts)
    mean, var = mean_var(sum(map(moment_sums, xs)), n)
    inv = 1 / np.sqrt(var + 1e-5)
    scale = p["gamma"] * inv
    sums = sum(batch_norm_grad_sums(a, d, mean) for a, d in zip(xs, dys, strict=True))
    y = np.concatenate([batch_norm(a, mean, scale, p["beta"]) for a in xs])
    dx = np.concatenate([batch_norm_grad(a, d, mean, inv, scale, sums, n) for a, d in zip(xs, dys, strict=True)])
    whole = run(BatchNorm(), p, x, dy)
    np.testing.assert_allclose(y, whole.y, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(dx, whole.dx, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose([sums[1] * inv, sums[0]], [whole.g["gamma"], whole.g["beta"]], rtol=1e-9, atol=1e-9)


@each_shape
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_channel_sum(shape: tuple[int, ...], dtype: Any) -> None:
    x = RNG.standard_normal(shape).astype(dtype)
    total = channel_sum(x)
    assert total.dtype == dtype
    np.testing.assert_allclose(total, x.astype(np.float64).sum(channel_axes(x)), rtol=1e-4, atol=1e-4)
    assert channel_sum(x[:0]).tolist() == [0] * shape[-1]


def test_parameters() -> None:
    specs = BatchNorm().specs((4, 4, 3))
    assert {name: (spec.shape, spec.trainable) for name, spec in specs.items()} == {
        "gamma": ((3,), True),
        "beta": ((3,), True),
        "mean": ((3,), False),
        "var": ((3,), False),
    }
    assert {name: spec.init(RNG, (2,)).tolist() for name, spec in specs.items()} == {
        "gamma": [1, 1],
        "beta": [0, 0],
        "mean": [0, 0],
        "var": [1, 1],
    }
    assert set(BatchNorm(affine=False).specs((3,))) == {"mean", "var"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": -0.1}, r"momentum=-0.1\): the share"),
        ({"momentum": 1.5}, r"in \[0, 1\]"),
        ({"momentum": float("nan")}, "momentum=nan"),
        ({"eps": 0}, r"eps=0\): eps must be finite and above 0"),
        ({"eps": float("inf")}, "eps must be finite"),
    ],
)
def test_options_are_checked(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchNorm(**options)


@pytest.mark.parametrize("shape", [(2, 4), (3,), (2, 3, 1)])
def test_shapes_are_checked(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expects x of shape \(N, \.\.\., 3\); got"):
        BatchNorm().forward(params(3), np.ones(shape), Ctx())
    with pytest.raises(ValueError, match="Add a channel axis"):
        BatchNorm().out_shape(())
