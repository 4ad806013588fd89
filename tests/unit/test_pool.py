"""Pooling against plain loops, onnxruntime and torch, and on values worked out by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparkdl.compiled import compiling
from sparkdl.nn.layer import Array, Ctx, Layer
from sparkdl.nn.pool import AvgPool2D, GlobalAvgPool, MaxPool2D
from sparkdl.ops import pool
from sparkdl.ops.window import resolve_padding
from tests.onnx_node import channels_first, channels_last, run_node

RNG = np.random.default_rng(11)

OPTIONS: dict[str, dict[str, Any]] = {
    "2x2": {},
    "rest": {"size": 2, "stride": 3},
    "overlap": {"size": 3, "stride": 2},
    "stride-1": {"size": (2, 3), "stride": 1},
    "rectangular": {"size": (3, 2), "stride": (1, 2)},
    "1x1": {"size": 1},
    "padding": {"size": 3, "stride": 2, "padding": 1},
    "padding-tiles": {"size": 2, "padding": 1},
    "padding-one-side": {"size": (3, 4), "stride": 2, "padding": ((1, 0), (0, 2))},
    "same": {"size": 3, "stride": 2, "padding": "same"},
    "same-even": {"size": 2, "stride": 2, "padding": "same"},
    "ceil": {"size": 2, "ceil_mode": True},
    "ceil-overlap": {"size": 3, "stride": 2, "padding": (1, 0), "ceil_mode": True},
    "ceil-window-beyond-image": {"size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
}
SIZES = [(7, 5), (6, 8)]
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def compile_short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiled twins serve rows however short; skip where there is no numba."""
    pytest.importorskip("numba")
    monkeypatch.setattr(importlib.import_module("sparkdl.ops.fast.pool"), "LEAST_ROW", 0)


