"""What layers with a sliding window over images share: how options become a `Window`, and what they refuse."""

from __future__ import annotations

import numpy as np

from sparkdl.nn.layer import Shape
from sparkdl.ops.window import Padding, Pair, Window, pair, resolve_padding

__all__ = ["PairLike", "check_image", "image_window", "out_size", "positive"]

PairLike = int | Pair


def positive(layer: str, name: str, value: int) -> None:
    """Raise ValueError unless the option is an integer of at least 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{layer}({name}={value!r}): {name} must be an integer of at least 1.")


def check_image(layer: str, in_shape: Shape) -> None:
    """Raise ValueError unless a sample is an image (H, W, C)."""
    if len(in_shape) != 3:
        raise ValueError(f"{layer} expects samples of shape (H, W, C); got {tuple(in_shape)}. Reshape first?")


def image_window(
    layer: str, in_shape: Shape, kernel: PairLike, stride: PairLike, padding: Padding, dilation: PairLike = 1
) -> Window:
    """The window that these options, as users write them, put over samples (H, W, C)."""
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
