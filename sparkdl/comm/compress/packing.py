"""Bits and bytes of messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from sparkdl.comm.transport.base import Array

__all__ = ["join", "pack_codes", "packed_bytes", "rows_of", "take", "unpack_codes"]


def join(*parts: Array) -> Array:
    """The bytes of the parts, one after the other."""
    return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])


def take(message: Array, count: int, dtype: DTypeLike) -> tuple[Array, Array]:
    """The first `count` values of `dtype`, a view, and the rest of the message."""
    nbytes = count * np.dtype(dtype).itemsize
    return message[:nbytes].view(dtype), message[nbytes:]


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of `count` codes of 1, 2, 4 or 8 bits."""
    return -(-count * bits // 8)


def pack_codes(codes: Array, bits: int) -> Array:
    """Codes (n,) uint8 below 2^bits, in ceil(n bits / 8) bytes; bits is 1, 2, 4 or 8.

    Byte i holds codes i, i + m, i + 2 m, ..., m the number of bytes: whole slices are shifted at once.
    """
    m = packed_bytes(codes.size, bits)
    out = codes[:m].copy()
    for k in range(1, 8 // bits):
        part = codes[k * m : (k + 1) * m]
        out[: part.size] |= part << np.uint8(k * bits)
    return out


def unpack_codes(packed: Array, bits: int, count: int) -> Array:
    """The codes (count,) uint8 that `pack_codes` packed."""
    m, mask = packed.size, np.uint8((1 << bits) - 1)
    codes = np.empty(m * (8 // bits), np.uint8)
    for k in range(8 // bits):
        np.bitwise_and(packed >> np.uint8(k * bits), mask, out=codes[k * m : (k + 1) * m])
    return codes[:count]


def rows_of(v: Array, block: int, fill: Any = 0) -> Array:
    """v (n,) as (rows, block), the last row filled up; one row of n where n < block. A view where nothing is filled."""
    block = min(block, v.size)
    missing = -v.size % block
    if missing:
        v = np.concatenate([v, np.full(missing, fill, v.dtype)])
    return v.reshape(-1, block)
