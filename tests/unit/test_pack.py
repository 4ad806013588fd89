"""Rows of any column type become exact arrays with stable hashes, or a fault that names column, reason and row."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import math
import re
import statistics
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data import DataSpec, packed_rows, resolve
from sparkdl.data.hashing import combine, hash_column, hash_rows, in_validation, keyed, mix64, owner
from sparkdl.data.moments import Moments
from sparkdl.data.pack import pack_batches
from sparkdl.data.stats import Stats, complaint
from sparkdl.data.wire import from_wire, to_wire
from sparkdl.errors import DataError

VECTOR = pa.struct([("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())),
                    ("values", pa.list_(pa.float64()))])  # fmt: skip
SPEC = DataSpec(("x",), "y")


def dense(*values):
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size, items):
    return {"type": 0, "size": size, "indices": list(items), "values": list(items.values())}


def batch(x, kind=None, y=None, **more):
    """Columns x and y; labels 0, 1, 0, 1, ... where none are given."""
    x = pa.array(x, kind)
    y = [i % 2 for i in range(len(x))] if y is None else y
    return pa.RecordBatch.from_pydict({"x": x, "y": y, **more})


def pack(data, spec=SPEC, parts=1, **options):
    """(blocks of rows, statistics) of one batch or several."""
    batches = data if isinstance(data, list) else [data]
    blocks = list(pack_batches(batches, resolve(spec, batches[0].schema), parts, **options))
    assert [b.note is None for b in blocks] == [True] * (len(blocks) - 1) + [False]
    return blocks[:-1], Stats.from_json(blocks[-1].note)


def arrays(blocks):
    """x (N, *shape), y, h of all blocks, in the order in which they were packed."""
    parts = [b.rows for b in blocks]
    meta = {name: parts[0].schema.field(name).metadata for name in ("x", "y")}
    x = np.concatenate([np.array([np.frombuffer(v, meta["x"][b"dtype"].decode()) for v in p.column("x").to_pylist()])
                        for p in parts])  # fmt: skip
    y = [v for p in parts for v in p.column("y").to_pylist()]
    if isinstance(y[0], bytes):
        y = [np.frombuffer(v, meta["y"][b"dtype"].decode()).tolist() for v in y]
    return (
        x.reshape(len(x), *json.loads(meta["x"][b"shape"])),
        y,
        np.concatenate([p.column("h").to_numpy() for p in parts]),
    )


def found(stats):
    return {key: finding.rows for key, finding in stats.found.items()}


# The values of every kind of column.

KINDS = {
    "int8 list": (pa.list_(pa.int8()), [[1, -2], [3, 4]], "int8"),
    "uint8 list": (pa.list_(pa.uint8()), [[1, 255], [3, 4]], "int16"),  # Spark reads unsigned types as wider ones
    "uint16 list": (pa.list_(pa.uint16()), [[1, 65535], [3, 4]], "int32"),
    "uint32 list": (pa.list_(pa.uint32()), [[1, 2**32 - 1], [3, 4]], "int64"),
    "int64 list": (pa.list_(pa.int64()), [[2**53 + 1, -2], [3, 4]], "int64"),
    "bool list": (pa.list_(pa.bool_()), [[True, False], [False, True]], "uint8"),
    "half list": (pa.list_(pa.float16()), [[0.5, 1.5], [2.0, 4.0]], "float32"),
    "float list": (pa.list_(pa.float32()), [[0.5, 1.5], [2.0, 4.0]], "float32"),
    "double list": (pa.list_(pa.float64()), [[0.2, 0.7], [2.0, 4.0]], "float32"),
    "decimal list": (pa.list_(pa.decimal128(5, 2)), [[decimal.Decimal("0.25"), decimal.Decimal(2)]] * 2, "float64"),
    "large list": (pa.large_list(pa.float32()), [[0.5, 1.5], [2.0, 4.0]], "float32"),
    "fixed list": (pa.list_(pa.float32(), 2), [[0.5, 1.5], [2.0, 4.0]], "float32"),
    "bytes": (pa.binary(), [b"\x00\xff", b"\x03\x04"], "uint8"),
    "fixed bytes": (pa.binary(2), [b"\x00\xff", b"\x03\x04"], "uint8"),
    "int": (pa.int32(), [7, -9], "int64"),
    "bool": (pa.bool_(), [True, False], "int64"),
    "double": (pa.float64(), [0.2, 0.7], "float64"),
    "decimal": (pa.decimal128(5, 2), [decimal.Decimal("0.25"), decimal.Decimal(2)], "float64"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("sliced", [False, True])
def test_values_are_stored_exactly(name, sliced):
    kind, values, dtype = KINDS[name]
    data = batch(values * 3, kind)
    if sliced:
        data, values = data.slice(1, 4), (values * 3)[1:5]
    else:
        values = values * 3
    x, y, _ = arrays(pack(data)[0])
    expected = np.array([list(v) if isinstance(v, (list, bytes)) else [float(v) if dtype == "float64" else v]
                         for v in values], dtype)  # fmt: skip
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, expected)
    assert y == data.column("y").to_pylist()


@pytest.mark.parametrize(
    "rows",
    [
        [dense(0.0, 1.5, 0.0), dense(2.0, 0.0, 0.5)],
        [sparse(3, {1: 1.5}), sparse(3, {0: 2.0, 2: 0.5})],
        [dense(0.0, 1.5, 0.0), sparse(3, {0: 2.0, 2: 0.5})],
        [sparse(3, {1: 1.5}), dense(2.0, 0.0, 0.5)],
    ],
)
def test_dense_and_sparse_vectors_are_the_same(rows):
    same = pack(batch([dense(0.0, 1.5, 0.0), dense(2.0, 0.0, 0.5)], VECTOR))[0]
    for data in (batch(rows, VECTOR), batch([rows[1], rows[0], *rows, rows[0]], VECTOR).slice(2, 2)):
        x, _, h = arrays(pack(data)[0])
        np.testing.assert_array_equal(x, np.array([[0, 1.5, 0], [2, 0, 0.5]], np.float32))
        assert h.tolist() == arrays(same)[2].tolist()


def test_scalar_columns_stand_side_by_side():
    table = pa.RecordBatch.from_pydict(
        {"a": [1, 2**53 + 1], "b": pa.array([True, False]), "c": pa.array([3, 4], pa.uint8()), "y": [0, 1]}
    )
    x, _, _ = arrays(pack(table, DataSpec(("a", "b", "c"), "y"))[0])
    assert x.dtype == np.int64
    assert x.tolist() == [[1, 1, 3], [2**53 + 1, 0, 4]]
    mixed = table.append_column("d", pa.array([0.2, 0.7]))
    x, _, _ = arrays(pack(mixed, DataSpec(("d", "c", "b"), "y"))[0])
    assert x.dtype == np.float64
    assert x.tolist() == [[0.2, 3, 1], [0.7, 4, 0]]


def test_nested_lists_with_a_declared_shape():
    values = np.arange(2 * 2 * 3 * 4).reshape(2, 2, 3, 4)
    kind = pa.list_(pa.list_(pa.list_(pa.float64())))
    x, _, _ = arrays(pack(batch(values.tolist(), kind), replace(SPEC, shape=(2, 3, 4)))[0])
    np.testing.assert_array_equal(x, values.astype(np.float32))
    flat, _, _ = arrays(pack(batch(values.reshape(2, 24).tolist()), replace(SPEC, shape=(2, 3, 4)))[0])
    np.testing.assert_array_equal(flat, values)


def test_float64_training_keeps_doubles():
    x, _, _ = arrays(pack(batch([[0.1], [0.2]]), replace(SPEC, dtype="float64"))[0])
    assert x.tolist() == [[0.1], [0.2]]
    assert arrays(pack(batch([dense(0.1), sparse(1, {0: 0.2})], VECTOR), replace(SPEC, dtype="float64"))[0])[
        0
    ].tolist() == [[0.1], [0.2]]


def png(pixels, form="PNG"):
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(pixels).save(out, form)
    return out.getvalue()


IMAGES = replace(SPEC, image="encoded")


def test_images_are_decoded():
    colour = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    x, _, _ = arrays(pack(batch([png(colour), png(255 - colour)]), IMAGES)[0])
    assert x.dtype == np.uint8
    np.testing.assert_array_equal(x, [colour, 255 - colour])
    grey = colour[..., 0]
    np.testing.assert_array_equal(arrays(pack(batch([png(grey)]), IMAGES)[0])[0], grey[None, ..., None])
    x = arrays(pack(batch([png(grey), png(colour)]), replace(IMAGES, channels=3))[0])[0]
    np.testing.assert_array_equal(x, [np.repeat(grey[..., None], 3, 2), colour])
    x = arrays(pack(batch([png(grey)]), replace(IMAGES, shape=(4, 5, 3)))[0])[0]  # the shape says the channels
    assert x.shape == (1, 4, 5, 3)


def test_images_are_brought_to_one_size():
    large, small = np.full((8, 12, 3), 200, np.uint8), np.full((2, 2, 3), 50, np.uint8)
    for how in ("stretch", "crop"):
        x, _, _ = arrays(pack(batch([png(large), png(small)]), replace(IMAGES, shape=(4, 5, 3), resize=how))[0])
        np.testing.assert_array_equal(x, [np.full((4, 5, 3), 200), np.full((4, 5, 3), 50)])


def test_images_of_spark_are_unpacked():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    good = {"origin": "a.png", "height": 4, "width": 5, "nChannels": 3, "mode": 16, "data": pixels[..., ::-1].tobytes()}
    kind = pa.struct([("origin", pa.string()), *((n, pa.int32()) for n in ("height", "width", "nChannels", "mode"))])
    kind = pa.struct([*kind, ("data", pa.binary())])
    values = pa.array([good, good | {"mode": -1}, None, good | {"data": None}], kind)
    table = pa.record_batch({"x": values, "y": pa.array([0, 1, 0, 1], pa.int32())})
    shards, stats = pack(table, replace(IMAGES, image="spark"))
    np.testing.assert_array_equal(arrays(shards)[0], [pixels])
    assert found(stats) == {("x", "not an image"): 2, ("x", "null"): 1}
    assert stats.found["x", "not an image"].text.startswith("a.png: not an image of 8 bits: mode -1")


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ({"shape": (4, 5, 3)}, 'Bring all images to data.shape with data.resize = "crop" or "stretch"'),
        ({}, r"say with data.shape which size is right.* data.resize = .* data.channels"),
        ({"shape": (4, 5, 3), "handle_invalid": "keep"}, 'data.resize = "crop"'),
    ],
)
def test_images_of_other_sizes_have_their_remedy(spec, remedy):
    packing = resolve(replace(IMAGES, **spec), batch([b""]).schema)
    good = np.zeros((4, 5, 3), np.uint8)
    _, stats = pack(batch([png(good), png(good[:2])]), packing.spec)
    text = complaint(stats.found, stats.rows, stats.dropped, packing)
    assert re.search(remedy, text)


def test_broken_and_odd_images_are_faults():
    good = np.zeros((4, 5, 3), np.uint8)
    data = batch([png(good), b"no image", png(good)[:-30], None, png(good[:2])])
    _, stats = pack(data, IMAGES)
    assert found(stats) == {("x", "not an image"): 2, ("x", "null"): 1, ("x", "wrong size"): 1}
    assert stats.found["x", "wrong size"].text == "height, width, channels (2, 5, 3), expected (4, 5, 3)"
    assert stats.dropped == 4


LABELS = {
    "int": (pa.int32(), [3, -1], "int64"),
    "long": (pa.int64(), [2**53 + 1, 0], "int64"),
    "bool": (pa.bool_(), [True, False], "int64"),
    "double": (pa.float64(), [0.5, -0.0], "double"),
    "string": (pa.string(), ["b", "é"], "string"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["b", "a"], "string"),
}


@pytest.mark.parametrize("name", LABELS)
def test_class_labels_keep_type_and_value(name):
    kind, values, stored = LABELS[name]
    blocks, stats = pack(batch([[1.0], [2.0]], y=pa.array(values, kind)))
    assert str(blocks[0].rows.schema.field("y").type) == stored
    assert arrays(blocks)[1] == values
    assert stats.labels == set(values)
    assert {type(v) for v in stats.labels} == {type(v) for v in values}


def test_values_as_targets():
    values = replace(SPEC, target="values")
    assert arrays(pack(batch([[1.0], [2.0]], y=pa.array([1, 2])), values)[0])[1] == [1.0, 2.0]
    blocks, stats = pack(batch([[1.0], [2.0]], y=[[0.1, 1.0], [2.0, 3.0]]), values)
    assert arrays(blocks)[1] == [[0.1, 1.0], [2.0, 3.0]]
    assert stats.shapes == {((1,), (2,))}
    assert arrays(pack(batch([[1.0]], y=pa.array([sparse(3, {2: 0.1})], VECTOR)), values)[0])[1] == [[0.0, 0.0, 0.1]]


# Faults.

FAULTS = {
    "null row": ([[1.0], None], None, ("x", "null"), "null"),
    "null element": ([[1.0, 2.0], [None, 3.0]], None, ("x", "null element"), "[None, 3.0]"),
    "NaN": ([[1.0], [math.nan]], None, ("x", "NaN"), "[nan]"),
    "inf": ([[1.0], [-math.inf]], None, ("x", "infinite"), "[-inf]"),
    "overflow": ([[1.0], [1e39]], None, ("x", "infinite"), "[1e+39]"),  # beyond float32
    "ragged": ([[1.0, 2.0], [3.0]], None, ("x", "wrong length"), "1 elements, expected 2"),
    "empty": ([[1.0], []], None, ("x", "wrong length"), "0 elements, expected 1"),
    "bytes": ([b"ab", b"abc"], None, ("x", "wrong length"), "3 bytes, expected 2"),
    "null bytes": ([b"ab", None], None, ("x", "null"), "null"),
    "null scalar": ([1, None], None, ("x", "null"), "null"),
    "NaN scalar": ([1.0, math.nan], None, ("x", "NaN"), "nan"),
    "null vector": ([dense(1.0), None], VECTOR, ("x", "null"), "null"),
    "NaN vector": ([sparse(2, {0: 1.0}), sparse(2, {1: math.nan})], VECTOR, ("x", "NaN"), None),
    "ragged vector": ([dense(1.0), sparse(2, {0: 1.0})], VECTOR, ("x", "wrong length"), "2 elements, expected 1"),
    "bad index": ([sparse(2, {0: 1.0}), sparse(2, {2: 1.0})], VECTOR, ("x", "index outside the vector"), "size 2"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_and_their_rows_left_out(name):
    values, kind, key, text = FAULTS[name]
    blocks, stats = pack([batch(values, kind), batch(values[:1], kind)], place=3)
    assert found(stats) == {key: 1}
    assert (stats.rows, stats.dropped) == (3, 1)
    assert stats.found[key][1:3] == (3, 1)  # partition, row
    assert text is None or stats.found[key].text == text
    x, y, _ = arrays(blocks)
    assert len(x) == 2
    assert (x[0] == x[1]).all()
    assert y == [0, 0]


def test_a_ragged_level_of_nested_lists_is_found():
    kind = pa.list_(pa.list_(pa.int16()))
    good = [[1, 2, 3], [4, 5, 6]]
    rows = [good, [[1, 2, 3], [4, 5]], [[1, 2, 3]], [[1, 2, 3], None], [[1, 2, 3], [4, None, 6]], None, good]
    blocks, stats = pack(batch(rows, kind), replace(SPEC, shape=(2, 3)))
    assert found(stats) == {("x", "wrong length"): 2, ("x", "null element"): 2, ("x", "null"): 1}
    assert stats.dropped == 5
    assert {key: finding.row for key, finding in stats.found.items()} == {
        ("x", "wrong length"): 1,  # the outer length of row 2 is seen first, that of row 1 comes before it
        ("x", "null element"): 3,
        ("x", "null"): 5,
    }
    np.testing.assert_array_equal(arrays(blocks)[0], [good, good])


def test_labels_weights_keys_and_flags_are_checked():
    spec = DataSpec(("x",), "y", "w", ("k",), valid_column="v")
    data = batch(
        [[1.0]] * 7,
        y=pa.array([0, None, 1, 1, 1, 0, 1]),
        w=pa.array([1.0, 1.0, None, -1.0, math.nan, 1.0, 1.0]),
        k=pa.array(["a", "b", "c", "d", "e", None, "g"]),
        v=pa.array([True, False, False, False, False, False, None]),
    )
    blocks, stats = pack(data, spec)
    faults = [("y", "null"), ("w", "null"), ("w", "negative weight"), ("w", "NaN"), ("k", "null"), ("v", "null")]
    assert found(stats) == dict.fromkeys(faults, 1)
    assert [(b.valid, b.rows.num_rows, b.rows.column("w").to_pylist()) for b in blocks] == [(True, 1, [1.0])]
    _, stats = pack(batch([[1.0]] * 3, y=[0.5, math.nan, math.inf]))
    assert found(stats) == {("y", "NaN"): 1, ("y", "infinite"): 1}


def test_null_features_kept_as_nan():
    keep = replace(SPEC, handle_invalid="keep", shape=(2,))
    x, _, _ = arrays(pack(batch([[1.0, None], None, [math.nan, math.inf]]), keep)[0])
    np.testing.assert_array_equal(x, np.array([[1, np.nan], [np.nan, np.nan], [np.nan, np.inf]], np.float32))
    x, _, _ = arrays(pack(batch([[1, None], [2**24 + 1, 3]], pa.list_(pa.int32())), keep)[0])
    assert x.dtype == np.float64  # which holds every int32
    np.testing.assert_array_equal(x, [[1, np.nan], [2**24 + 1, 3]])
    x, _, _ = arrays(pack(batch([dense(1.0, 2.0), None, sparse(2, {0: 3.0})], VECTOR), keep)[0])
    np.testing.assert_array_equal(x, [[1, 2], [np.nan, np.nan], [3, 0]])
    x, _, _ = arrays(pack(batch([1, None]), replace(keep, shape=None))[0])
    np.testing.assert_array_equal(x, [[1], [np.nan]])
    blocks, stats = pack(batch([[1.0, 2.0], [1.0]], y=[None, 1]), keep)
    assert blocks == []
    assert found(stats) == {("y", "null"): 1, ("x", "wrong length"): 1}


@pytest.mark.parametrize(
    ("policy", "shape", "values", "complains"),
    [
        ("error", (1,), [[1.0], None], True),
        ("error", (1,), [[1.0], [2.0]], False),
        ("skip", (1,), [[1.0], None, [math.nan], [1.0, 2.0]], False),
        ("skip", None, [[1.0], None], False),
        ("skip", None, [[1.0], [1.0, 2.0]], True),  # which of two lengths is right?
        ("keep", (1,), [[1.0], None, [math.nan], [None]], False),
        ("keep", (1,), [[1.0], [1.0, 2.0]], True),
    ],
)
def test_which_faults_a_policy_forgives(policy, shape, values, complains):
    spec = replace(SPEC, handle_invalid=policy, shape=shape)
    data = batch(values, pa.list_(pa.float64()))
    _, stats = pack(data, spec)
    text = complaint(stats.found, stats.rows, stats.dropped, resolve(spec, data.schema))
    assert (text is not None) is complains
    if complains and policy != "keep":
        assert "column 'x': " in text
        assert "partition 0, row 1" in text
    scoring = resolve(spec.for_scoring(), data.schema)
    if complains:
        with pytest.raises(DataError, match="column 'x'"):
            packed_rows(data, scoring)
    else:
        packed_rows(data, scoring)


def test_the_complaint_counts_and_gives_the_first_example():
    data = [batch([[1.0, 2.0], [1.0, math.nan]]), batch([None, [math.nan, 1.0]], pa.list_(pa.float64()))]
    _, stats = pack(data, place=2)
    text = complaint(stats.found, stats.rows, stats.dropped, resolve(SPEC, data[0].schema))
    assert text == (
        "3 of 4 rows cannot be used (column 'x': NaN in 2; column 'x': null in 1). The first: partition 2, row 1, "
        "column 'x': [1.0, nan]. Mend the data, or leave such rows out with data.handle_invalid = \"skip\"."
    )


def test_scoring_reads_features_only():
    data = batch([[1.0, 2.0], None, [3.0, 4.0]])
    spec = replace(SPEC, handle_invalid="skip", shape=(2, 1)).for_scoring()
    assert spec.columns == ("x",)
    x, usable = packed_rows(data.select(["x"]), resolve(spec, data.schema))
    assert x.tolist() == [[[1.0], [2.0]], [[3.0], [4.0]]]
    assert usable.tolist() == [True, False, True]


# Hashes, ownership, splits.


def splitmix(z):
    """The finaliser of splitmix64 in Python's integers."""
    mask = 2**64 - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_mix64_is_splitmix64():
    # The generator's published first outputs for seed 1234567 are mix(seed + k * golden).
    golden, first = 0x9E3779B97F4A7C15, [6457827717110365317, 3203168211198807973, 9817491932198370423]
    z = np.array([(1234567 + k * golden) % 2**64 for k in (1, 2, 3)], np.uint64)
    assert mix64(z.copy()).tolist() == first == [splitmix(int(v)) for v in z]


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64, 1000])
def test_row_hashes_by_hand(width):
    x = np.random.default_rng(width).integers(0, 256, (300, width), np.uint8)
    keys = [splitmix((j + 1) * 0x9E3779B97F4A7C15 % 2**64) for j in range(-(-width // 8))]
    for row, h in zip(x[::37], hash_rows(x)[::37], strict=True):
        words = row.tobytes().ljust(8 * len(keys), b"\0")
        total = sum(splitmix(int.from_bytes(words[8 * j : 8 * j + 8], "little") ^ k) for j, k in enumerate(keys))
        assert h == splitmix(total % 2**64)


def test_hashes_tell_rows_apart():
    """Patterns that defeat weaker mixes: single bits, pairs of signs, swaps."""
    base = np.random.default_rng(0).standard_normal(16)
    rows = [base, -base, base[::-1]]
    rows += [np.where(np.isin(np.arange(16), (i, j)), -base, base) for i in range(16) for j in range(i)]
    bits = np.frombuffer(base.tobytes(), np.uint8)
    flipped = [bits ^ np.eye(128, dtype=np.uint8)[i] * np.uint8(1 << b) for i in range(128) for b in range(8)]
    x = np.concatenate([np.array(rows).view(np.uint8), np.array(flipped)])
    assert len(np.unique(hash_rows(x))) == len(x)
    h = hash_rows(np.arange(2**16, dtype=np.uint32)[:, None].view(np.uint8))
    assert len(np.unique(h)) == 2**16
    ones = [np.mean((h >> np.uint64(b)) & np.uint64(1)) for b in range(64)]
    assert np.abs(np.array(ones) - 0.5).max() < 5 * 0.5 / 2**8  # five standard deviations of a fair coin


def test_column_hashes_depend_on_values_only():
    day, noon = datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 12)
    for kind, values in [
        (pa.int32(), [1, 2, 1]),
        (pa.float64(), [0.5, -0.5, 0.5]),
        (pa.string(), ["a", "é", "a"]),
        (pa.bool_(), [True, False, True]),
        (pa.date32(), [day, datetime.date(2024, 1, 2), day]),
        (
            pa.timestamp("us"),
            [noon, datetime.datetime(2024, 1, 2), noon],
        ),
        (pa.decimal128(5, 2), [decimal.Decimal("1.50"), decimal.Decimal(2), decimal.Decimal("1.50")]),
        (pa.binary(), [b"", b"a", b""]),
    ]:
        h = hash_column(pa.array(values, kind))
        assert h[0] == h[2] != h[1]
        assert hash_column(pa.array(values, kind).slice(1)).tolist() == h[1:].tolist()
    assert hash_column(pa.array([0.0])) == hash_column(pa.array([-0.0]))
    assert hash_column(pa.array([3], pa.int8())) == hash_column(pa.array([3], pa.int64()))
    assert combine([np.uint64([1]), np.uint64([2])]) != combine([np.uint64([2]), np.uint64([1])])


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 1000])
def test_shards_own_consecutive_ranges(parts):
    h = np.sort(np.random.default_rng(0).integers(0, 2**64, 20_000, np.uint64, endpoint=False))
    part = owner(h, parts)
    assert (np.diff(part) >= 0).all()
    assert part.tolist() == [(int(v) >> 32) * parts >> 32 for v in h]
    assert owner(np.array([0, 2**64 - 1], np.uint64), parts).tolist() == [0, parts - 1]
    assert np.bincount(part, minlength=parts).max() < 20_000 / parts + 6 * math.sqrt(20_000 / parts) + 1


