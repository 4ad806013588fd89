"""Few levels, rounded at random: the message is right on average, and no memory is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from sparkdl.comm.compress.base import Compressor, Route, Segment
from sparkdl.comm.compress.memory import Forgetful, Memory, State
from sparkdl.comm.compress.packing import join, pack_codes, packed_bytes, rows_of, take, unpack_codes
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, NON_NEGATIVE, Interval

__all__ = ["QSGD", "TernGrad"]


@dataclass(frozen=True)
class QSGD(Compressor):
    """norm sign(x) level / s with level = floor(s |x| / norm + u), u uniform in [0, 1); `levels` is s.

    The norm is that of a block: its largest element ("max"), or its Euclidean norm ("l2"), with which most elements
    round to 0. Codes take 2 bits with 1 level, 4 with up to 7, 8 with up to 127. (Alistarh et al. 2017,
    arXiv:1610.02132.)
    """

    route: ClassVar[Route] = "gather"
    levels: int = field(default=7, metadata={"within": Interval(1, 127, integer=True)})
    block: int = field(default=512, metadata=COUNT)
    norm: Literal["max", "l2"] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("max", "l2"):
            raise ValueError(f'QSGD(norm={self.norm!r}): norm must be "max" or "l2".')

    @property
    def memory(self) -> Memory:
        return Forgetful()

    @property
    def bits(self) -> int:
        """Of one code."""
        return 2 if self.levels == 1 else 4 if self.levels <= 7 else 8

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return _nbytes(size, itemsize, self.block, self.bits)

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        rows = rows_of(v, self.block)
        scales = np.abs(rows).max(axis=1)
        if self.norm == "l2":
            # Divided by the maximum first: squares of what is very small or large would leave the range.
            ratios = np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
            scales *= np.sqrt(np.square(ratios).sum(axis=1))
        return _pack(rows, scales, self.levels, self.bits, v.size, rng)

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        _unpack_into(out, message, scale, self.block, self.levels, self.bits)


@dataclass(frozen=True)
class TernGrad(Compressor):
    """Each element becomes -m, 0 or m, with m the largest of its block, and |x| / m the chance of not being 0.

    Elements are clipped at `clip` root mean squares of the block first, so that one outlier does not make noise of all
    others; 0 leaves them, and only then is the message right on average. (Wen et al. 2017, arXiv:1705.07878.)
    """

    route: ClassVar[Route] = "gather"
    clip: float = field(default=2.5, metadata=NON_NEGATIVE)
    block: int = field(default=2048, metadata=COUNT)

    @property
    def memory(self) -> Memory:
        return Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return _nbytes(size, itemsize, self.block, 2)

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        rows = rows_of(v, self.block)
        scales = np.abs(rows).max(axis=1)
        if self.clip:
            ratios = np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
            counts = np.full(len(rows), rows.shape[1])
            counts[-1] -= rows.size - v.size
            scales *= np.minimum(1, self.clip * np.sqrt(np.square(ratios).sum(axis=1) / counts)).astype(v.dtype)
        return _pack(rows, scales, 1, 2, v.size, rng)

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        _unpack_into(out, message, scale, self.block, 1, 2)


def _nbytes(size: int, itemsize: int, block: int, bits: int) -> int:
    return itemsize * -(-size // block) + packed_bytes(size, bits)


def _pack(rows: Array, scales: Array, levels: int, bits: int, size: int, rng: np.random.Generator) -> Array:
    """Scales (rows,) and codes: level with its sign, from -levels to levels, as level + levels."""
    safe = np.where(scales > 0, scales, 1)[:, None]
    level = np.abs(rows) / safe  # the scale may be subnormal: divide first
    level *= levels
    level += rng.random(rows.shape, np.float32 if rows.dtype == np.float32 else np.float64)
    np.floor(level, out=level)
    np.minimum(level, levels, out=level)  # beyond the scale, or where the sum was rounded up
    np.copysign(level, rows, out=level)
    level += levels
    return join(scales, pack_codes(level.astype(np.uint8).reshape(-1)[:size], bits))


def _unpack_into(out: Array, message: Array, scale: float, block: int, levels: int, bits: int) -> None:
    scales, packed = take(message, math.ceil(out.size / block), out.dtype)
    rows = rows_of(unpack_codes(packed, bits, out.size), block).astype(out.dtype)
    rows -= levels
    rows *= (scales / levels)[:, None]
    out += rows.reshape(-1)[: out.size] * out.dtype.type(scale)
