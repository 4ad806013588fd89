"""Convolution against plain loops, onnxruntime, SciPy and torch, and on values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import correlate2d

from sparkdl.nn.conv import Conv2D
from sparkdl.nn.layer import Ctx
from sparkdl.ops import conv
from sparkdl.ops.conv import conv2d, conv2d_grad_data, conv2d_grad_weights
from sparkdl.ops.window import Window, resolve_padding
from tests.conv_cases import CASES, Case, by_loops, each_case
from tests.onnx_node import channels_first, channels_last, run_node

RNG = np.random.default_rng(5)


@pytest.fixture(params=["one-block", "many-blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in one block, or in blocks so small that they cut images."""
    if request.param == "many-blocks":
        monkeypatch.setattr(conv, "BLOCK_PIXELS", (1, 7))


@each_case
@pytest.mark.usefixtures("blocks")
def test_forward_is_its_definition(case: Case) -> None:
    x, W, _ = case.arrays()
    b = RNG.standard_normal(case.filters)
    expected = by_loops(x, W, case.win, case.groups)
    np.testing.assert_allclose(conv2d(x, W, case.win, case.groups), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(conv2d(x, W, case.win, case.groups, b), expected + b, rtol=1e-12, atol=1e-12)


@each_case
@pytest.mark.usefixtures("blocks")
def test_gradients_are_adjoints(case: Case) -> None:
    """y is linear in x and in W: <dy, y(x, W)> = <dx, x> = <dW, W> for every x, W, dy."""
    x, W, dy = case.arrays()
    other_x, other_W, _ = case.arrays()
    dx = conv2d_grad_data(dy, W, case.size, case.win, case.groups)
    dW = conv2d_grad_weights(x, dy, case.win, case.groups)
    assert (dx.shape, dW.shape) == (x.shape, W.shape)
    expected_x = np.vdot(dy, by_loops(other_x, W, case.win, case.groups))
    expected_W = np.vdot(dy, by_loops(x, other_W, case.win, case.groups))
    np.testing.assert_allclose(np.vdot(dx, other_x), expected_x, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(np.vdot(dW, other_W), expected_W, rtol=1e-11, atol=1e-11)


@each_case
def test_gradients_against_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    x, W, dy = case.arrays()
    tx = torch.tensor(channels_first(x), requires_grad=True)
    tW = torch.tensor(W.transpose(3, 2, 0, 1).copy(), requires_grad=True)
    (top, bottom), (left, right) = case.win.pads
    padded = torch.nn.functional.pad(tx, (left, right, top, bottom))
    y = torch.nn.functional.conv2d(padded, tW, None, case.win.stride, 0, case.win.dilation, case.groups)
    dx, dW = torch.autograd.grad(y, (tx, tW), torch.tensor(channels_first(dy)))
    np.testing.assert_allclose(
        conv2d_grad_data(dy, W, case.size, case.win, case.groups), channels_last(dx.numpy()), rtol=1e-10, atol=1e-10
    )
    np.testing.assert_allclose(
        conv2d_grad_weights(x, dy, case.win, case.groups), dW.numpy().transpose(2, 3, 1, 0), rtol=1e-10, atol=1e-10
    )


@each_case
def test_float32_against_onnxruntime(case: Case) -> None:
    x, W, _ = case.arrays(dtype=np.float32)
    b = RNG.standard_normal(case.filters).astype(np.float32)
    (top, bottom), (left, right) = case.win.pads
    expected = run_node(
        "Conv",
        channels_first(x),
        W.transpose(3, 2, 0, 1),
        b,
        strides=case.win.stride,
        dilations=case.win.dilation,
        group=case.groups,
        pads=[top, left, bottom, right],
    )
    y = conv2d(x, W, case.win, case.groups, b)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, channels_last(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(5, 6), (8, 7), (1, 2)])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), (1, 1)), ((3, 3), (2, 2)), ((4, 4), (3, 3)), ((2, 5), (1, 2))])