def test_the_split_is_stable_and_independent_of_the_shard():
    h = np.random.default_rng(1).integers(0, 2**64, 100_000, np.uint64, endpoint=False)
    held_out = in_validation(h, 0.2)
    assert abs(held_out.mean() - 0.2) < 0.005
    by_shard = [held_out[owner(h, 4) == r].mean() for r in range(4)]
    assert max(by_shard) - min(by_shard) < 0.02
    assert (in_validation(h[::-1], 0.2)[::-1] == held_out).all()
    assert not (held_out & ~in_validation(h, 0.3)).any()  # a larger fraction only adds rows
    assert not in_validation(h, 0.0).any()


def test_rows_of_one_key_stay_together_and_in_a_fixed_order():
    rng = np.random.default_rng(2)
    customer = rng.integers(0, 50, 2000)
    data = batch(rng.standard_normal((2000, 3)).tolist(), k=customer)
    spec = DataSpec(("x",), "y", key=("k",), valid_fraction=0.3)
    blocks, _ = pack(data, spec, parts=4)
    place = {}
    for b in blocks:
        for h in b.rows.column("h").to_pylist():
            place.setdefault(h >> 24, set()).add((b.part, b.valid))
    assert len(place) == 50
    assert all(len(places) == 1 for places in place.values())
    h = np.concatenate([b.rows.column("h").to_numpy() for b in blocks])
    assert len(np.unique(h)) == 2000  # the content orders the rows of a key
    key, content = np.uint64([2**63 + 5]), np.uint64([7])
    assert keyed(key, content).tolist() == [2**63 + 7]


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_blocks_go_to_their_owner(parts, spare):
    rows = np.random.default_rng(3).standard_normal((5000, 8)).astype(np.float32)
    data = batch(rows.tolist(), pa.list_(pa.float32()))
    blocks, stats = pack(data, replace(SPEC, valid_fraction=0.25), parts + spare, spare=spare)
    assert stats.rows == 5000
    assert len({(b.part, b.valid) for b in blocks}) == 2 * parts == len(blocks)
    for b in blocks:
        h = b.rows.column("h").to_numpy()
        assert (owner(h, parts) == b.part - spare).all()
        assert (in_validation(h, 0.25) == b.valid).all()
    packed = np.concatenate([arrays([b])[0] for b in blocks])
    assert sorted(map(tuple, packed.tolist())) == sorted(map(tuple, rows.tolist()))


