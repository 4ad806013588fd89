"""What layers over images and sequences share: how options become a `Window`, what is refused, which steps count."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np

from sparkdl.nn.layer import Array, Shape
from sparkdl.ops.pad import source
from sparkdl.ops.window import Padding, Pads, Pair, Window, pair, resolve_padding

__all__ = [
    "NONE",
    "PairLike",
    "SidePadding",
    "as_image",
    "check_image",
    "check_margin",
    "check_sequence",
    "counted",
    "image_window",
    "marked",
    "one_of",
    "out_size",
    "positive",
    "side_padding",
]

PairLike = int | Pair
SidePadding = str | int | Pair
NONE: Pads = ((0, 0), (0, 0))


def positive(layer: str, name: str, value: int) -> None:
    """Raise ValueError unless the option is an integer of at least 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{layer}({name}={value!r}): {name} must be an integer of at least 1.")


def one_of(layer: str, name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ValueError unless the option is one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{layer}({name}={value!r}): {name} must be one of {', '.join(sorted(allowed))}.")


def check_image(layer: str, in_shape: Shape) -> None:
    """Raise ValueError unless a sample is an image (H, W, C)."""
    if len(in_shape) != 3:
        raise ValueError(f"{layer} expects samples of shape (H, W, C); got {tuple(in_shape)}. Reshape first?")


def check_sequence(layer: str, in_shape: Shape) -> None:
    """Raise ValueError unless a sample is a sequence (T, C)."""
    if len(in_shape) != 2:
        raise ValueError(f"{layer} expects samples of shape (T, C); got {tuple(in_shape)}. Reshape first?")


def as_image(layer: str, in_shape: Shape) -> Shape:
    """A sequence (T, C) as the image (1, T, C), which the layers over sequences hand to those over images."""
    check_sequence(layer, in_shape)
    return (1, *in_shape)


def side_padding(padding: SidePadding) -> Padding:
    """Padding of a sequence, "same", "valid", p or (left, right), as that of an image of one row."""
    if isinstance(padding, str):
        return padding
    left, right = padding if isinstance(padding, tuple | list) else (padding, padding)
    return (0, 0), (left, right)


def check_margin(layer: str, in_shape: Shape, pads: Pads, mode: str) -> None:
    """Raise ValueError unless samples (H, W, C) have the pixels that padding of this mode repeats."""
    try:
        for size, sides in zip(in_shape, pads, strict=False):
            source(size, sides, mode)
    except ValueError as e:
        raise ValueError(f"{layer}: {e}.") from None


def image_window(
    layer: str, in_shape: Shape, kernel: PairLike, stride: PairLike, padding: Padding, dilation: PairLike = 1
) -> Window:
    """The window that these options, as users write them, put over samples (H, W, C)."""
    return _image_window(layer, *map(_fixed, (in_shape, kernel, stride, padding, dilation)))


def _fixed(option: Any) -> Any:
    """Lists as tuples, so that the option can be a key."""
    return tuple(map(_fixed, option)) if isinstance(option, list | tuple) else option


@functools.lru_cache(maxsize=1024)  # a layer asks in every pass
def _image_window(layer: str, in_shape: Shape, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Window:
    check_image(layer, in_shape)
    options = {"kernel": kernel, "stride": stride, "dilation": dilation}
    k, s, d = (pair(f"{layer}: {name}", value) for name, value in options.items())
    try:
        pads = resolve_padding(padding, (in_shape[0], in_shape[1]), k, s, d)
    except ValueError as e:
        raise ValueError(f"{layer}: {e}") from None
    return Window(k, s, d, pads)


def out_size(layer: str, in_shape: Shape, win: Window) -> Pair:
    """(OH, OW), at least 1 each: ValueError where not one window fits."""
    size = win.out_size((in_shape[0], in_shape[1]))
    if min(size) < 1:
        raise ValueError(
            f"{layer}: a window of {win.extent} (height, width) does not fit samples of shape {tuple(in_shape)} with "
            f"padding {win.pads}. Use a smaller kernel or dilation, or more padding?"
        )
    return size


def counted(x: Array, mask_value: float | None) -> Array | None:
    """Which steps of x (N, T, D) count, (N, T): not all entries equal mask_value. None, for all, if that is None."""
    keep: Array | None = None if mask_value is None else (x != mask_value).any(axis=2)
    return keep


def marked(y: Array, keep: Array | None, mask_value: Any) -> Array:
    """y (N, T, D) with mask_value in the steps that do not count; y itself where all do."""
    return y if keep is None else np.where(keep[:, :, None], y, y.dtype.type(mask_value))
