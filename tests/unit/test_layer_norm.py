"""LayerNorm and GroupNorm against NumPy, onnxruntime and torch; folding of BatchNorm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.nn import (
    MSE,
    BatchNorm,
    Concat,
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Ctx,
    Dense,
    Flatten,
    GroupNorm,
    Layer,
    LayerNorm,
    Model,
    ReLU,
    Residual,
    Sequential,
    fold_batch_norm,
)
from sparkdl.ops import layer_norm as kernels
from tests.onnx_node import channels_first, run_node

RNG = np.random.default_rng(41)


@pytest.fixture(params=["one-block", "many-blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows in one block, or one in each."""
    if request.param == "many-blocks":
        monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 8)


def params(layer: Layer, in_shape: tuple[int, ...], dtype: type = np.float64) -> dict[str, np.ndarray]:
    return {name: RNG.standard_normal(s.shape).astype(dtype) for name, s in layer.specs(in_shape).items()}


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 3, 4, 7)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.usefixtures("blocks")
def test_layer_norm_is_its_definition(shape: tuple[int, ...], affine: bool) -> None:
    layer, x = LayerNorm(eps=0.1, affine=affine), 3 + 2 * RNG.standard_normal(shape)
    p = params(layer, shape[1:])
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    y, _ = layer.forward(p, x, Ctx())
    np.testing.assert_allclose(y, expected * p.get("gamma", 1) + p.get("beta", 0), rtol=1e-12, atol=1e-12)