def test_memory_is_bounded_whatever_the_batch():
    """One batch of 40 MiB leaves in blocks of about 8, without waiting for the end."""
    wide = np.zeros((5, 2**20), np.float64)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(wide.ravel()), 2**20)
    data = pa.RecordBatch.from_arrays([lists, pa.array([0, 1, 0, 1, 0])], ["x", "y"])
    blocks, _ = pack(data, replace(SPEC, shape=(2**20,)))
    assert len(blocks) >= 2
    assert max(b.rows.nbytes for b in blocks) <= 2 * (8 << 20)
    assert sum(b.rows.num_rows for b in blocks) == 5


# The way through the shuffle.


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.uint8(), [0, 255]),
        (pa.int8(), [-128, 127]),
        *(
            (kind, v)
            for kind in (pa.int16(), pa.int32(), pa.int64())
            for v in ([0, 255], [-1, 3], [256, 0], [2**15 - 1, -(2**15)])
        ),
        *((kind, v) for kind in (pa.int32(), pa.int64()) for v in ([2**15, 1], [-(2**31), 2**31 - 1])),
        (pa.int64(), [2**31, 0]),
        (pa.int64(), [2**53 + 1, -(2**63)]),
        (pa.float32(), [0, 255]),
        (pa.float64(), [0.5, -1e30]),
    ],
)
def test_blocks_come_out_of_the_shuffle_as_they_went_in(kind, values):
    data = batch([[v, v, 1] for v in values] * 3, pa.list_(kind), y=[f"label {i}" for i in range(3 * len(values))])
    (block,), _ = pack(data)
    for rows in (block.rows, block.rows.slice(1, 2)):
        sent = to_wire(rows)
        again = from_wire(pa.py_buffer(sent))
        assert again.equals(rows)
        assert again.schema.equals(rows.schema, check_metadata=True)


