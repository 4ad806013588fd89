"""The [data] section and its resolution: what goes together, and what each wrong column is told."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkdl.data import DataSpec, resolve
from sparkdl.data.schema import alike
from sparkdl.errors import ConfigError, DataError

SPEC = DataSpec(("x",), "y")
SCHEMA = pa.schema(
    {
        "x": pa.list_(pa.float64()),
        "y": pa.int32(),
        "pixels": pa.list_(pa.list_(pa.int16())),
        "words": pa.list_(pa.string()),
        "raw": pa.binary(),
        "a": pa.float64(),
        "b": pa.int64(),
        "name": pa.string(),
        "when": pa.timestamp("us"),
        "flag": pa.bool_(),
        "map": pa.map_(pa.string(), pa.int32()),
    }
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": ()}, "data.features names at least one column"),
        ({"features": "x"}, r"data.features is a tuple of distinct column names; got 'x'"),
        ({"features": ("x", "x")}, "distinct"),
        ({"key": ("k", "k")}, "data.key is a tuple of distinct"),
        ({"target": "numbers"}, "data.target is one of 'classes', 'values'; got 'numbers'"),
        ({"image": "jpeg"}, "data.image is one of"),
        ({"handle_invalid": "drop"}, "'error', 'skip', 'keep'; got 'drop'"),
        ({"dtype": "float16"}, "data.dtype is one of"),
        ({"shape": ()}, "data.shape is a list of positive sizes"),
        ({"shape": (3, 0)}, r"got \(3, 0\)"),
        ({"valid_fraction": 1.0}, r"lies in \[0, 1\); got 1.0"),
        ({"valid_fraction": -0.1}, "got -0.1"),
        ({"valid_fraction": 0.1, "valid_column": "v"}, "exclude each other"),
        ({"scale": 0.0}, "a finite factor other than 0"),
        ({"scale": float("nan")}, "a finite factor"),
        ({"features": ("x", "y")}, "column 'y' is both a feature and the label"),
        ({"channels": 3}, "applies to encoded images only"),
        ({"mean": (0.5,)}, r"data.mean and data.std go together.*got \(0.5,\) and \(\)"),
        ({"mean": (0.5,), "std": (1.0, 2.0)}, "one of each a channel"),
        ({"mean": (0.5,), "std": (0.0,)}, "data.std above 0"),
        ({"mean": (float("nan"),), "std": (1.0,)}, "data.mean is finite"),
        ({"mean": (0.5,), "std": (1.0,), "standardize": True}, "exclude each other"),
        ({"resize": "crop"}, "data.resize applies to encoded images only"),
        ({"resize": "crop", "image": "encoded"}, 'data.resize = "crop" needs the size. Give data.shape'),
        ({"resize": "fit", "image": "encoded"}, "data.resize is one of 'none', 'stretch', 'crop'"),
        ({"channels": 2, "image": "encoded"}, "data.channels is one of None, 1, 3, 4; got 2"),
        ({"image": "encoded", "shape": (784,)}, r"\(height, width, channels\); got \(784,\)"),
        ({"image": "encoded", "shape": (8, 8, 3), "channels": 1}, "with channels 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        DataSpec(**({"features": ("x",), "label": "y"} | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": ("pixel",)}, "column 'pixel' is not in the data. Did you mean 'pixels'?"),
        ({"features": ("zzz",)}, "column 'zzz' is not in the data. The columns are x, y, pixels"),
        ({"label": "yy"}, "column 'yy' is not in the data. Did you mean 'y'?"),
        ({"weight": "weight"}, "column 'weight' is not in the data"),
        ({"features": ("name",)}, "column 'name' has type string, .* Turn strings into numbers first"),
        ({"features": ("a", "name")}, "column 'name' has type string, but several feature columns must be scalar"),
        (
            {"features": ("a", "x")},
            "column 'x' has type list<.*scalar numbers. Give an array or",
        ),
        ({"features": ("words",)}, r"column 'words' has type list<.*elements must be numbers. Turn strings"),
        ({"features": ("when",)}, r"column 'when' has type timestamp\[us\], but features are numbers"),
        ({"features": ("map",)}, "column 'map' has type map"),
        ({"features": ("pixels",)}, "nested 2 deep, which needs a data.shape of 2 sizes; none was given"),
        ({"features": ("pixels",), "shape": (4,)}, r"of 2 sizes; got \(4,\)"),
        (
            {"features": ("a", "b"), "shape": (3,)},
            r"data.shape \(3,\) holds 3 values, but .* names 2 columns",
        ),
        ({"image": "encoded"}, "column 'x' has type list<.*encoded images are one column of bytes"),
        ({"features": ("raw", "a"), "image": "encoded"}, "encoded images are one column"),
        ({"features": ("raw",), "image": "spark"}, "column 'raw' has type .*images of Spark are one column of structs"),
        ({"label": "when"}, "column 'when' has type timestamp.* a class label is a number, a boolean or a string"),
        ({"label": "words"}, 'For arrays as targets set data.target = "values"'),
        (
            {"label": "name", "target": "values"},
            'data.target = "values" needs numbers. Labels of',
        ),
        ({"weight": "name"}, "column 'name' has type string, but a weight is a number"),
        ({"valid_column": "b"}, "column 'b' has type int64, but data.valid_column is a boolean column"),
        ({"key": ("x",)}, "column 'x' has type list.* a key is a number, a string"),
    ],
)
def test_wrong_columns_are_named_with_a_remedy(options, words):
    with pytest.raises(DataError, match=words):
        resolve(replace(SPEC, **options), SCHEMA)


def test_a_column_that_stands_twice_is_ambiguous():
    schema = pa.schema([("x", pa.float64()), ("x", pa.float64()), ("y", pa.int32())])
    with pytest.raises(DataError, match="2 columns are called 'x'"):
        resolve(SPEC, schema)


def test_columns_are_read_once():
    spec = DataSpec(("a", "b"), "y", "w", ("b", "k"), valid_column="v")
    assert spec.columns == ("a", "b", "y", "w", "v", "k")
    assert spec.for_scoring() == DataSpec(("a", "b"))


@pytest.mark.parametrize(
    ("features", "options", "kind", "dtype", "shape"),
    [
        (("x",), {}, "list", "float32", None),
        (("x",), {"dtype": "float64"}, "list", "float64", None),
        (("pixels",), {"shape": (2, 3)}, "list", "int16", (2, 3)),
        (("pixels",), {"shape": (2, 3), "handle_invalid": "keep"}, "list", "float32", (2, 3)),
        (("raw",), {"shape": (28, 28, 1)}, "binary", "uint8", (28, 28, 1)),
        (("raw",), {"image": "encoded"}, "image", "uint8", None),
        (("b", "flag"), {}, "scalars", "int64", (2,)),
        (("b", "flag"), {"handle_invalid": "keep"}, "scalars", "float64", (2,)),
        (("a", "b"), {"shape": (2, 1)}, "scalars", "float64", (2, 1)),
    ],
)
def test_storage_follows_the_type(features, options, kind, dtype, shape):
    field = resolve(replace(SPEC, features=features, **options), SCHEMA).features
    assert (field.kind, field.dtype, field.shape) == (kind, dtype, shape)


def test_packings_pickle_small():
    packing = resolve(SPEC, SCHEMA)
    assert pickle.loads(pickle.dumps(packing)) == packing
    assert len(pickle.dumps(packing)) < 2000


def test_a_second_table_must_be_alike():
    spec = DataSpec(("x",), "y")

    def packing(x, y):
        return resolve(spec, pa.schema({"x": pa.list_(x), "y": y}))

    train = packing(pa.int32(), pa.int32())
    assert alike(packing(pa.int16(), pa.int64()), train).features.dtype == "int32"
    with pytest.raises(DataError, match=r"column 'x' of the validation data is list \(float32\), that of the training"):
        alike(packing(pa.float64(), pa.int32()), train)
    with pytest.raises(DataError, match=r"column 'y' of the validation data is string \(str\).*int \(int64\)"):
        alike(packing(pa.int32(), pa.string()), train)


@pytest.mark.parametrize(
    ("spec", "parts", "second", "words"),
    [
        (DataSpec(("x",)), 1, False, "data.label is required"),
        (SPEC, 0, False, "at least one shard; got 0"),
        (replace(SPEC, valid_fraction=0.1), 1, True, "validation data of their own exclude"),
        (replace(SPEC, valid_column="v"), 1, True, "exclude data.valid_fraction and data.valid_column"),
    ],
)
def test_what_cannot_be_spooled(spec, parts, second, words):
    with pytest.raises(ConfigError, match=words):
        spec.check_spool(parts, second)
