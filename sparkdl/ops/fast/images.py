"""What kernels over images have in common."""

from __future__ import annotations

from sparkdl.compiled import Real3, inline
from sparkdl.ops.window import Array

__all__ = ["place"]


@inline
def place(image: Real3, padded: Array, top: int, left: int) -> None:
    """An image (H, W, C) into lines of which the first `top` rows and `left` pixels are padding; negative pads crop."""
    height, width, c = image.shape
    lines = image.reshape(height, width * c)
    start, skipped = max(0, left) * c, max(0, -left) * c
    size = min(width * c - skipped, padded.shape[1] - start)
    for h in range(max(0, -top), min(height, len(padded) - top)):
        source, target = lines[h, skipped:], padded[h + top, start:]
        for p in range(size):
            target[p] = source[p]