@pytest.fixture(params=["one-block", "many-blocks", "compiled"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in one block, or in blocks so small that they cut images; or compiled, with rows however short."""
    if request.param == "compiled":
        compile_short_rows(monkeypatch)
    if request.param == "many-blocks":
        monkeypatch.setattr(pool, "BLOCK_ELEMENTS", 8)
    with compiling(request.param == "compiled"):
        yield


def by_loops(layer: MaxPool2D | AvgPool2D, x: Array) -> Array:
    """The definition, one output of all images and channels at a time."""
    (kh, kw), (sh, sw) = (np.broadcast_to(v, 2) for v in (layer.size, layer.stride or layer.size))
    (top, bottom), (left, right) = resolve_padding(layer.padding, x.shape[1:3], (kh, kw), (sh, sw))
    spans = []
    for n, lo, hi, k, s in ((x.shape[1], top, bottom, kh, sh), (x.shape[2], left, right, kw, sw)):
        starts = list(range(-lo, n + hi - k + 1, s))
        beyond = starts[-1] + s
        if layer.ceil_mode and beyond < n and starts[-1] + k < n + hi:
            starts.append(beyond)
        spans.append([(max(a, 0), min(a + k, n), min(a + k, n + hi) - a) for a in starts])
    y = np.empty((len(x), len(spans[0]), len(spans[1]), x.shape[3]))
    for (h, (h0, h1, rows)), (w, (w0, w1, cols)) in ((a, b) for a in enumerate(spans[0]) for b in enumerate(spans[1])):
        seen = x[:, h0:h1, w0:w1]
        if isinstance(layer, MaxPool2D):
            y[:, h, w] = seen.max((1, 2))
        else:
            count = rows * cols if layer.count_include_pad else (h1 - h0) * (w1 - w0)
            y[:, h, w] = seen.sum((1, 2)) / count
    return y


def run(layer: Layer, x: Array, dy: Array | float = 1.0) -> tuple[Array, Array]:
    """(y, dx) where dL/dy = dy."""
    y, cache = layer.forward({}, x, Ctx(train=True))
    return y, layer.backward({}, cache, np.broadcast_to(np.asarray(dy, x.dtype), y.shape), {}, Ctx(train=True))


@each_option
@each_size
@pytest.mark.usefixtures("blocks")
def test_max_is_its_definition(options: dict[str, Any], size: tuple[int, int]) -> None:
    layer, x = MaxPool2D(**options), RNG.standard_normal((3, *size, 2)) - 3  # all negative: zeros would win
    y, _ = run(layer, x)
    assert y.shape[1:] == layer.out_shape((*size, 2))
    assert np.array_equal(y, by_loops(layer, x))


@each_option
@each_size
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.usefixtures("blocks")
def test_average_is_its_definition(options: dict[str, Any], size: tuple[int, int], count_include_pad: bool) -> None:
    layer = AvgPool2D(**options, count_include_pad=count_include_pad)
    x = RNG.standard_normal((3, *size, 2))
    y, _ = run(layer, x)
    assert y.shape[1:] == layer.out_shape((*size, 2))
    np.testing.assert_allclose(y, by_loops(layer, x), rtol=1e-12, atol=1e-12)


@each_option
@each_size
@pytest.mark.usefixtures("blocks")
def test_max_sends_the_gradient_to_the_largest(options: dict[str, Any], size: tuple[int, int]) -> None:
    """y is positively homogeneous in x wherever no two values are equal: <dy, y> = <dx, x>; dy keeps its sum."""
    layer, x = MaxPool2D(**options), RNG.permutation(3 * size[0] * size[1] * 2).reshape(3, *size, 2) - 50.5
    dy = RNG.standard_normal(run(layer, x)[0].shape)
    y, dx = run(layer, x, dy)
    np.testing.assert_allclose(np.vdot(dx, x), np.vdot(dy, y), rtol=1e-12)
    np.testing.assert_allclose(dx.sum((1, 2)), dy.sum((1, 2)), rtol=1e-12, atol=1e-12)


@each_option
@each_size
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.usefixtures("blocks")
def test_average_gradient_is_the_adjoint(
    options: dict[str, Any], size: tuple[int, int], count_include_pad: bool
) -> None:
    layer = AvgPool2D(**options, count_include_pad=count_include_pad)
    x, other = RNG.standard_normal((2, 3, *size, 2))
    dy = RNG.standard_normal(run(layer, x)[0].shape)
    np.testing.assert_allclose(np.vdot(run(layer, x, dy)[1], other), np.vdot(dy, by_loops(layer, other)), rtol=1e-10)


SYMMETRIC = {name: o for name, o in OPTIONS.items() if o.get("padding") != "same" and name != "padding-one-side"}


@pytest.mark.parametrize("options", SYMMETRIC.values(), ids=SYMMETRIC)
@each_size
@pytest.mark.parametrize("kind", ["max", "average", "average-of-padding"])
def test_against_torch(options: dict[str, Any], size: tuple[int, int], kind: str) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.integers(-2, 2, (3, *size, 2)).astype(np.float64)  # many ties
    tx = torch.tensor(channels_first(x), requires_grad=True)
    window = options.get("size", 2), options.get("stride"), options.get("padding", 0), options.get("ceil_mode", False)
    if kind == "max":
        layer: Layer = MaxPool2D(**options)
        ty = torch.nn.functional.max_pool2d(tx, *window[:3], ceil_mode=window[3])
    else:
        layer = AvgPool2D(**options, count_include_pad=kind == "average-of-padding")
        ty = torch.nn.functional.avg_pool2d(tx, *window, layer.count_include_pad)
    expected_y = channels_last(ty.detach().numpy())
    dy = RNG.standard_normal(expected_y.shape)
    (dx,) = torch.autograd.grad(ty, tx, torch.tensor(channels_first(dy)))
    y, got = run(layer, x, dy)
    np.testing.assert_allclose(y, expected_y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got, channels_last(dx.numpy()), rtol=1e-12, atol=1e-12)


@each_size
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ({}, {}),
        ({"size": (3, 2), "stride": (1, 2)}, {"kernel_shape": (3, 2), "strides": (1, 2)}),
        ({"size": 3, "stride": 2, "padding": "same"}, {"kernel_shape": (3, 3), "auto_pad": "SAME_UPPER"}),
        ({"size": 3, "stride": 2, "padding": ((1, 0), (0, 1))}, {"kernel_shape": (3, 3), "pads": (1, 0, 0, 1)}),
        ({"ceil_mode": True}, {"ceil_mode": 1}),
    ],
    ids=["2x2", "rectangular", "same", "one-side", "ceil"],
)
def test_float32_against_onnxruntime(
    size: tuple[int, int], op: str, options: dict[str, Any], attributes: dict[str, Any]
) -> None:
    x = RNG.standard_normal((3, *size, 2)).astype(np.float32)
    y, dx = run({"MaxPool": MaxPool2D, "AveragePool": AvgPool2D}[op](**options), x)
    expected = run_node(op, channels_first(x), **{"kernel_shape": (2, 2), "strides": (2, 2)} | attributes)
    assert (y.dtype, dx.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(y, channels_last(expected), rtol=1e-6, atol=1e-6)


def test_max_pads_with_minus_infinity() -> None:
    x = np.array([[1.0, -1, 0], [-1, 2, 1], [0, 2, -2]]).reshape(1, 3, 3, 1)
    assert run(MaxPool2D(2, 2, "same"), x)[0].reshape(2, 2).tolist() == [[2, 1], [2, -2]]


def test_an_overhanging_average_counts_what_it_covers() -> None:
    x = np.arange(1.0, 6).reshape(1, 1, 5, 1)
    assert run(AvgPool2D((1, 2), ceil_mode=True), x)[0].ravel().tolist() == [1.5, 3.5, 5.0]
    assert run(AvgPool2D((1, 2)), x)[0].ravel().tolist() == [1.5, 3.5]
    assert run(AvgPool2D((1, 2), padding=(0, 1)), x)[0].ravel().tolist() == [1.0, 2.5, 4.5]
    padded = AvgPool2D((1, 2), padding=(0, 1), count_include_pad=True)
    assert run(padded, x)[0].ravel().tolist() == [0.5, 2.5, 4.5]


@each_option
@pytest.mark.parametrize("channels", [1, 2, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_pooling_takes_the_same_places(
    options: dict[str, Any], channels: int, dtype: type[np.floating[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_short_rows(monkeypatch)
    x = RNG.integers(-2, 2, (3, 7, 6, channels)).astype(dtype)  # many ties
    x[RNG.random(x.shape) < 0.1] = np.nan
    x[RNG.random(x.shape) < 0.1] = -np.inf
    layer, results = MaxPool2D(**options), []
    for on in (False, True):
        with compiling(on):
            y, (at, _) = layer.forward({}, x, Ctx())
            results.append((y, at, layer.backward({}, (at, (7, 6)), np.ones_like(y), {}, Ctx())))
    for plain, compiled in zip(*results, strict=True):
        assert compiled.dtype == plain.dtype
        np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize("x", [[[np.nan, 0], [0, 0]], [[0, np.nan], [1, 0]], [[2, 0], [0, np.nan]]])
def test_a_nan_in_the_window_is_its_maximum(x: list[list[float]]) -> None:
    y, dx = run(MaxPool2D(2), np.array(x).reshape(1, 2, 2, 1), 1.0)
    assert np.isnan(y).all()
    assert sorted(dx.ravel()) == [0, 0, 0, 1]


@pytest.mark.parametrize("stride", [1, 2])
def test_among_equals_one_position_gets_the_gradient(stride: int) -> None:
    _, dx = run(MaxPool2D(2, stride), np.zeros((1, 2, 2, 1)))
    assert dx.ravel().tolist() == [1, 0, 0, 0]


def test_a_window_of_more_places_than_a_byte_counts() -> None:
    x = np.arange(2 * 18 * 17, dtype=np.float64).reshape(2, 18, 17, 1)
    y, dx = run(MaxPool2D((18, 17)), x)
    assert y.ravel().tolist() == [18 * 17 - 1, 2 * 18 * 17 - 1]
    assert np.flatnonzero(dx).tolist() == [18 * 17 - 1, 2 * 18 * 17 - 1]


def test_global_average() -> None:
    x, dy = RNG.standard_normal((3, 4, 5, 2)), RNG.standard_normal((3, 2))
    y, dx = run(GlobalAvgPool(), x, dy)
    np.testing.assert_allclose(y, [[image[..., c].sum() / 20 for c in range(2)] for image in x], rtol=1e-12)
    assert np.array_equal(dx, np.tile((dy / 20)[:, None, None], (1, 4, 5, 1)))
    assert GlobalAvgPool().out_shape((4, 5, 2)) == (2,)
    y, dx = run(GlobalAvgPool(), x[:, 0], dy)
    np.testing.assert_allclose(y, x[:, 0].sum(1) / 5, rtol=1e-12)
    np.testing.assert_allclose(dx, np.tile((dy / 5)[:, None], (1, 5, 1)), rtol=1e-12)


def test_global_average_of_the_steps_that_count() -> None:
    x = np.array([[[1.0, 2], [0, 0], [3, 0]], [[0, 0], [0, 0], [0, 0]]])
    y, dx = run(GlobalAvgPool(0.0), x, np.array([[4.0, 8], [1, 1]]))
    assert y.tolist() == [[2, 1], [0, 0]]
    assert dx.tolist() == [[[2, 4], [0, 0], [2, 4]], [[0, 0], [0, 0], [0, 0]]]
    with pytest.raises(ValueError, match=r"GlobalAvgPool\(mask_value=0.0\) takes sequences"):
        GlobalAvgPool(0.0).out_shape((4, 4, 1))


@pytest.mark.parametrize(
    "layer", [MaxPool2D(3, 2, "same"), MaxPool2D(2), AvgPool2D(3, 2, 1), GlobalAvgPool()], ids=repr
)
def test_strides_dtype_and_no_rows(layer: Layer) -> None:
    x = RNG.standard_normal((4, 6, 5, 6)).astype(np.float32)
    for view in (x[::2], x[:, ::-1], x[..., ::3], x.T):
        dy = RNG.standard_normal((len(view), *layer.out_shape(view.shape[1:]))).astype(np.float32)
        for a, b in zip(run(layer, view, dy), run(layer, view.copy(), dy.copy()), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            assert a.dtype == np.float32
    y, dx = run(layer, x[:0])
    assert (y.shape, dx.shape) == ((0, *layer.out_shape((6, 5, 6))), (0, 6, 5, 6))


@pytest.mark.parametrize("cls", [MaxPool2D, AvgPool2D])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "2D: size must be an integer >= 1"),
        ({"stride": (2, 0)}, "2D: stride must be an integer >= 1"),
        ({"padding": "full"}, "2D: padding must be .*got 'full'"),
        ({"size": 2, "padding": 2}, "at most half the size.*got padding .* with size"),
        ({"size": (4, 3), "padding": ((0, 0), (0, 2))}, "at most half the size"),
    ],
)
def test_options_are_checked(cls: Callable[..., Layer], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**options)


@pytest.mark.parametrize("layer", [MaxPool2D(5), AvgPool2D(5), GlobalAvgPool()], ids=repr)
def test_shapes_are_checked(layer: Layer) -> None:
    with pytest.raises(ValueError, match=r"expects samples of shape \(H, W, C\); got \(8,\)"):
        layer.out_shape((8,))
    with pytest.raises(ValueError, match=r"expects samples of shape \(H, W, C\)"):
        layer.forward({}, np.ones((1, 8)), Ctx())
    if not isinstance(layer, GlobalAvgPool):
        with pytest.raises(ValueError, match=r"window of \(5, 5\).*does not fit samples of shape \(8, 4, 1\)"):
            layer.out_shape((8, 4, 1))
        with pytest.raises(ValueError, match=r"does not fit samples"):
            layer.forward({}, np.ones((1, 8, 4, 1)), Ctx())
