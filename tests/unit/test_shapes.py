"""Padding, cropping, enlarging, reshaping and permuting against NumPy, onnxruntime and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.nn import Crop2D, Ctx, Layer, Permute, Reshape, UpSample2D, ZeroPad2D
from tests.onnx_node import channels_first, channels_last, run_node

RNG = np.random.default_rng(31)


def run(layer: Layer, x: np.ndarray, dy: np.ndarray | None = None) -> Any:
    """y, or with dy (y, dx)."""
    y, cache = layer.forward({}, x, Ctx())
    assert y.shape[1:] == layer.out_shape(x.shape[1:])
    return y if dy is None else (y, layer.backward({}, cache, dy, {}, Ctx()))


def test_padding_and_cropping_undo_each_other() -> None:
    sides = ((1, 2), (0, 3))
    x = RNG.standard_normal((2, 4, 5, 3))
    padded, dx = run(ZeroPad2D(sides), x, np.ones((2, 7, 8, 3)))
    assert np.array_equal(padded, np.pad(x, ((0, 0), *sides, (0, 0))))
    assert np.array_equal(dx, np.ones_like(x))
    cropped, back = run(Crop2D(sides), padded, x)
    assert np.array_equal(cropped, x)
    assert np.array_equal(back, padded)


@pytest.mark.parametrize("layer", [ZeroPad2D, Crop2D])
def test_sides_are_numbers(layer: type) -> None:
    assert (
        layer(1).out_shape((5, 5, 2))
        == layer((1, 1)).out_shape((5, 5, 2))
        == layer(((1, 1), (1, 1))).out_shape((5, 5, 2))
    )
    for sides in ("same", -1, (1, 2, 3), 1.5):
        with pytest.raises(ValueError, match=layer.__name__):
            layer(sides)
    with pytest.raises(ValueError, match=r"expects samples of shape \(H, W, C\)"):
        layer(1).out_shape((5, 5))


def test_cropping_leaves_something() -> None:
    with pytest.raises(ValueError, match=r"Crop2D\(crop=2\) leaves nothing of samples of shape \(4, 5, 1\)"):
        Crop2D(2).out_shape((4, 5, 1))


@pytest.mark.parametrize("scale", [1, 2, (3, 2), (1, 4)], ids=str)
def test_nearest_repeats_pixels(scale: Any) -> None:
    sh, sw = (scale, scale) if isinstance(scale, int) else scale
    x, dy = RNG.standard_normal((2, 3, 4, 2)), RNG.standard_normal((2, 3 * sh, 4 * sw, 2))
    y, dx = run(UpSample2D(scale), x, dy)
    assert np.array_equal(y, np.kron(x, np.ones((1, sh, sw, 1))))
    for h, w in np.ndindex(3, 4):
        block = dy[:, h * sh : (h + 1) * sh, w * sw : (w + 1) * sw].sum((1, 2))
        np.testing.assert_allclose(dx[:, h, w], block, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1, 2, (3, 2), (1, 4)], ids=str)
def test_bilinear_against_onnxruntime(scale: Any) -> None:
    sh, sw = (scale, scale) if isinstance(scale, int) else scale
    x = RNG.standard_normal((2, 3, 5, 2)).astype(np.float32)
    expected = run_node(
        "Resize",
        channels_first(x),
        np.zeros(0),
        np.array([1, 1, sh, sw]),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    y = run(UpSample2D(scale, "bilinear"), x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, channels_last(expected), rtol=1e-5, atol=1e-6)


def test_bilinear_by_hand() -> None:
    x = np.array([[0.0, 4.0]]).reshape(1, 1, 2, 1)
    assert run(UpSample2D((1, 2), "bilinear"), x).ravel().tolist() == [0, 1, 3, 4]


def test_bilinear_against_torch() -> None:
    torch = pytest.importorskip("torch")
    x, dy = RNG.standard_normal((2, 3, 5, 2)), RNG.standard_normal((2, 9, 10, 2))
    tx = torch.tensor(channels_first(x), requires_grad=True)
    ty = torch.nn.functional.interpolate(tx, scale_factor=(3, 2), mode="bilinear", align_corners=False)
    (expected,) = torch.autograd.grad(ty, tx, torch.tensor(channels_first(dy)))
    y, dx = run(UpSample2D((3, 2), "bilinear"), x, dy)
    np.testing.assert_allclose(y, channels_last(ty.detach().numpy()), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dx, channels_last(expected.numpy()), rtol=1e-12, atol=1e-12)


def test_enlarging_options_are_checked() -> None:
    with pytest.raises(ValueError, match="mode must be one of bilinear, nearest"):
        UpSample2D(2, "cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="UpSample2D: scale must be an integer >= 1"):
        UpSample2D(0)


@pytest.mark.parametrize(
    ("shape", "expected"), [((4, 6), (4, 6)), ((-1, 3), (8, 3)), ((-1,), (24,)), ((2, 3, 4), (2, 3, 4)), (24, (24,))]
)
def test_reshape(shape: Any, expected: tuple[int, ...]) -> None:
    x = np.arange(48.0).reshape(2, 2, 12)
    y, dx = run(Reshape(shape), x, np.arange(48.0).reshape(2, *expected))
    assert np.array_equal(y, x.reshape(2, *expected))
    assert np.array_equal(dx, x)
    assert run(Reshape(shape), x[:0]).shape == (0, *expected)


@pytest.mark.parametrize("shape", [(0, 3), (-2,), (-1, -1), (2.5,), "ab"])
def test_reshape_refuses_sizes(shape: Any) -> None:
    with pytest.raises(ValueError, match="Reshape"):
        Reshape(shape)


@pytest.mark.parametrize("shape", [(5, 5), (-1, 7)])
def test_reshape_keeps_the_number_of_entries(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"does not fit the 24 entries of samples \(4, 6\)"):
        Reshape(shape).out_shape((4, 6))


def test_permute() -> None:
    x = RNG.standard_normal((2, 3, 4, 5))
    y, dx = run(Permute((2, 0, 1)), x, RNG.standard_normal((2, 5, 3, 4)))
    assert y.shape == (2, 5, 3, 4)
    assert all(y[0, c, h, w] == x[0, h, w, c] for h, w, c in np.ndindex(3, 4, 5))
    assert np.array_equal(run(Permute((2, 0, 1)), x, y)[1], x)
    assert dx.shape == x.shape


@pytest.mark.parametrize("order", [(1, 2), (0, 0), 3, (0, 2)])
def test_permute_names_each_axis_once(order: Any) -> None:
    with pytest.raises(ValueError, match="must name each axis of a sample once"):
        Permute(order)
    with pytest.raises(ValueError, match=r"Permute\(\(1, 0\)\) expects 2 axes; samples are \(2, 2, 2\)"):
        Permute((1, 0)).out_shape((2, 2, 2))
