"""Images on their way in: sizes, Spark's structs, and the random changes of training images."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data import ColorJitter, Cutout, Flip, RandomCrop, augment
from sparkdl.data.augment import AUGMENTATIONS, uniforms
from sparkdl.data.images import decode, unpack
from sparkdl.errors import DataError

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (6, 8, 3), np.uint8)


def png(pixels: np.ndarray) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def struct(pixels: np.ndarray, **changes: Any) -> dict[str, Any]:
    """An image as Spark's reader gives it: blue first."""
    h, w, c = pixels.shape
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[c]
    mode = {1: 0, 3: 16, 4: 24}[c]
    data = pixels[..., order].tobytes()
    return {"origin": "a.png", "height": h, "width": w, "nChannels": c, "mode": mode, "data": data} | changes


def encoded(image: Any, form: str = "PNG") -> bytes:
    """An image of Pillow's as a file."""
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def test_images_of_16_bits_keep_the_upper_8() -> None:
    deep = RNG.integers(0, 1 << 16, (6, 8), np.uint16)
    for form in ("PNG", "TIFF"):
        file = encoded(pytest.importorskip("PIL.Image").fromarray(deep), form)
        assert np.array_equal(decode(file, None)[..., 0], deep >> 8)
        assert np.array_equal(decode(file, 3), np.repeat((deep >> 8)[..., None], 3, axis=2))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_range_are_refused(dtype: Any) -> None:
    """A float of 0.5 and an integer of 70,000 are grey in nobody's eyes but the writer's."""
    file = encoded(pytest.importorskip("PIL.Image").fromarray(np.ones((3, 3), dtype)), "TIFF")
    with pytest.raises(ValueError, match=r"cannot be decoded: pixels of type [FI], not of 8 or 16 bits"):
        decode(file, 1)


