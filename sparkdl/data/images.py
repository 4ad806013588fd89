"""Encoded images as arrays."""

from __future__ import annotations

import io

import numpy as np

from sparkdl.data.findings import Array
from sparkdl.errors import DataError

__all__ = ["decode"]

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
OWN_CHANNELS = {"1": 1, "L": 1, "LA": 4, "RGBA": 4}  # of Pillow's modes; all others are colours


def decode(data: bytes, channels: int | None) -> Array:
    """The bytes of a PNG, JPEG or other file -> (height, width, channels) uint8.

    channels 1 (grey), 3 (RGB), 4 (RGBA) converts; None keeps grey, transparent and coloured images as they are.
    Errors: ValueError where the bytes are no image; DataError where Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as e:
        raise DataError("encoded images need Pillow: pip install 'sparkdl-train[image]'.") from e
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode = MODES[channels or OWN_CHANNELS.get(image.mode, 3)]
            pixels = np.asarray(image.convert(mode), np.uint8)
    except Exception as e:  # Pillow's decoders raise nearly anything on damaged bytes
        raise ValueError(f"not an image: {e}") from e
    return pixels.reshape(*pixels.shape[:2], -1)
