"""Random changes of training images, the same for a row and epoch whichever worker has it.

Images x (N, H, W, C) are those that are stored, before scale and standardisation. The random numbers of a row are
hashes of (seed, epoch, row): nothing depends on how rows are dealt to workers and minibatches.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sparkdl.data.findings import Array
from sparkdl.data.hashing import GOLDEN, combine, mix64
from sparkdl.fields import COUNT, UNIT, Interval, check_fields

__all__ = ["AUGMENTATIONS", "Augmentation", "ColorJitter", "Cutout", "Flip", "RandomCrop", "augment", "uniforms"]

PURPOSE = 3  # of random numbers in (seed, purpose, epoch, row)
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey (ITU-R BT.601)
NATURAL: Mapping[str, Any] = {"within": Interval(0, np.inf, "[)", integer=True)}


class Augmentation(ABC):
    """A function of images and of `draws` random numbers for each, uniform in [0, 1)."""

    draws: int

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def __call__(self, x: Array, u: Array) -> Array:
        """x (N, H, W, C), u (N, draws) -> images of the same shape and dtype; x may be changed in place."""


@dataclass(frozen=True)
class Flip(Augmentation):
    """Left and right change places in a share `rate` of the images."""

    rate: float = field(default=0.5, metadata=UNIT)
    draws = 1

    def __call__(self, x: Array, u: Array) -> Array:
        turned = u[:, 0] < self.rate
        x[turned] = x[turned, :, ::-1]
        return x


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Each image is padded by `padding` pixels on its sides, and cut back to its size at a random place.

    `mode` fills the margin: "zeros", or "reflect" for the image's mirror image (He et al. 2016 take 4 zeros).
    """

    padding: int = field(default=4, metadata=NATURAL)
    mode: Literal["zeros", "reflect"] = "zeros"
    draws = 2

    def __post_init__(self) -> None:
        check_fields(self)
        if self.mode not in ("zeros", "reflect"):
            raise ValueError(f"RandomCrop(mode={self.mode!r}): mode must be one of zeros, reflect.")

    def __call__(self, x: Array, u: Array) -> Array:
        _, h, w, _ = x.shape
        if self.mode == "reflect" and self.padding >= min(h, w):
            raise ValueError(f"RandomCrop(padding={self.padding}): images of {h} x {w} reflect less than that.")
        sides = ((0, 0), (self.padding, self.padding), (self.padding, self.padding), (0, 0))
        padded = np.pad(x, sides, "constant" if self.mode == "zeros" else "reflect")
        for i, (top, left) in enumerate((u * (2 * self.padding + 1)).astype(int)):
            x[i] = padded[i, top : top + h, left : left + w]
        return x


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Brightness, then contrast, then saturation times a factor in [1 - amount, 1 + amount].

    Brightness multiplies the image, contrast its distance from the image's mean grey, saturation that from each pixel's
    own grey; the latter needs three channels or four, the fourth of which stays. Integers are rounded to their range.
    """

    brightness: float = field(default=0.2, metadata=UNIT)
    contrast: float = field(default=0.2, metadata=UNIT)
    saturation: float = field(default=0.2, metadata=UNIT)
    draws = 3

    def __call__(self, x: Array, u: Array) -> Array:
        work = np.result_type(x.dtype, np.float32)
        amounts = np.array([self.brightness, self.contrast, self.saturation])
        factors = (1 + amounts * (2 * u - 1)).astype(work)
        for image, (light, contrast, colour) in zip(x[..., :3], factors, strict=True):  # one fits into a core's cache
            seen = image.astype(work)
            grey = _grey(seen)
            # With grey(b x) = b grey(x) and grey of a constant itself, the three become one sum.
            rest = (1 - contrast) * light * grey.mean()
            if seen.shape[2] == 3:
                seen *= colour * contrast * light
                grey *= (1 - colour) * contrast * light
                grey += rest
                seen += grey
            else:
                seen *= contrast * light
                seen += rest
            image[...] = _in_range(seen, x.dtype)
        return x


@dataclass(frozen=True)
class Cutout(Augmentation):
    """A square of `size` pixels around a random pixel, as far as it lies in the image, gets the image's mean colour.

    (DeVries & Taylor 2017, who cut from images of mean zero.)
    """

    size: int = field(default=8, metadata=COUNT)
    draws = 2

    def __call__(self, x: Array, u: Array) -> Array:
        _, h, w, _ = x.shape
        exact = np.int64 if x.dtype.kind in "iu" else np.float64
        for image, (row, col) in zip(x, (u * (h, w)).astype(int), strict=True):
            top, left = row - self.size // 2, col - self.size // 2
            hole = image[max(top, 0) : top + self.size, max(left, 0) : left + self.size]
            mean = image.sum(axis=0, dtype=exact).sum(axis=0) / (h * w)  # rows first: they add up element by element
            hole[...] = mean.astype(x.dtype)
        return x


AUGMENTATIONS: Mapping[str, type[Augmentation]] = {
    "color_jitter": ColorJitter,
    "cutout": Cutout,
    "flip": Flip,
    "random_crop": RandomCrop,
}


def augment(steps: Sequence[Augmentation], x: Array, rows: Array, seed: int, epoch: int) -> Array:
    """Images x (N, H, W, C) of these rows (N,), numbered over all workers, changed by one step after the other.

    x may be changed in place. Raises ValueError where x is no images.
    """
    if x.ndim != 4:
        raise ValueError(f"augmentation is for images (H, W, C); samples are {x.shape[1:]}. Set data.shape?")
    u = uniforms(seed, epoch, rows, sum(step.draws for step in steps))
    ends = np.cumsum([step.draws for step in steps])
    return functools.reduce(lambda x, pair: pair[0](x, pair[1]), zip(steps, np.split(u, ends, axis=1), strict=False), x)


def uniforms(seed: int, epoch: int, rows: Array, draws: int) -> Array:
    """(N, draws) numbers in [0, 1), a function of seed, epoch and row."""
    parts = [np.full(len(rows), n % 2**64, np.uint64) for n in (seed, PURPOSE, epoch)]
    h = combine([*(mix64(part) for part in parts), rows.astype(np.uint64)])
    z = mix64(h[:, None] + GOLDEN * np.arange(1, draws + 1, dtype=np.uint64))
    u: Array = (z >> np.uint64(11)) * 2.0**-53
    return u


def _grey(x: Array) -> Array:
    """x (H, W, C) -> (H, W, 1), the luma of colours; a single channel as it is."""
    return x @ np.array(LUMA, x.dtype)[:, None] if x.shape[2] == 3 else x


def _in_range(x: Array, dtype: Any) -> Array:
    """x, for integers rounded and clipped to what they hold, in place."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        np.clip(np.rint(x, out=x), limits.min, limits.max, out=x)
    return x
