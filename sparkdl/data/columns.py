"""Arrow columns as matrices: one row of equal length for each row of the table, checked on the way."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.findings import Array, Findings
from sparkdl.data.images import decode, unpack
from sparkdl.data.kinds import is_image, is_list, is_text
from sparkdl.data.schema import Field, Shape

__all__ = ["column", "matrix", "nulls", "numbers", "scalar"]


def column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column of a batch, its dictionary resolved."""
    values = batch.column(name)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def numbers(values: pa.Array, dtype: Any) -> Array:
    """A column of numbers as (N,) of dtype; nulls become 0. No copy where types agree and there are no nulls."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which is then found
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)


def matrix(field: Field, batch: pa.RecordBatch, found: Findings) -> tuple[Array, Field]:
    """The field of every row: x (N, width) of the field's dtype, and the field with its shape known.

    Faults go to `found`; rows that it marks as bad hold zeros. Without a declared shape, that of the first usable row
    counts.
    """
    if field.kind == "scalars":
        return _scalars(field, batch, found), field
    values = column(batch, field.name)
    if field.kind == "image":
        return _images(field, values, found)
    read = {"list": _lists, "vector": _vectors, "binary": _binary}[field.kind]
    x = read(field, values, found)
    return x, replace(field, shape=field.shape or ((x.shape[1],) if x.shape[1] else None))


def scalar(field: Field, batch: pa.RecordBatch, found: Findings) -> pa.Array:
    """A column of one value a row, as int64, float64 or string without nulls; for labels and weights."""
    values = column(batch, field.name)
    null = nulls(values)
    found.add(field.name, "null", np.flatnonzero(null), "null")
    if is_text(values.type):
        return values.cast(pa.string()).fill_null("")
    y = numbers(values, field.dtype)
    _check_finite(field, field.name, y[:, None], values, found)
    return pa.array(y + 0.0 if y.dtype.kind == "f" else y)  # -0.0 equals 0.0


def _scalars(field: Field, batch: pa.RecordBatch, found: Findings) -> Array:
    x = np.empty((batch.num_rows, len(field.columns)), field.dtype)
    for j, name in enumerate(field.columns):
        values = column(batch, name)
        x[:, j] = numbers(values, field.dtype)
        _check_finite(field, name, x[:, j : j + 1], values, found)
        null = np.flatnonzero(nulls(values))
        found.add(name, "null", null, "null", field.keep)
        if field.keep:
            x[null, j] = np.nan
    return x


def _lists(field: Field, values: pa.Array, found: Findings) -> Array:
    """Lists, level by level: rows with a null or a wrong length drop out, the rest is flattened."""
    arr, rows = _as_lists(values), np.arange(len(values))
    sizes = _sizes(field, arr)
    for level, size in enumerate(sizes):
        null, length = nulls(arr), np.diff(arr.offsets.to_numpy())
        wrong = ~null & ((length != size) | (size == 0))
        inner = math.prod(sizes[:level])
        bad = _rows_of(null, rows, inner)
        found.add(field.name, "null" if level == 0 else "null element", bad, "null", field.keep and level == 0)
        bad = _rows_of(wrong, rows, inner)
        if len(bad):
            text = f"{length[np.argmax(wrong)]} elements" + (f" along axis {level}" if len(sizes) > 1 else "")
            found.add(field.name, "wrong length", bad, f"{text}, expected {size}")
        fine = ~(null | wrong).reshape(len(rows), inner).any(axis=1)
        if not fine.all():
            rows, arr = rows[fine], arr.filter(pa.array(np.repeat(fine, inner)))
        arr = arr.flatten()
    return _elements(field, values, arr, rows, math.prod(sizes), found)


def _elements(field: Field, values: pa.Array, flat: pa.Array, rows: Array, width: int, found: Findings) -> Array:
    """Flattened elements of the rows `rows` -> x (N, width)."""
    x = numbers(flat, field.dtype).reshape(len(rows), width)
    _check_finite(field, field.name, x, values, found, rows)
    if flat.null_count:
        null = nulls(flat).reshape(x.shape)
        bad = _rows_of(null, rows, width)
        found.add(field.name, "null element", bad, values[int(bad[0])].as_py(), field.keep)
        if field.keep:
            x = np.where(null, np.nan, x).astype(field.dtype)
    return _spread(field, x, rows, len(values))


def _vectors(field: Field, values: pa.Array, found: Findings) -> Array:
    """Spark ML's vectors: struct (type 1 dense or 0 sparse, size, indices, values)."""
    kind, size, indices, elements = values.flatten()
    null, dense = nulls(values), numbers(kind, np.int8) == 1
    length = np.where(dense, numbers(pc.list_value_length(elements), np.int64), numbers(size, np.int64))
    width = math.prod(field.shape) if field.shape else int(next(iter(length[~null & (length > 0)]), 0))
    wrong = ~null & ((length != width) | (width == 0))
    found.add(field.name, "null", np.flatnonzero(null), "null", field.keep)
    if wrong.any():
        text = f"{length[np.argmax(wrong)]} elements, expected {width}"
        found.add(field.name, "wrong length", np.flatnonzero(wrong), text)
    rows = np.flatnonzero(~null & ~wrong)
    if dense[rows].all():
        fine = elements if len(rows) == len(values) else elements.take(pa.array(rows))
        return _elements(field, values, fine.flatten(), rows, width, found)
    x = np.zeros((len(values), width), field.dtype)
    full, thin = rows[dense[rows]], rows[~dense[rows]]
    x[full] = numbers(elements.take(pa.array(full)).flatten(), field.dtype).reshape(len(full), width)
    given = elements.take(pa.array(thin))
    row = np.repeat(thin, numbers(pc.list_value_length(given), np.int64))
    col = numbers(indices.take(pa.array(thin)).flatten(), np.int64)
    inside = (col >= 0) & (col < width)
    found.add(field.name, "index outside the vector", np.unique(row[~inside]), f"size {width}")
    x[row[inside], col[inside]] = numbers(given.flatten(), field.dtype)[inside]
    _check_finite(field, field.name, x, values, found)
    x[null] = np.nan if field.keep else 0
    return x


