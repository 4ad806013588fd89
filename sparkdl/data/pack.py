"""From batches of a table to blocks of packed rows, each block owned by one shard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.data.columns import column, matrix, nulls, scalar
from sparkdl.data.findings import Array, Findings
from sparkdl.data.hashing import combine, hash_column, hash_rows, in_validation, keyed, owner
from sparkdl.data.schema import Field, Packing
from sparkdl.data.stats import Stats, complaint
from sparkdl.errors import DataError

__all__ = ["FLUSH_BYTES", "Block", "joined", "pack_batches", "packed_rows"]

FLUSH_BYTES = 8 << 20  # packed rows a task holds before it hands them on
FIRST_ROWS = 64  # rows looked at to learn the shape where none is declared


class Block(NamedTuple):
    """Packed rows of one shard and split; or, in place of rows, a `note`: the statistics of a whole task as JSON."""

    part: int
    valid: bool
    rows: pa.RecordBatch | None
    note: str | None = None


def pack_batches(
    batches: Iterable[pa.RecordBatch],
    packing: Packing,
    parts: int,
    place: int = 0,
    valid: bool | None = None,
    spare: int = 0,
) -> Iterator[Block]:
    """Check rows and pack them for `parts` shards, of which the first `spare` get none; the last block is the note.

    Packed rows have columns x (fixed-size bytes), y, w where there are weights, and h (uint64, the row's hash).
    place: number of the input partition, for messages. valid: the split of all rows; None leaves it to the packing.
    Memory: one input batch and about FLUSH_BYTES.
    """
    packer = _Packer(packing, place, valid)
    pending: list[tuple[pa.RecordBatch, Array]] = []
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, packer.piece_rows)
            at += piece.num_rows
            if (packed := packer.pack(piece)) is not None:
                rows, in_valid = packed
                shard = spare + owner(rows.column("h").to_numpy(), parts - spare)
                pending.append((rows, 2 * shard + in_valid))
            if sum(r.nbytes for r, _ in pending) >= FLUSH_BYTES:
                yield from _split(pending)
                pending.clear()
    if pending:
        yield from _split(pending)
    yield Block(place % parts, False, None, packer.stats.to_json())


def packed_rows(batch: pa.RecordBatch, packing: Packing, start: int = 0) -> tuple[Array, Array]:
    """Features for scoring: (x (M, *shape) in the stored dtype, usable (N,) bool marking the M rows it holds).

    start: number of the first row, for messages. Errors: DataError for faults that `handle_invalid` does not forgive.
    """
    found = Findings(batch.num_rows, start=start)
    x, field = matrix(packing.features, batch, found)
    text = complaint(found.found, batch.num_rows, int(found.bad.sum()), packing)
    if text is not None:
        raise DataError(text)
    x = x[~found.bad] if found.bad.any() else x
    return x.reshape(len(x), *(field.shape or ())), ~found.bad


class _Packer:
    """Packs pieces of one task's input; learns the shapes from the first rows where none are declared."""

    def __init__(self, packing: Packing, place: int, valid: bool | None) -> None:
        assert packing.label is not None
        self.spec, self.features, self.label = packing.spec, packing.features, packing.label
        self.stats = Stats()
        self._place, self._valid = place, valid

    @property
    def piece_rows(self) -> int:
        """Rows whose packed features take about FLUSH_BYTES."""
        if self.features.shape is None:
            return 1 if self.features.kind == "image" else FIRST_ROWS
        row_bytes = int(np.prod(self.features.shape)) * np.dtype(self.features.dtype).itemsize
        return max(1, FLUSH_BYTES // row_bytes)

    def pack(self, piece: pa.RecordBatch) -> tuple[pa.RecordBatch, Array] | None:
        """(usable rows, packed; which of them are validation rows), or None where no row is usable."""
        spec, found = self.spec, Findings(piece.num_rows, self._place, self.stats.rows)
        x, self.features = matrix(self.features, piece, found)
        y = self._target(piece, found)
        w = None if spec.weight is None else _weights(spec.weight, piece, found)
        for name in filter(None, (*spec.key, spec.valid_column)):
            found.add(name, "null", np.flatnonzero(nulls(piece.column(name))), "null")
        self.stats.add_findings(found)
        if found.bad.all():
            return None
        if found.bad.any():
            ok = pa.array(~found.bad)
            x, y, piece = x[~found.bad], y.filter(ok), piece.filter(ok)
            w = None if w is None else w.filter(ok)
        return self._assemble(piece, np.ascontiguousarray(x), y, w)

    def _target(self, piece: pa.RecordBatch, found: Findings) -> pa.Array:
        if self.label.kind not in ("list", "vector"):
            return scalar(self.label, piece, found)
        y, self.label = matrix(self.label, piece, found)
        return _fixed(y)

    def _assemble(
        self, piece: pa.RecordBatch, x: Array, y: pa.Array, w: pa.Array | None
    ) -> tuple[pa.RecordBatch, Array]:
        spec = self.spec
        h = _hash(spec.key, piece, x, y, w)
        if self._valid is not None:
            valid = np.full(len(x), self._valid)
        elif spec.valid_column is not None:
            valid = np.asarray(piece.column(spec.valid_column).to_numpy(zero_copy_only=False))
        else:
            valid = in_validation(h, spec.valid_fraction)
        self.stats.shapes.add((self.features.shape or (), self.label.shape or ()))
        if spec.target == "classes":
            self.stats.add_labels(y.cast(pa.bool_()) if self.label.kind == "bool" else y)
        if spec.standardize:
            self.stats.add_moments(x[~valid])
        columns = [_described("x", _fixed(x), self.features), _described("y", y, self.label)]
        columns += [] if w is None else [(pa.field("w", pa.float64()), w)]
        columns += [(pa.field("h", pa.uint64()), pa.array(h))]
        return pa.RecordBatch.from_arrays([a for _, a in columns], schema=pa.schema([f for f, _ in columns])), valid


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as a single one."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _weights(name: str, piece: pa.RecordBatch, found: Findings) -> pa.Array:
    w = scalar(Field((name,), "float", "float64"), piece, found)
    negative = np.flatnonzero(w.to_numpy() < 0)
    if len(negative):
        found.add(name, "negative weight", negative, w[int(negative[0])].as_py())
    return w


def _hash(key: tuple[str, ...], piece: pa.RecordBatch, x: Array, y: pa.Array, w: pa.Array | None) -> Array:
    content = [hash_rows(x.view(np.uint8)), hash_column(y), *([] if w is None else [hash_column(w)])]
    if not key:
        return combine(content)
    return keyed(combine([hash_column(column(piece, name)) for name in key]), combine(content))


def _fixed(x: Array) -> pa.Array:
    """Rows of x (N, width) as fixed-size bytes, without a copy where x is contiguous."""
    x = np.ascontiguousarray(x)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(x.shape[1] * x.itemsize), len(x), [None, pa.py_buffer(x)])


def _described(name: str, values: pa.Array, field: Field) -> tuple[pa.Field, pa.Array]:
    """A column that says itself what its bytes mean."""
    meaning = {"dtype": field.dtype, "shape": json.dumps(field.shape)}
    return pa.field(name, values.type, metadata=meaning), values


def _split(pending: list[tuple[pa.RecordBatch, Array]]) -> Iterator[Block]:
    """Packed rows as one block for each shard and split; group = 2 * shard + split."""
    rows = joined([r for r, _ in pending])
    group = np.concatenate([g for _, g in pending])
    if (group != group[0]).any():
        order = np.argsort(group, kind="stable")
        rows, group = rows.take(pa.array(order)), group[order]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    for at, stop in zip(starts, [*starts[1:], len(group)], strict=True):
        yield Block(int(group[at]) // 2, bool(group[at] % 2), rows.slice(at, stop - at))
