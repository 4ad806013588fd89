"""Images as arrays: encoded ones, and those of Spark's own reader."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.data.findings import Array
from sparkdl.errors import DataError

__all__ = ["decode", "unpack"]

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
OWN_CHANNELS = {"1": 1, "L": 1, "LA": 4, "RGBA": 4}  # of Pillow's modes; all others are colours
OPENCV = {0: 1, 16: 3, 24: 4}  # Spark's `mode` of an image, an OpenCV type -> channels of 8 bits
EXCERPT = 12  # bytes that a message shows of what is no image
Size = tuple[int, int]


def decode(data: bytes, channels: int | None, size: Size | None = None, resize: str = "none") -> Array:
    """The bytes of a PNG, JPEG or other file -> (height, width, channels) uint8.

    channels 1 (grey), 3 (RGB), 4 (RGBA) converts; None keeps grey, transparent and coloured images as they are. Of
    pixels of 16 bits the upper 8 are kept.
    `resize` brings them to size = (height, width): "stretch" by scaling both axes (bilinear), "crop" by scaling until
    the image covers the size, and cutting off what is too much on both sides.
    Errors: ValueError where the bytes are no image, or one of more than 16 bits; DataError where Pillow is not
    installed.
    """
    pillow = _pillow()
    try:
        with pillow.Image.open(io.BytesIO(data)) as image:
            own = _eight_bits(image)
            mode = MODES[channels or OWN_CHANNELS.get(own.mode, 3)]
            return _pixels(_resized(own.convert(mode), size, resize))
    except pillow.UnidentifiedImageError:
        raise ValueError(f"not an image file: it begins with {data[:EXCERPT]!r}") from None
    except Exception as e:  # Pillow's decoders raise nearly anything on damaged bytes
        raise ValueError(f"cannot be decoded: {e}") from e


def unpack(image: Mapping[str, Any], channels: int | None, size: Size | None = None, resize: str = "none") -> Array:
    """An image of Spark's reader, rows of bytes in the order BGR -> (height, width, channels) uint8 in the order RGB.

    Options are those of `decode`; Pillow is needed only where they change something.
    Errors: ValueError where the fields do not make an image; DataError where Pillow is needed and not installed.
    """
    own, shape = OPENCV.get(image["mode"]), (image["height"], image["width"], image["nChannels"])
    if own is None or own != shape[2] or min(shape) < 1 or len(image["data"]) != shape[0] * shape[1] * own:
        raise ValueError(f"not an image of 8 bits: mode {image['mode']}, {shape}, {len(image['data'])} bytes")
    pixels: Array = np.frombuffer(image["data"], np.uint8).reshape(shape)
    pixels = pixels[:, :, [2, 1, 0, 3][:own] if own > 1 else [0]]
    if channels in (None, own) and (resize == "none" or shape[:2] == size):
        return pixels
    picture = _pillow().Image.fromarray(pixels if own > 1 else pixels[:, :, 0])
    return _pixels(_resized(picture.convert(MODES[channels or own]), size, resize))


def _eight_bits(image: Any) -> Any:
    """The image with at most 8 bits a channel: Pillow's own conversion cuts off at 255 what is wider."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # PNG has no wider ones
        return _pillow().Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of type {image.mode}, not of 8 or 16 bits")
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


def _resized(image: Any, size: Size | None, resize: str) -> Any:
    if resize == "none" or size is None or image.size == size[::-1]:
        return image
    pillow, target = _pillow(), size[::-1]
    if resize == "stretch":
        return image.resize(target, pillow.Image.Resampling.BILINEAR)
    return pillow.ImageOps.fit(image, target, pillow.Image.Resampling.BILINEAR)


def _pixels(image: Any) -> Array:
    pixels: Array = np.asarray(image, np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _pillow() -> Any:
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError as e:
        raise DataError("encoded images need Pillow: pip install 'sparkdl-train[image]'.") from e
    return PIL