def _binary(field: Field, values: pa.Array, found: Findings) -> Array:
    """Raw bytes, one element each."""
    arr, rows = values.cast(pa.large_binary()), np.arange(len(values))
    null, length = nulls(arr), numbers(pc.binary_length(arr), np.int64)
    width = math.prod(field.shape) if field.shape else int(next(iter(length[length > 0]), 0))
    wrong = ~null & ((length != width) | (width == 0))
    found.add(field.name, "null", np.flatnonzero(null), "null")
    if wrong.any():
        text = f"{length[np.argmax(wrong)]} bytes, expected {width}"
        found.add(field.name, "wrong length", np.flatnonzero(wrong), text)
    fine = ~(null | wrong)
    if not fine.all():
        rows, arr = rows[fine], arr.filter(pa.array(fine))
    if len(rows) == 0:
        return np.zeros((len(values), width), np.uint8)
    _, offsets, data = arr.buffers()
    first = int(np.frombuffer(offsets, np.int64)[arr.offset])
    x = np.frombuffer(data, np.uint8, len(rows) * width, first).reshape(len(rows), width)
    return _spread(field, x, rows, len(values))


def _images(field: Field, values: pa.Array, found: Findings) -> tuple[Array, Field]:
    found.add(field.name, "null", np.flatnonzero(nulls(values)), "null")
    shape, x = field.shape, np.zeros((len(values), math.prod(field.shape or (0,))), np.uint8)
    size = None if shape is None else (shape[0], shape[1])
    read: Any = unpack if is_image(values.type) else decode
    for row in map(int, np.flatnonzero(~found.bad)):
        data = values[row].as_py()
        try:
            pixels = read(data, field.channels, size, field.resize)
        except (TypeError, ValueError) as e:
            origin = f"{len(data)} bytes" if isinstance(data, bytes) else data.get("origin", "an image")
            found.add(field.name, "not an image", np.array([row]), f"{origin}: {e}")
            continue
        if shape is None:
            shape, x = pixels.shape, np.zeros((len(values), pixels.size), np.uint8)
        if pixels.shape == shape:
            x[row] = pixels.reshape(-1)
        else:
            text = f"height, width, channels {pixels.shape}, expected {shape}"
            found.add(field.name, "wrong size", np.array([row]), text)
    return x, replace(field, shape=shape)


def _sizes(field: Field, arr: pa.Array) -> Shape:
    """Expected lengths of the lists at each level."""
    if field.shape is None:
        length = np.diff(arr.offsets.to_numpy())[~nulls(arr)]
        return (int(next(iter(length[length > 0]), 0)),)
    return field.shape if field.depth > 1 else (math.prod(field.shape),)


def _as_lists(values: pa.Array) -> pa.Array:
    """Any of Arrow's list layouts as plain lists, at all levels."""

    def listed(kind: pa.DataType) -> pa.DataType:
        return pa.list_(listed(kind.value_type)) if is_list(kind) else kind

    target = listed(values.type)
    return values if values.type == target else values.cast(target)


def _spread(field: Field, x: Array, rows: Array, n: int) -> Array:
    """x of some rows -> x of all n: the others hold NaN where nulls are kept, otherwise 0."""
    if len(rows) == n:
        return x
    full = np.full((n, x.shape[1]), np.nan if field.keep else 0, field.dtype)
    full[rows] = x
    return full


def _check_finite(
    field: Field, name: str, x: Array, values: pa.Array, found: Findings, rows: Array | None = None
) -> None:
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return
    for reason, hit in (("NaN", np.isnan(x)), ("infinite", np.isinf(x))):
        bad = np.flatnonzero(hit.any(axis=1))
        if len(bad):
            bad = bad if rows is None else rows[bad]
            found.add(name, reason, bad, values[int(bad[0])].as_py(), field.keep)


def _rows_of(mask: Array, rows: Array, inner: int) -> Array:
    """The rows that have a marked element, `inner` elements for each row."""
    if not mask.any():
        return rows[:0]
    hit: Array = rows[mask.reshape(len(rows), inner).any(axis=1)]
    return hit


def nulls(values: pa.Array) -> Array:
    """Which values are null, (N,) bool."""
    if values.null_count == 0:
        return np.zeros(len(values), bool)
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))