def test_layer_norm_against_onnxruntime() -> None:
    x = RNG.standard_normal((4, 3, 9)).astype(np.float32)
    layer = LayerNorm(eps=1e-3)
    p = params(layer, (3, 9), np.float32)
    expected = run_node("LayerNormalization", x, p["gamma"], p["beta"], epsilon=1e-3)
    np.testing.assert_allclose(layer.forward(p, x, Ctx())[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.usefixtures("blocks")
def test_group_norm_is_its_definition(groups: int, affine: bool) -> None:
    layer, x = GroupNorm(groups, eps=0.1, affine=affine), 3 + 2 * RNG.standard_normal((3, 4, 5, 6))
    p = params(layer, x.shape[1:])
    split = x.reshape(3, 20, groups, 6 // groups)
    expected = (split - split.mean((1, 3), keepdims=True)) / np.sqrt(split.var((1, 3), keepdims=True) + 0.1)
    y, _ = layer.forward(p, x, Ctx())
    np.testing.assert_allclose(
        y, expected.reshape(x.shape) * p.get("gamma", 1) + p.get("beta", 0), rtol=1e-11, atol=1e-11
    )


def test_each_channel_a_group_is_onnx_instance_normalisation() -> None:
    x, layer = RNG.standard_normal((2, 5, 4, 3)).astype(np.float32), GroupNorm(3, eps=1e-3)
    p = params(layer, (5, 4, 3), np.float32)
    expected = run_node("InstanceNormalization", channels_first(x), p["gamma"], p["beta"], epsilon=1e-3)
    y, _ = layer.forward(p, x, Ctx())
    np.testing.assert_allclose(channels_first(y), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [None, 1, 2, 6])
@pytest.mark.usefixtures("blocks")
def test_gradients_against_torch(groups: int | None) -> None:
    torch = pytest.importorskip("torch")
    x, dy = RNG.standard_normal((2, 3, 4, 5, 6))
    layer: Layer = LayerNorm() if groups is None else GroupNorm(groups)
    p = params(layer, x.shape[1:])
    tx, gamma, beta = (torch.tensor(a.copy(), requires_grad=True) for a in (x, p["gamma"], p["beta"]))
    if groups is None:
        ty = torch.nn.functional.layer_norm(tx, (6,), gamma, beta)
    else:
        ty = torch.nn.functional.group_norm(tx.permute(0, 3, 1, 2), groups, gamma, beta).permute(0, 2, 3, 1)
    expected = torch.autograd.grad(ty, (tx, gamma, beta), torch.tensor(dy))
    y, cache = layer.forward(p, x, Ctx())
    g = {name: np.zeros(6) for name in p}
    dx = layer.backward(p, cache, dy, g, Ctx())
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-10, atol=1e-10)
    for ours, theirs in zip((dx, g["gamma"], g["beta"]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("layer", [LayerNorm(), GroupNorm(1)], ids=repr)
def test_a_small_variance_beside_a_large_mean_survives(layer: Layer) -> None:
    x = (1000 + RNG.standard_normal((4, 64))).astype(np.float32)
    y, _ = layer.forward({"gamma": np.ones(64, np.float32), "beta": np.zeros(64, np.float32)}, x, Ctx())
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3)


def test_integers_are_normalised_too() -> None:
    x = RNG.integers(0, 255, (2, 3, 8)).astype(np.uint8)
    for layer in (LayerNorm(affine=False), GroupNorm(2, affine=False)):
        y, _ = layer.forward({}, x, Ctx())
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, layer.forward({}, x.astype(np.float64), Ctx())[0], atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerNorm(eps=0), r"LayerNorm\(eps=0\): eps must be finite and above 0"),
        (lambda: GroupNorm(eps=np.inf), r"GroupNorm\(eps=inf\)"),
        (lambda: GroupNorm(0), "groups must be an integer of at least 1"),
        (lambda: GroupNorm(4).out_shape((5, 5, 6)), "channels must be a multiple of groups"),
        (lambda: LayerNorm().specs(()), r"expects samples of shape \(..., C\)"),
        (
            lambda: LayerNorm().forward(params(LayerNorm(), (4,)), np.ones((2, 5)), Ctx()),
            r"\(N, ..., 4\); got \(2, 5\)",
        ),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def trained(net: Layer, in_shape: tuple[int, ...]) -> tuple[Model, np.ndarray]:
    """A model whose every parameter, statistics included, is random."""
    model = Model(net, MSE(), in_shape)
    return model, 0.5 + RNG.random(model.layout.size)


IMAGES = (6, 6, 2)
UNIT = [Conv2D(4, 3, bias=False), BatchNorm(), ReLU()]
NETS: dict[str, tuple[Layer, tuple[int, ...], int]] = {
    "dense": (Sequential([Dense(3), BatchNorm(affine=False), Dense(2)]), (5,), 0),
    "conv": (Sequential([*UNIT, *UNIT, Flatten(), Dense(3)]), IMAGES, 0),
    "groups": (Sequential([Conv2D(4, 3, groups=2), BatchNorm()]), IMAGES, 0),
    "transpose": (Sequential([Conv2DTranspose(4, 3, 2), BatchNorm(eps=0.3)]), IMAGES, 0),
    "sequence": (Sequential([Conv1D(4, 3), BatchNorm()]), (6, 2), 0),
    "twice": (Sequential([Dense(3), BatchNorm(), BatchNorm()]), (5,), 0),
    "nested": (
        Sequential([Residual(Sequential(UNIT), Sequential(UNIT[:2])), Concat([Sequential(UNIT), ReLU()])]),
        IMAGES,
        0,
    ),
    "residual": (Residual(Sequential([Dense(5), BatchNorm()])), (5,), 0),
    "leading": (Sequential([BatchNorm(), ReLU(), Dense(3)]), (5,), 1),
    "not-linear": (Sequential([Dense(3), ReLU(), BatchNorm()]), (5,), 1),
}


def count(net: Layer) -> int:
    """BatchNorm layers in a net."""
    return repr(net).count("BatchNorm(")


@pytest.mark.parametrize(("net", "in_shape", "left"), NETS.values(), ids=NETS)
def test_folding_changes_no_output(net: Layer, in_shape: tuple[int, ...], left: int) -> None:
    model, vec = trained(net, in_shape)
    before, x = vec.copy(), RNG.standard_normal((4, *in_shape))
    folded, new = fold_batch_norm(model, vec)
    assert count(model.net) > count(folded.net) or left
    assert count(folded.net) == left
    assert new.size == folded.layout.size <= vec.size
    np.testing.assert_allclose(folded.outputs(new, x), model.outputs(vec, x), rtol=1e-10, atol=1e-10)
    assert np.array_equal(vec, before)


def test_folding_keeps_the_dtype() -> None:
    model, vec = trained(NETS["conv"][0], IMAGES)
    assert fold_batch_norm(model, vec.astype(np.float32))[1].dtype == np.float32
