"""Fewer bits for every number: none fewer, half precision, bfloat16, eight bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparkdl.comm.compress.base import Compressor, Route, Segment
from sparkdl.comm.compress.memory import Forgetful, Memory, Residual, State
from sparkdl.comm.compress.packing import join, rows_of, take
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT

__all__ = ["BFloat16", "Float16", "Int8", "Uncompressed"]

LEVELS = 255
BFLOAT16_MAX = float(np.array(0x7F7F0000, np.uint32).view(np.float32))


@dataclass(frozen=True)
class Uncompressed(Compressor):
    """The vector as it is."""

    route: ClassVar[Route] = "dense"

    @property
    def memory(self) -> Memory:
        return Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return size * itemsize

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        return join(v)

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        out += take(message, out.size, out.dtype)[0] * out.dtype.type(scale)


@dataclass(frozen=True)
class Float16(Compressor):
    """IEEE half precision: 11 significant bits. Sums are formed in the vector's own precision.

    A power of two, sent along, brings the largest element just below 2^15, so that nothing overflows, and what is
    2^-39 of the largest or less is all that vanishes.
    """

    route: ClassVar[Route] = "two_phase"
    feedback: bool = field(default=False, kw_only=True)

    @property
    def memory(self) -> Memory:
        return Residual() if self.feedback else Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return 4 + 2 * size if size else 0

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        exponent = math.frexp(float(np.abs(v).max()))[1] - 15
        return join(np.array([exponent], np.int32), _scaled(v, -exponent).astype(np.float16))

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        exponent, values = take(message, 1, np.int32)
        out += _scaled(values.view(np.float16).astype(out.dtype), int(exponent[0])) * out.dtype.type(scale)


@dataclass(frozen=True)
class BFloat16(Compressor):
    """The upper half of a float32, rounded to even: 8 significant bits, the range of float32 (beyond, its ends).

    Sums are formed in the vector's own precision.
    """

    route: ClassVar[Route] = "two_phase"
    feedback: bool = field(default=False, kw_only=True)

    @property
    def memory(self) -> Memory:
        return Residual() if self.feedback else Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return 2 * size

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        bits = np.clip(v, -BFLOAT16_MAX, BFLOAT16_MAX).astype(np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        bits += odd
        bits += np.uint32(0x7FFF)
        return join((bits >> np.uint32(16)).astype(np.uint16))

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        values = (message.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        out += values.astype(out.dtype, copy=False) * out.dtype.type(scale)


@dataclass(frozen=True)
class Int8(Compressor):
    """Each block of elements on 256 steps from its minimum to its maximum: lo + code (hi - lo) / 255."""

    route: ClassVar[Route] = "two_phase"
    block: int = field(default=512, metadata=COUNT)
    feedback: bool = field(default=True, kw_only=True)

    @property
    def memory(self) -> Memory:
        return Residual() if self.feedback else Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return size + 2 * itemsize * -(-size // self.block)

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        rows = rows_of(v, self.block, v[-1])
        lo, hi = rows.min(axis=1), rows.max(axis=1)
        width = hi / LEVELS - lo / LEVELS
        # Halves, since hi - lo may overflow; a block of equal elements has no width, and all its codes are 0.
        codes = rows / 2
        codes -= (lo / 2)[:, None]
        half = (width / 2)[:, None]
        np.divide(codes, half, out=codes, where=half > 0)
        np.rint(codes, out=codes)
        np.clip(codes, 0, LEVELS, out=codes)
        return join(lo, width, codes.astype(np.uint8).reshape(-1)[: v.size])

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        count = -(-out.size // self.block)
        lo, rest = take(message, count, out.dtype)
        width, codes = take(rest, count, out.dtype)
        rows = rows_of(codes, self.block).astype(out.dtype)
        rows *= (width / 2)[:, None]
        rows += (lo / 2)[:, None]
        out += rows.reshape(-1)[: out.size] * out.dtype.type(2 * scale)


def _scaled(v: Array, exponent: int) -> Array:
    """v times 2^exponent."""
    # A product is ten times as fast, but 2^exponent itself may lie outside float32.
    scaled: Array = v * v.dtype.type(2.0**exponent) if abs(exponent) < 100 else np.ldexp(v, exponent)
    return scaled