def test_a_palette_with_transparency() -> None:
    image = pytest.importorskip("PIL.Image").fromarray(np.dstack([COLOUR // 64 * 64, np.full((6, 8), 128, np.uint8)]))
    file = encoded(image.quantize())
    assert decode(file, None).shape == (6, 8, 4)
    assert np.array_equal(decode(file, 3), decode(file, None)[..., :3])


def test_what_is_no_image_is_shown_by_its_first_bytes() -> None:
    pytest.importorskip("PIL.Image")
    with pytest.raises(ValueError, match=r"^not an image file: it begins with b'\\x00garb'$"):
        decode(b"\0garb", 3)
    with pytest.raises(ValueError, match=r"^not an image file: it begins with b'<html><head>'$"):
        decode(b"<html><head><title>404", 3)
    with pytest.raises(ValueError, match="cannot be decoded: "):
        decode(png(COLOUR)[:-30], 3)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_structs_of_spark_are_turned_to_rgb(channels: int) -> None:
    pixels = RNG.integers(0, 256, (3, 5, channels), np.uint8)
    assert np.array_equal(unpack(struct(pixels), None), pixels)


def test_structs_are_converted_and_resized_as_files_are() -> None:
    for channels, size, resize in (
        (1, None, "none"),
        (4, (6, 8), "crop"),
        (None, (3, 4), "stretch"),
        (3, (3, 3), "crop"),
    ):
        expected = decode(png(COLOUR), channels, size, resize)
        assert np.array_equal(unpack(struct(COLOUR), channels, size, resize), expected)


@pytest.mark.parametrize("changes", [{"mode": -1}, {"height": -1}, {"data": b"short"}, {"mode": 0}, {"mode": 21}])
def test_structs_that_are_no_images(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an image of 8 bits: mode"):
        unpack(struct(COLOUR, **changes), None)


def test_a_struct_that_stays_as_it_is_needs_no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert np.array_equal(unpack(struct(COLOUR), 3, (6, 8), "crop"), COLOUR)
    with pytest.raises(DataError, match="need Pillow"):
        unpack(struct(COLOUR), 1)


def test_images_are_stretched_or_cropped_to_a_size() -> None:
    flat = np.zeros((4, 8, 3), np.uint8)
    flat[:, :2], flat[:, 6:] = 255, 255  # bright at both ends, which a square crop of the middle leaves out
    assert decode(png(flat), 3, (4, 4), "crop").max() == 0
    stretched = decode(png(flat), 3, (4, 4), "stretch")
    assert stretched.shape == (4, 4, 3)
    assert stretched[:, 0].min() > 200
    assert np.array_equal(decode(png(COLOUR), 3, (6, 8), "stretch"), COLOUR)
    assert decode(png(COLOUR), 3, (4, 4), "none").shape == (6, 8, 3)
    even = np.repeat(np.repeat(COLOUR[:3, :4, :1], 2, 0), 2, 1)[..., 0]  # halved, each pixel lies within its own
    halved = decode(png(even), 1, (3, 4), "stretch")[..., 0].astype(int)
    assert abs(halved.mean() - even.mean()) < 3


def batch(n: int = 5, c: int = 3, dtype: Any = np.uint8) -> np.ndarray:
    return RNG.integers(0, 256, (n, 6, 7, c)).astype(dtype)


def fixed(*values: float, n: int = 5) -> np.ndarray:
    return np.tile(np.array(values), (n, 1))


def test_flip() -> None:
    x = batch()
    u = np.array([[0.0], [0.4], [0.5], [0.9], [0.1]])
    y = Flip()(x.copy(), u)
    assert np.array_equal(y[[0, 1, 4]], x[[0, 1, 4], :, ::-1])
    assert np.array_equal(y[[2, 3]], x[[2, 3]])
    assert np.array_equal(Flip(0)(x.copy(), u), x)


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize(("u", "shift"), [((0.0, 0.0), (-2, -2)), ((0.5, 0.5), (0, 0)), ((0.999, 0.21), (2, -1))])
def test_random_crop(mode: Any, u: tuple[float, float], shift: tuple[int, int]) -> None:
    x = batch()
    y = RandomCrop(2, mode)(x.copy(), fixed(*u))
    for h, w in np.ndindex(6, 7):
        row, col = h + shift[0], w + shift[1]
        if mode == "reflect":
            row, col = (-i if i < 0 else 2 * (n - 1) - i if i >= n else i for i, n in ((row, 6), (col, 7)))
        expected = x[:, row, col] if 0 <= row < 6 and 0 <= col < 7 else 0 * x[:, 0, 0]
        assert np.array_equal(y[:, h, w], expected)


def test_random_crop_without_padding_and_beyond_the_image() -> None:
    x = batch()
    assert np.array_equal(RandomCrop(0)(x.copy(), fixed(0.9, 0.9)), x)
    with pytest.raises(ValueError, match="images of 6 x 7 reflect less than that"):
        RandomCrop(6, "reflect")(x, fixed(0.0, 0.0))


def test_color_jitter() -> None:
    x = batch(dtype=np.float64)
    brighter = ColorJitter(0.2, 0, 0)(x.copy(), fixed(1.0, 0.3, 0.7))
    np.testing.assert_allclose(brighter, 1.2 * x)
    grey = x @ [0.299, 0.587, 0.114]
    softer = ColorJitter(0, 0.5, 0)(x.copy(), fixed(0.3, 0.0, 0.7))
    mean = grey.mean(axis=(1, 2))[:, None, None, None]
    np.testing.assert_allclose(softer, mean + 0.5 * (x - mean))
    np.testing.assert_allclose(ColorJitter(0, 0, 1)(x.copy(), fixed(0.3, 0.7, 0.0)), np.stack([grey] * 3, -1))
    np.testing.assert_allclose(ColorJitter(0, 0, 0)(x.copy(), fixed(0.1, 0.2, 0.3)), x)


@pytest.mark.parametrize("c", [1, 3])
def test_color_jitter_is_brightness_then_contrast_then_saturation(c: int) -> None:
    x, u = batch(c=c, dtype=np.float64), RNG.random((5, 3))
    light, contrast, colour = (1 + np.array([0.2, 0.4, 0.6]) * (2 * u - 1)).T[:, :, None, None, None]
    weights = np.array([[0.299], [0.587], [0.114]]) if c == 3 else np.ones((1, 1))
    bright = light * x
    mean = (bright @ weights).mean(axis=(1, 2, 3), keepdims=True)
    strong = mean + contrast * (bright - mean)
    expected = strong @ weights + colour * (strong - strong @ weights)
    np.testing.assert_allclose(ColorJitter(0.2, 0.4, 0.6)(x.copy(), u), expected)


def test_color_jitter_keeps_types_and_the_fourth_channel() -> None:
    x = batch(c=4)
    y = ColorJitter(1, 0, 0)(x.copy(), fixed(0.9, 0.5, 0.5))
    assert y.dtype == np.uint8
    assert np.array_equal(y[..., 3], x[..., 3])
    np.testing.assert_allclose(y[..., :3], np.minimum(1.8 * x[..., :3], 255), atol=0.51)
    one = batch(c=1, dtype=np.float32)
    np.testing.assert_allclose(ColorJitter(0, 0, 1)(one.copy(), fixed(0, 0, 0)), one, rtol=1e-5)


def test_cutout() -> None:
    x = batch(dtype=np.float64)
    y = Cutout(3)(x.copy(), fixed(0.5, 0.0))  # row 3, column 0: rows 2 to 4, columns 0 and 1
    inside = np.zeros((6, 7), bool)
    inside[2:5, :2] = True
    assert np.array_equal(y[:, ~inside], x[:, ~inside])
    np.testing.assert_allclose(y[:, inside], np.repeat(x.mean(axis=(1, 2))[:, None], 6, axis=1))


STEPS = (RandomCrop(2), Flip(), ColorJitter(), Cutout(2))


@given(st.permutations(range(8)), st.integers(0, 7), st.integers(0), st.integers(0, 3))
def test_a_row_is_changed_alike_wherever_it_is(order: list[int], cut: int, seed: int, epoch: int) -> None:
    x, rows = np.random.default_rng(1).integers(0, 256, (8, 6, 7, 3), np.uint8), np.arange(100, 108)
    whole = augment(STEPS, x.copy(), rows, seed, epoch)
    for part in (order[:cut], order[cut:]):
        assert np.array_equal(augment(STEPS, x[part], rows[part], seed, epoch), whole[part])


def test_epochs_seeds_and_rows_differ() -> None:
    x = np.repeat(batch(1), 3, axis=0)
    rows = np.array([4, 5, 6])
    first = augment(STEPS, x.copy(), rows, 0, 0)
    assert not np.array_equal(first[0], first[1])
    for seed, epoch in ((0, 1), (1, 0)):
        assert not np.array_equal(augment(STEPS, x.copy(), rows, seed, epoch), first)


def test_random_numbers_are_uniform_and_independent() -> None:
    u = uniforms(7, 3, np.arange(20_000), 3)
    assert u.min() >= 0
    assert u.max() < 1
    np.testing.assert_allclose(u.mean(axis=0), 0.5, atol=0.01)  # five standard deviations of the mean
    np.testing.assert_allclose(u.var(axis=0), 1 / 12, atol=0.004)
    assert abs(np.corrcoef(u.T) - np.eye(3)).max() < 0.035
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.035


def test_every_augmentation_keeps_shape_and_dtype_and_takes_no_rows() -> None:
    for cls in AUGMENTATIONS.values():
        for dtype in (np.uint8, np.float32):
            for n in (0, 2):
                y = augment([cls()], batch(n, dtype=dtype), np.arange(n), 0, 0)
                assert (y.shape, y.dtype) == ((n, 6, 7, 3), dtype)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flip(1.5), "rate must be a number in"),
        (lambda: RandomCrop(-1), "padding must be an integer"),
        (lambda: RandomCrop(mode="wrap"), "mode must be one of zeros, reflect"),  # type: ignore[arg-type]
        (lambda: ColorJitter(2), "brightness must be a number"),
        (lambda: Cutout(0), "size must be an integer"),
        (lambda: augment([Flip()], np.zeros((2, 9)), np.arange(2), 0, 0), r"samples are \(9,\). Set data.shape"),
    ],
)
def test_options_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
