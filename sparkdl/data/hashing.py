"""64-bit row hashes: a row's content alone decides its place in the order, its shard and its split."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from sparkdl.data.columns import numbers
from sparkdl.data.findings import Array

__all__ = ["KEY_BITS", "combine", "hash_column", "hash_rows", "in_validation", "keyed", "mix64", "owner"]

KEY_BITS = 40  # leading bits that a key decides; the rest tell rows of one key apart
CHUNK_WORDS = 1 << 15  # words mixed at once: stays in a core's cache
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SPLIT = np.uint64(0x5851F42D4C957F2D)  # makes the split independent of the order


def mix64(z: Array) -> Array:
    """Scramble z (uint64), in place: the finaliser of splitmix64 (Steele, Lea and Flood 2014), a bijection."""
    t = np.empty_like(z)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(z, np.uint64(shift), out=t)
        z ^= t
        z *= np.uint64(factor)
    np.right_shift(z, np.uint64(31), out=t)
    z ^= t
    return z


def hash_rows(x: Array) -> Array:
    """Bytes x (N, width) uint8 -> hashes (N,): mix64 of the sum over 8-byte words of mix64(word ^ key of its place).

    Ten times faster than a call of a cryptographic hash for each narrow row, and as good for telling apart rows that
    nobody chose to collide.
    """
    n, width = x.shape
    words = -(-width // 8)
    keys = mix64(np.arange(1, words + 1, dtype=np.uint64) * GOLDEN)
    rows = max(1, min(n, CHUNK_WORDS // max(1, words)))
    padded = np.zeros((rows, 8 * words), np.uint8)
    out = np.empty(n, np.uint64)
    for at in range(0, n, rows):
        m = min(rows, n - at)
        padded[:m, :width] = x[at : at + m]
        z = padded.view(np.uint64)[:m] ^ keys
        out[at : at + m] = mix64(z).sum(axis=1, dtype=np.uint64)
    return mix64(out)


def hash_column(values: pa.Array) -> Array:
    """One hash for each value of a column without nulls; equal values have equal hashes whatever the batch."""
    kind = values.type
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind)):
        coded = values.dictionary_encode()
        digests = b"".join(blake2b(_raw(v), digest_size=8).digest() for v in coded.dictionary)
        hashes: Array = np.frombuffer(digests, "<u8").astype(np.uint64)[coded.indices.to_numpy()]
        return hashes
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        floats = numbers(values, np.float64) + 0.0  # -0.0 equals 0.0
        return mix64(floats.view(np.uint64))
    return mix64(numbers(values, np.int64).astype(np.uint64))


def _raw(value: pa.Scalar) -> bytes:
    buffer = value.as_buffer()
    return b"" if buffer is None else buffer.to_pybytes()


def combine(hashes: Sequence[Array]) -> Array:
    """One hash for each row from the hashes of its parts; the order of the parts matters."""
    h = hashes[0].copy()
    for part in hashes[1:]:
        h *= GOLDEN
        h += part
        mix64(h)
    return h


def keyed(key: Array, content: Array) -> Array:
    """The hash of rows that have a key: KEY_BITS of it, so that rows of one key stay together, then the content's."""
    rest = np.uint64((1 << (64 - KEY_BITS)) - 1)
    return (key & ~rest) | (content & rest)


def owner(h: Array, parts: int) -> Array:
    """The shard (N,) int64 of each row: shard r of P owns the hashes in [r/P, (r+1)/P) of 2^64."""
    return (((h >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)).astype(np.int64)


def in_validation(h: Array, fraction: float) -> Array:
    """Which rows (N,) bool belong to the validation split: about `fraction` of the keys, the same in every run."""
    lead = h >> np.uint64(64 - KEY_BITS)
    return np.asarray(mix64(lead ^ SPLIT) < np.uint64(int(fraction * 2.0**64)))
