"""Padding modes, transposed, one-dimensional and locally connected convolution against other implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.nn import (
    AvgPool1D,
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Ctx,
    Layer,
    LocallyConnected2D,
    MaxPool1D,
    RandomNormal,
)
from sparkdl.ops.pad import MODES, pad2d, pad2d_grad
from tests.onnx_node import channels_first, channels_last, run_node

RNG = np.random.default_rng(23)
NUMPY_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def params(layer: Layer, in_shape: tuple[int, ...], dtype: type = np.float64) -> dict[str, np.ndarray]:
    return {name: RNG.standard_normal(s.shape).astype(dtype) for name, s in layer.specs(in_shape).items()}


def run(layer: Layer, p: dict[str, np.ndarray], x: np.ndarray, dy: np.ndarray | None = None) -> Any:
    """y, or with dy (y, dx, gradients)."""
    y, cache = layer.forward(p, x, Ctx(train=True))
    if dy is None:
        return y
    g = {name: np.zeros_like(a) for name, a in p.items()}
    return y, layer.backward(p, cache, dy, g, Ctx(train=True)), g


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pads", [((1, 2), (3, 0)), ((0, 0), (2, 2)), ((3, 3), (4, 4)), ((0, 0), (0, 0))], ids=str)
def test_padding_repeats_pixels_and_adds_up_their_gradients(mode: str, pads: Any) -> None:
    x, dy = RNG.standard_normal((2, 4, 5, 3)), None
    y = pad2d(x, pads, mode)
    assert np.array_equal(y, np.pad(x, ((0, 0), *pads, (0, 0)), NUMPY_MODES[mode]))
    dy, other = RNG.standard_normal(y.shape), RNG.standard_normal(x.shape)
    dx = pad2d_grad(dy, (4, 5), pads, mode)
    expected = np.vdot(dy, np.pad(other, ((0, 0), *pads, (0, 0)), NUMPY_MODES[mode]))
    np.testing.assert_allclose(np.vdot(dx, other), expected, rtol=1e-12)


@pytest.mark.parametrize(("mode", "most"), [("reflect", 3), ("circular", 4)])
def test_padding_cannot_repeat_what_is_not_there(mode: str, most: int) -> None:
    Conv2D(1, 3, padding=((most, 0), (0, 0)), padding_mode=mode).out_shape((4, 5, 1))
    with pytest.raises(ValueError, match=rf"Conv2D: {mode} padding of 4 positions reaches {most} at most"):
        Conv2D(1, 3, padding=((most + 1, 0), (0, 0)), padding_mode=mode).out_shape((4, 5, 1))
    Conv2D(1, 3, padding=((9, 0), (0, 0)), padding_mode="replicate").out_shape((4, 5, 1))


@pytest.mark.parametrize("layer", [Conv2D, Conv1D])
def test_padding_modes_are_named(layer: type) -> None:
    with pytest.raises(ValueError, match="padding_mode must be one of circular, reflect, replicate, zeros"):
        layer(2, 3, padding_mode="mirror")


@pytest.mark.parametrize("mode", MODES)
def test_padding_modes_against_torch(mode: str) -> None:
    torch = pytest.importorskip("torch")
    layer = Conv2D(4, 3, stride=(1, 2), padding=(2, 1), groups=2, padding_mode=mode)
    x = RNG.standard_normal((3, 5, 6, 4))
    p = params(layer, x.shape[1:])
    other = torch.nn.Conv2d(4, 4, 3, (1, 2), (2, 1), groups=2, padding_mode=mode, dtype=torch.float64)
    with torch.no_grad():
        other.weight.copy_(torch.tensor(p["W"].transpose(3, 2, 0, 1).copy()))
        other.bias.copy_(torch.tensor(p["b"]))
    tx = torch.tensor(channels_first(x), requires_grad=True)
    ty = other(tx)
    dy = RNG.standard_normal(channels_last(ty.detach().numpy()).shape)
    dx, dW, db = torch.autograd.grad(ty, (tx, other.weight, other.bias), torch.tensor(channels_first(dy)))
    y, got, g = run(layer, p, x, dy)
    np.testing.assert_allclose(y, channels_last(ty.detach().numpy()), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(got, channels_last(dx.numpy()), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(g["W"], dW.numpy().transpose(2, 3, 1, 0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(g["b"], db.numpy(), rtol=1e-10, atol=1e-10)


TRANSPOSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"padding": 0}, {}),
    "stride": ({"padding": 0, "stride": (2, 3)}, {"strides": (2, 3)}),
    "padding": ({"padding": ((1, 0), (2, 1)), "stride": 2}, {"strides": (2, 2), "pads": (1, 2, 0, 1)}),
    "output": (
        {"padding": 1, "stride": (3, 2), "output_padding": (2, 1)},
        {"strides": (3, 2), "pads": (1, 1, 1, 1), "output_padding": (2, 1)},
    ),
    "dilation": ({"padding": 2, "dilation": (2, 3)}, {"dilations": (2, 3), "pads": (2, 2, 2, 2)}),
    "groups": ({"padding": 0, "groups": 2, "stride": 2}, {"group": 2, "strides": (2, 2)}),
    "depthwise": ({"padding": 1, "groups": 4, "stride": 2}, {"group": 4, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "same": ({"padding": "same", "stride": 2}, {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
}


def onnx_weights(W: np.ndarray, groups: int) -> np.ndarray:
    """W (kh, kw, C/groups, F) -> (C, F/groups, kh, kw)."""
    kh, kw, c, f = W.shape
    return W.reshape(kh, kw, c, groups, f // groups).transpose(3, 2, 4, 0, 1).reshape(groups * c, -1, kh, kw)


@pytest.mark.parametrize(("options", "attributes"), TRANSPOSED.values(), ids=TRANSPOSED)
def test_transposed_against_onnxruntime(options: dict[str, Any], attributes: dict[str, Any]) -> None:
    layer = Conv2DTranspose(8, (3, 2), **options)
    x = RNG.standard_normal((2, 4, 5, 4)).astype(np.float32)
    p = params(layer, x.shape[1:], np.float32)
    weights = onnx_weights(p["W"], options.get("groups", 1))
    expected = run_node("ConvTranspose", channels_first(x), weights, p["b"], kernel_shape=(3, 2), **attributes)
    y = run(layer, p, x)
    assert (y.dtype, y.shape[1:]) == (np.float32, layer.out_shape(x.shape[1:]))
    np.testing.assert_allclose(y, channels_last(expected), rtol=1e-4, atol=1e-5)


def test_transposed_by_its_definition() -> None:
    layer = Conv2DTranspose(2, 3, stride=2, padding=0, bias=False)
    x = RNG.standard_normal((1, 2, 3, 3))
    p = params(layer, x.shape[1:])
    expected = np.zeros((1, 5, 7, 2))
    for h, w in np.ndindex(2, 3):
        expected[0, 2 * h : 2 * h + 3, 2 * w : 2 * w + 3] += np.einsum("c,ijcf->ijf", x[0, h, w], p["W"])
    np.testing.assert_allclose(run(layer, p, x), expected, rtol=1e-12, atol=1e-12)
    assert layer.madds((2, 3, 3)) == 2 * 3 * 3 * 9 * 2


@pytest.mark.parametrize("size", [(7, 8), (8, 7)])
def test_transposed_undoes_the_size_of_a_convolution(size: tuple[int, int]) -> None:
    down = Conv2D(3, 3, stride=3, padding=1)
    h, w, _ = down.out_shape((*size, 2))
    extra = tuple(n - ((m - 1) * 3 + 1) for n, m in zip(size, (h, w), strict=True))
    up = Conv2DTranspose(2, 3, stride=3, padding=1, output_padding=extra)
    assert up.out_shape((h, w, 3)) == (*size, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_padding": 1}, r"output_padding=1\) must be less than the stride \(1, 1\)"),
        ({"stride": 2, "output_padding": 1}, '"same" fixes the output size'),
        ({"filters": 0}, "filters must be an integer of at least 1"),
        ({"groups": 3}, "filters must be a multiple of groups"),
        ({"padding": "full"}, "Conv2DTranspose: padding must be"),
        ({"output_padding": -1}, "Conv2DTranspose: output_padding must be an integer >= 0"),
    ],
)
def test_transposed_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Conv2DTranspose(**{"filters": 4, "kernel": 3} | options)


def test_transposed_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expects samples of shape \(H, W, C\); got \(8, 8\)"):
        Conv2DTranspose(4, 3).out_shape((8, 8))
    with pytest.raises(ValueError, match="crops all of the output"):
        Conv2DTranspose(4, 3, padding=2).out_shape((1, 1, 4))
    with pytest.raises(ValueError, match="channels must be a multiple of groups"):
        Conv2DTranspose(4, 3, groups=2).specs((4, 4, 3))
    layer = Conv2DTranspose(4, 3, groups=2)
    with pytest.raises(ValueError, match=r"expects x of shape \(N, H, W, 6\).*got \(1, 4, 4, 4\)"):
        layer.forward(params(layer, (4, 4, 6)), np.ones((1, 4, 4, 4)), Ctx())


@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ({}, {"pads": (1, 1)}),
        ({"stride": 2, "padding": "valid"}, {"strides": (2,)}),
        ({"padding": (0, 3), "dilation": 2}, {"pads": (0, 3), "dilations": (2,)}),
        ({"padding": "causal", "dilation": 3}, {"pads": (6, 0), "dilations": (3,)}),
        ({"groups": 2, "stride": 3, "padding": "same"}, {"group": 2, "strides": (3,), "auto_pad": "SAME_UPPER"}),
    ],
    ids=["same", "stride", "one-side", "causal", "groups"],
)
def test_conv1d_against_onnxruntime(options: dict[str, Any], attributes: dict[str, Any]) -> None:
    layer = Conv1D(6, 3, **options)
    x = RNG.standard_normal((2, 9, 4)).astype(np.float32)
    p = params(layer, x.shape[1:], np.float32)
    expected = run_node(
        "Conv", x.transpose(0, 2, 1), p["W"].transpose(2, 1, 0), p["b"], kernel_shape=(3,), **attributes
    )
    y = run(layer, p, x)
    assert y.shape[1:] == layer.out_shape((9, 4))
    np.testing.assert_allclose(y, expected.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)


def test_causal_convolution_does_not_look_ahead() -> None:
    layer = Conv1D(3, 3, padding="causal", dilation=2)
    x = RNG.standard_normal((1, 8, 2))
    p, later = params(layer, (8, 2)), x.copy()
    later[:, 5:] += 1
    before, after = run(layer, p, x), run(layer, p, later)
    assert np.array_equal(before[:, :5], after[:, :5])
    assert not np.isclose(before[:, 5:], after[:, 5:]).any()


@pytest.mark.parametrize(
    ("layer", "op", "attributes"),
    [
        (MaxPool1D(), "MaxPool", {"kernel_shape": (2,), "strides": (2,)}),
        (
            MaxPool1D(3, 2, (1, 0), True),
            "MaxPool",
            {"kernel_shape": (3,), "strides": (2,), "pads": (1, 0), "ceil_mode": 1},
        ),
        (AvgPool1D(3, 1, "same"), "AveragePool", {"kernel_shape": (3,), "strides": (1,), "pads": (1, 1)}),
        (
            AvgPool1D(3, 2, 1, count_include_pad=True),
            "AveragePool",
            {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "count_include_pad": 1},
        ),
    ],
    ids=["max", "max-ceil", "average", "average-of-padding"],
)
def test_pooling_of_sequences_against_onnxruntime(layer: Layer, op: str, attributes: dict[str, Any]) -> None:
    x = RNG.standard_normal((3, 8, 2)).astype(np.float32)
    y = run(layer, {}, x)
    assert y.shape[1:] == layer.out_shape((8, 2))
    np.testing.assert_allclose(y.transpose(0, 2, 1), run_node(op, x.transpose(0, 2, 1), **attributes), rtol=1e-5)


def test_an_overhanging_average_of_a_sequence_counts_what_it_covers() -> None:
    x = np.arange(1.0, 6).reshape(1, 5, 1)
    assert run(AvgPool1D(ceil_mode=True), {}, x).ravel().tolist() == [1.5, 3.5, 5.0]


@pytest.mark.parametrize("layer", [Conv1D(2, 3), MaxPool1D(), AvgPool1D()], ids=lambda v: type(v).__name__)
def test_sequences_have_two_axes(layer: Layer) -> None:
    name = type(layer).__name__
    with pytest.raises(ValueError, match=rf"{name} expects samples of shape \(T, C\); got \(4, 4, 1\)"):
        layer.out_shape((4, 4, 1))
    with pytest.raises(ValueError, match=rf"{name} expects samples of shape \(T, C\)"):
        layer.forward({}, np.ones((1, 4, 4, 1)), Ctx())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv1D(2, (3, 3)), r"Conv1D\(kernel=\(3, 3\)\): kernel must be an integer"),
        (lambda: Conv1D(0, 3), r"Conv1D\(filters=0\)"),
        (lambda: Conv1D(2, 3, padding="full"), "Conv1D: padding must be"),
        (lambda: MaxPool1D(2, padding=2), "MaxPool1D: padding must be at most half the size"),
        (lambda: AvgPool1D((2, 2)), "AvgPool1D.*size must be an integer"),
    ],
)
def test_options_of_sequences_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "options", [{}, {"stride": (2, 1), "padding": "same", "dilation": (1, 2)}], ids=["plain", "all"]
)
def test_locally_connected_by_loops(options: dict[str, Any]) -> None:
    layer, conv = LocallyConnected2D(3, (3, 2), **options), Conv2D(3, (3, 2), **{"padding": "valid"} | options)
    x = RNG.standard_normal((2, 5, 6, 4))
    p = params(layer, x.shape[1:])
    y = run(layer, p, x)
    assert y.shape[1:] == layer.out_shape(x.shape[1:])
    for h, w in np.ndindex(y.shape[1:3]):  # at each place, the convolution with that place's filters
        here = run(conv, {"W": p["W"][h, w], "b": p["b"][h, w]}, x)
        np.testing.assert_allclose(y[:, h, w], here[:, h, w], rtol=1e-12, atol=1e-12)
    assert layer.madds(x.shape[1:]) == conv.madds(x.shape[1:])


def test_locally_connected_filters_start_as_those_of_a_convolution() -> None:
    layer = LocallyConnected2D(50, 3)
    W = layer.specs((12, 12, 8))["W"]
    drawn = W.init(np.random.default_rng(0), W.shape)
    assert drawn.shape == (10, 10, 3, 3, 8, 50)
    assert drawn.var() == pytest.approx(2 / (3 * 3 * 8), rel=0.02)  # He: the places are no inputs of one another
    fixed = LocallyConnected2D(2, 1, init=RandomNormal(0.0), bias=False).specs((2, 2, 1))
    assert list(fixed) == ["W"]


def test_locally_connected_keeps_the_size_of_its_images() -> None:
    layer = LocallyConnected2D(2, 3)
    with pytest.raises(ValueError, match="the size of the images is fixed"):
        layer.forward(params(layer, (5, 5, 1)), np.ones((1, 6, 5, 1)), Ctx())
