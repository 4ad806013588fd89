"""The files that training reads: one worker's rows, memory-mapped, in the order of their hashes."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.data.findings import Array

__all__ = ["Handle", "Piece", "Rows", "Shard", "ShardMissing"]

RESIDENT_BYTES = 64 << 20  # of a file that may stay mapped in the process's memory


class ShardMissing(Exception):
    """A shard's file is not where its handle says, or is another one; the handle must be made anew."""


class Piece(NamedTuple):
    """One file: place, rows, size, and the sum of the row hashes modulo 2^64. No rows, no file."""

    path: str
    rows: int
    bytes: int
    checksum: int


class Handle(NamedTuple):
    """One worker's data: its training and validation rows, and what was learnt in passing (a `Stats` as JSON)."""

    part: int
    train: Piece
    valid: Piece
    stats: str


class Rows(NamedTuple):
    """Rows as stored: x (N, *shape), y (N, ...), w (N,) or None."""

    x: Array
    y: Array
    w: Array | None


class Shard:
    """One file of rows. Row i is the one with the i-th smallest hash.

    The file is memory-mapped, and rows are copied out of it. A file of at most RESIDENT_BYTES may stay in the process's
    memory; of a larger one no more than a record batch does: a shard may be larger than memory. Closing it releases the
    map.
    """

    def __init__(self, piece: Piece) -> None:
        self.rows = piece.rows
        self._path = piece.path
        self._map: mmap.mmap | None = None
        self._batches: list[dict[str, Any]] = []
        self._places: list[tuple[int, int]] = []  # each batch's start and length in the file, in whole pages
        hashes = self._open() if self.rows else np.empty(0, np.uint64)
        self._starts = np.cumsum([0, *(len(b["h"]) for b in self._batches)])
        checksum = int(hashes.sum(dtype=np.uint64))
        if (len(hashes), checksum) != (piece.rows, piece.checksum):
            raise ShardMissing(
                f"{piece.path} holds {len(hashes)} rows with checksum {checksum:x}; expected {piece.rows} with "
                f"{piece.checksum:x}"
            )
        self._order = np.argsort(hashes, kind="stable").astype(np.uint32 if self.rows < 2**32 else np.int64)

    @classmethod
    def open(cls, piece: Piece) -> Shard:
        """Map the file. Errors: ShardMissing where it is absent or not the one that was written."""
        return cls(piece)

    @property
    def hashes(self) -> Array:
        """The hashes of all rows (rows,) uint64, ascending."""
        h: Array = np.concatenate([np.empty(0, np.uint64), *(b["h"] for b in self._batches)])[self._order]
        return h

    def gather(self, index: Array) -> Rows:
        """The rows with these places (N,) in the order of hashes, copied."""
        if not self._batches:
            return Rows(np.empty(0), np.empty(0), None)
        place = self._order[index].astype(np.int64)
        by_place = np.argsort(place)
        bounds = np.searchsorted(place[by_place], self._starts)
        out = {name: _like(self._batches[0][name], len(place)) for name in self._batches[0] if name != "h"}
        for i, batch in enumerate(self._batches):
            slots = by_place[bounds[i] : bounds[i + 1]]
            if len(slots):
                rows = place[slots] - self._starts[i]
                for name, target in out.items():
                    target[slots] = _pick(batch[name], rows)
                self._release(i)
        return Rows(out["x"], out["y"], out.get("w"))

    def chunks(self, rows: int) -> Iterator[Rows]:
        """All rows, `rows` at a time, in the order of hashes: sums over them come out the same however they arrived."""
        for at in range(0, self.rows, rows):
            yield self.gather(np.arange(at, min(at + rows, self.rows)))

    def close(self) -> None:
        """Release the map; the shard has no rows afterwards."""
        self._batches.clear()
        self.rows = 0
        if self._map is not None:
            self._map.close()
            self._map = None

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Array:
        """Map the file and find its columns; returns the hashes in the order of the file."""
        try:
            with open(self._path, "rb") as f:
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            buffer = pa.py_buffer(self._map)
            reader = pa.ipc.open_file(buffer)
            hashes = []
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                self._batches.append({f.name: _view(f, batch.column(f.name)) for f in batch.schema})
                self._places.append(_place(batch, buffer.address))
                hashes.append(self._batches[i]["h"].copy())
                self._release(i)
        except (OSError, ValueError, pa.ArrowInvalid) as e:
            raise ShardMissing(f"{self._path}: {e}") from e
        return np.concatenate(hashes)

    def _release(self, i: int) -> None:
        """Of a large file, forget the pages of record batch i; they stay in the kernel's cache.

        Needed at once, for the kernel may map as much as a huge page around each row that is touched.
        """
        if self._map is not None and len(self._map) > RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, *self._places[i])


def _place(batch: pa.RecordBatch, base: int) -> tuple[int, int]:
    """The pages, counted from `base`, that hold the columns: (start, length) in bytes."""
    buffers = [b for column in batch.columns for b in column.buffers() if b is not None]
    start = min(b.address for b in buffers) - base
    stop = max(b.address + b.size for b in buffers) - base
    start -= start % mmap.PAGESIZE
    return start, stop - start


def _view(field: pa.Field, values: pa.Array) -> Any:
    """A column of a record batch as an array over the mapped file; strings stay an Arrow array."""
    if pa.types.is_string(values.type):
        return values
    if not pa.types.is_fixed_size_binary(values.type):
        return values.to_numpy()
    dtype, shape = (field.metadata[key].decode() for key in (b"dtype", b"shape"))
    size = len(values) * values.type.byte_width
    return np.frombuffer(values.buffers()[1].slice(0, size), dtype).reshape(len(values), *json.loads(shape))


def _like(column: Any, rows: int) -> Array:
    if isinstance(column, pa.Array):
        return np.empty(rows, object)
    return np.empty((rows, *column.shape[1:]), column.dtype)


def _pick(column: Any, rows: Array) -> Array:
    if isinstance(column, pa.Array):
        return np.asarray(column.take(pa.array(rows)).to_numpy(zero_copy_only=False))
    picked: Array = column[rows]
    return picked
