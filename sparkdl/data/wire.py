"""Blocks of packed rows as bytes for a shuffle: small, for each byte is copied some ten times on its way through it."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa

from sparkdl.data.findings import Array

__all__ = ["from_wire", "to_wire"]

NARROW = ("uint8", "int16", "int32")  # by size; what integers are sent as where all of a block's fit


def to_wire(rows: pa.RecordBatch) -> bytes:
    """A self-describing Arrow stream, compressed, its features in the narrowest type of integers that holds them."""
    dtype, shape = _layout(rows)
    if dtype.kind in "iu" and dtype.itemsize > 1:
        x = _values(rows, dtype)
        low, high = x.min(), x.max()
        for name in NARROW:
            limits = np.iinfo(name)
            if np.dtype(name).itemsize < dtype.itemsize and limits.min <= low and high <= limits.max:
                rows = _with_features(rows, x.astype(name), shape)
                break
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as out:
        out.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_wire(data: pa.Buffer) -> pa.RecordBatch:
    """The rows that `to_wire` has sent, exactly."""
    rows = pa.ipc.open_stream(data).read_next_batch()
    dtype, shape = _layout(rows)
    sent = rows.schema.field("x").type.byte_width // shape
    if sent == dtype.itemsize:
        return rows
    name = next(name for name in NARROW if np.dtype(name).itemsize == sent)
    return _with_features(rows, _values(rows, np.dtype(name)).astype(dtype), shape)


def _layout(rows: pa.RecordBatch) -> tuple[np.dtype, int]:
    """The features' type as stored, and their number in a row."""
    metadata = rows.schema.field("x").metadata
    return np.dtype(metadata[b"dtype"].decode()), math.prod(json.loads(metadata[b"shape"]))


def _values(rows: pa.RecordBatch, dtype: np.dtype) -> Array:
    x = rows.column("x")
    width = x.type.byte_width
    return np.frombuffer(x.buffers()[1], np.uint8)[x.offset * width : (x.offset + len(x)) * width].view(dtype)


def _with_features(rows: pa.RecordBatch, x: Array, width: int) -> pa.RecordBatch:
    at = rows.schema.get_field_index("x")
    kind = pa.binary(width * x.itemsize)
    column = pa.FixedSizeBinaryArray.from_buffers(kind, rows.num_rows, [None, pa.py_buffer(x)])
    return rows.set_column(at, rows.schema.field("x").with_type(kind), column)