def test_same_padding_is_same_upper(size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> None:
    layer = Conv2D(2, kernel, stride, "same", bias=False)
    x, W = RNG.standard_normal((2, *size, 3)), RNG.standard_normal((*kernel, 3, 2))
    expected = run_node(
        "Conv", channels_first(x), W.transpose(3, 2, 0, 1), auto_pad="SAME_UPPER", strides=stride, kernel_shape=kernel
    )
    y, _ = layer.forward({"W": W}, x, Ctx())
    assert y.shape[1:3] == tuple(-(-n // s) for n, s in zip(size, stride, strict=True))
    np.testing.assert_allclose(y, channels_last(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("padding", "expected"), [("same", [6, 12, 11]), ((0, 1), [3, 9, 15]), ("valid", [6, 12])])
def test_stride_two_by_hand(padding: str | tuple[int, int], expected: list[int]) -> None:
    x = np.arange(1.0, 7).reshape(1, 1, 6, 1)
    y, _ = Conv2D(1, (1, 3), stride=2, padding=padding).forward(
        {"W": np.ones((1, 3, 1, 1)), "b": np.zeros(1)}, x, Ctx()
    )
    assert y.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("padding", "pads"),
    [
        ("valid", ((0, 0), (0, 0))),
        ("same", ((2, 3), (2, 3))),
        (1, ((1, 1), (1, 1))),
        ((1, 2), ((1, 1), (2, 2))),
        (((1, 2), (3, 0)), ((1, 2), (3, 0))),
        ([[1, 2], [3, 0]], ((1, 2), (3, 0))),
    ],
)
def test_padding_as_users_write_it(padding: object, pads: tuple[tuple[int, int], tuple[int, int]]) -> None:
    assert resolve_padding(padding, (224, 224), (7, 7), (2, 2)) == pads  # type: ignore[arg-type]


def test_same_padding_keeps_the_size() -> None:
    assert Conv2D(64, 7, stride=2, padding="same").out_shape((224, 224, 3)) == (112, 112, 64)
    assert resolve_padding("same", (6, 6), (3, 2), (1, 1), (2, 3)) == ((2, 2), (1, 2))
    assert resolve_padding("same", (6, 6), (1, 2), (3, 4)) == ((0, 0), (0, 0))  # strides that leave rows out


@pytest.mark.parametrize("groups", [1, 16])
def test_one_channel_is_a_correlation(groups: int) -> None:
    x, W = RNG.standard_normal((2, 7, 6, groups)), RNG.standard_normal((3, 4, 1, groups))
    y = conv2d(x, W, Window((3, 4)), groups)
    for n, c in np.ndindex(2, groups):
        np.testing.assert_allclose(y[n, :, :, c], correlate2d(x[n, :, :, c], W[:, :, 0, c], "valid"), rtol=1e-12)


def test_groups_are_convolutions_side_by_side() -> None:
    x, W, _ = CASES["groups"].arrays()
    win = CASES["groups"].win
    parts = [by_loops(x[..., 3 * k : 3 * k + 3], W[..., 2 * k : 2 * k + 2], win, 1) for k in range(2)]
    np.testing.assert_allclose(conv2d(x, W, win, 2), np.concatenate(parts, axis=-1), rtol=1e-12, atol=1e-12)


def layer_and_params(bias: bool, dtype: type = np.float64) -> tuple[Conv2D, dict[str, np.ndarray]]:
    layer = Conv2D(4, 3, stride=(2, 1), padding=((1, 0), (2, 1)), groups=2, bias=bias)
    specs = layer.specs((7, 6, 6))
    return layer, {name: RNG.standard_normal(spec.shape).astype(dtype) for name, spec in specs.items()}


@pytest.mark.parametrize("bias", [True, False])
def test_layer_adds_gradients_to_what_is_there(bias: bool) -> None:
    layer, p = layer_and_params(bias)
    assert set(p) == ({"W", "b"} if bias else {"W"})
    x = RNG.standard_normal((2, 7, 6, 6))
    win = Window((3, 3), (2, 1), pads=((1, 0), (2, 1)))
    y, cache = layer.forward(p, x, Ctx(train=True))
    np.testing.assert_allclose(y, by_loops(x, p["W"], win, 2) + p.get("b", 0), rtol=1e-12, atol=1e-12)
    dy, g = RNG.standard_normal(y.shape), {name: np.ones_like(a) for name, a in p.items()}
    dx = layer.backward(p, cache, dy, g, Ctx(train=True))
    np.testing.assert_allclose(np.vdot(dx, x), np.vdot(dy, y - p.get("b", 0)), rtol=1e-11)
    np.testing.assert_allclose(np.vdot(g["W"] - 1, p["W"]), np.vdot(dy, y - p.get("b", 0)), rtol=1e-11)
    if bias:
        np.testing.assert_allclose(g["b"] - 1, dy.sum((0, 1, 2)), rtol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_have_the_dtype_of_the_parameters(dtype: type) -> None:
    layer, p = layer_and_params(bias=True, dtype=dtype)
    x = RNG.integers(0, 255, (2, 7, 6, 6)).astype(np.uint8)
    y, cache = layer.forward(p, x, Ctx())
    assert y.dtype == dtype
    g = {name: np.zeros_like(a) for name, a in p.items()}
    assert layer.backward(p, cache, np.ones_like(y), g, Ctx()).dtype == dtype
    exact = by_loops(x.astype(np.float64), p["W"].astype(np.float64), Window((3, 3), (2, 1), pads=((1, 0), (2, 1))), 2)
    np.testing.assert_allclose(y, exact + p["b"], rtol=1e-4, atol=1e-2 if dtype == np.float32 else 1e-9)


def test_an_empty_batch_gives_empty_results() -> None:
    layer, p = layer_and_params(bias=True)
    g = {name: np.full_like(a, 7) for name, a in p.items()}
    y, cache = layer.forward(p, np.empty((0, 7, 6, 6)), Ctx(train=True))
    dx = layer.backward(p, cache, np.empty(y.shape), g, Ctx(train=True))
    assert (y.shape, dx.shape) == ((0, *layer.out_shape((7, 6, 6))), (0, 7, 6, 6))
    assert all((a == 7).all() for a in g.values())


def test_padded_input_of_a_batch_never_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(conv, "patch", lambda x, *rest, take=conv.patch: seen.append(take(x, *rest)) or seen[-1])
    monkeypatch.setattr(conv, "BLOCK_PIXELS", (1, 64))
    x = np.zeros((16, 8, 8, 2), np.float32)
    conv2d(x, np.zeros((3, 3, 2, 2), np.float32), Window((3, 3), pads=((1, 1), (1, 1))))
    assert [a.shape for a in seen] == [(1, 10, 10, 2)] * 16


def test_multiply_adds_and_parameters() -> None:
    layer = Conv2D(8, (3, 5), stride=2, padding="same", groups=2)
    assert {name: spec.shape for name, spec in layer.specs((9, 8, 4)).items()} == {"W": (3, 5, 2, 8), "b": (8,)}
    assert layer.out_shape((9, 8, 4)) == (5, 4, 8)
    assert layer.madds((9, 8, 4)) == 5 * 4 * 8 * 3 * 5 * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": 0}, "filters must be an integer of at least 1"),
        ({"filters": 2.5}, "filters must be an integer of at least 1"),
        ({"groups": 0}, "groups must be an integer of at least 1"),
        ({"groups": 3}, r"filters=4, groups=3\): filters must be a multiple of groups"),
        ({"kernel": 0}, "kernel must be an integer >= 1 or two of them"),
        ({"kernel": (3, 3, 3)}, r"kernel must be .*got \(3, 3, 3\)"),
        ({"kernel": "3"}, "kernel must be .*got '3'"),
        ({"stride": 1.5}, "stride must be an integer >= 1"),
        ({"dilation": (1, 0)}, "dilation must be an integer >= 1"),
        ({"padding": "full"}, "Conv2D: padding must be .*got 'full'"),
        ({"padding": -1}, "padding must be .*got -1"),
        ({"padding": ((1, 1), 1)}, "padding must be "),
        ({"padding": ((1, 1), (1, -1))}, "padding must be "),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Conv2D(**{"filters": 4, "kernel": 3} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "in_shape", "message"),
    [
        (Conv2D(4, 3), (8, 8), r"expects samples of shape \(H, W, C\); got \(8, 8\)"),
        (Conv2D(4, 9, padding="valid"), (8, 8, 1), r"window of \(9, 9\).*does not fit samples of shape \(8, 8, 1\)"),
        (Conv2D(4, 3, padding="valid", dilation=4), (8, 9, 1), r"window of \(9, 9\).*smaller kernel or dilation"),
        (Conv2D(4, 3, groups=2), (8, 8, 3), "channels must be a multiple of groups"),
    ],
)
def test_shapes_are_checked(layer: Conv2D, in_shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer.out_shape(in_shape)
    with pytest.raises(ValueError, match=message):
        layer.forward({"W": np.ones((1, 1, 1, 1)), "b": np.ones(1)}, np.ones((1, *in_shape)), Ctx())


def test_channels_must_be_those_of_the_weights() -> None:
    layer, p = layer_and_params(bias=True)
    with pytest.raises(ValueError, match=r"expects x of shape \(N, H, W, 6\).*got \(2, 7, 6, 4\)"):
        layer.forward(p, np.ones((2, 7, 6, 4)), Ctx())