def test_small_integers_take_little_room():
    noise = np.random.default_rng(0).integers(0, 256, (500, 1000))
    sizes = {
        kind: len(to_wire(pack(batch(noise.tolist(), pa.list_(kind)))[0][0].rows)) for kind in (pa.int16(), pa.int64())
    }
    assert max(sizes.values()) < 1.1 * noise.size  # about one byte for each of them, which no compression could shorten


# Statistics.


NUMBERS = st.floats(-1e140, 1e140) | st.integers(-300, 300).map(float)


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=30), st.randoms())
@settings(max_examples=60, deadline=None)
def test_moments_are_exact_whatever_the_order(rows, random):
    def moments(rows, cuts):
        total = Moments(2)
        for part in np.split(np.array(rows), cuts):
            piece = Moments(2)
            piece.add(part)
            total.merge(Moments.from_json(json.loads(json.dumps(piece.to_json()))))
        return total.mean_std()

    mean, std = moments(rows, [])
    shuffled = random.sample(rows, len(rows))
    for got, expected in zip(moments(shuffled, sorted({1, len(rows) // 2})), (mean, std), strict=True):
        assert got.tolist() == expected.tolist()  # the same bits
    for j in range(2):
        column = [Fraction(r[j]) for r in rows]
        m = sum(column) / len(column)
        var = sum((v - m) ** 2 for v in column) / len(column)
        assert mean[j] == float(m)
        assert std[j] == float(var) ** 0.5


def test_moments_of_far_away_values():
    """Sums of squares that cancel would lose everything here: deviation 1 around 1e9."""
    values = [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 1]
    m = Moments(1)
    m.add(np.array(values)[:, None])
    mean, std = m.mean_std()
    assert mean[0] == 1e9 + 1
    assert std[0] == pytest.approx(statistics.pstdev(values), rel=1e-15)


def test_moments_leave_out_nan_and_refuse_the_absurd():
    m = Moments(2)
    m.add(np.array([[1.0, np.nan], [3.0, 5.0]]))
    assert m.count.tolist() == [2, 1]
    assert [a.tolist() for a in m.mean_std()] == [[2.0, 5.0], [1.0, 0.0]]
    with pytest.raises(DataError, match="below 1e150"):
        m.add(np.array([[1e200, 0.0]]))


def test_statistics_survive_json_and_add_up():
    spec = replace(SPEC, standardize=True)
    first, second = batch([[1.0], None, [3.0]]), batch([[2.0], [math.nan]])
    _, whole = pack([first, second], spec)
    _, a = pack(first, spec)
    _, b = pack(second, spec, place=1)
    a.merge(b)
    for stats in (a, Stats.from_json(a.to_json())):
        assert (stats.rows, stats.dropped, stats.shapes) == (5, 2, {((1,), ())})
        assert (whole.rows, whole.dropped, whole.shapes) == (5, 2, {((1,), ())})
        assert found(stats) == found(whole) == {("x", "null"): 1, ("x", "NaN"): 1}
        assert stats.labels == whole.labels == {0}
        assert [v.tolist() for v in stats.moments.mean_std()] == [[2.0], [pytest.approx(math.sqrt(2 / 3))]]
    assert a.found["x", "NaN"][1:3] == (1, 1)


def test_distinct_labels_are_capped(monkeypatch):
    monkeypatch.setattr("sparkdl.data.stats.MAX_LABELS", 3)
    assert pack(batch([[1.0]] * 3, y=[5, 6, 7]))[1].labels == {5, 6, 7}
    assert pack(batch([[1.0]] * 4, y=[5, 6, 7, 8]))[1].labels is None
    assert pack([batch([[1.0]] * 2, y=[5, 6]), batch([[1.0]] * 2, y=[7, 8])])[1].labels is None
