"""What the columns of a table mean: the `[data]` section, and its resolution against a schema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

import numpy as np
import pyarrow as pa

from sparkdl.data.kinds import is_bytes, is_image, is_list, is_number, is_text, is_vector, is_whole, plain
from sparkdl.errors import ConfigError, DataError

__all__ = ["DataSpec", "Field", "Packing", "Shape", "alike", "check_columns", "resolve"]

Shape = tuple[int, ...]
TEXT_REMEDY = "Turn strings into numbers first, as StringIndexer and OneHotEncoder do."
SCALAR_LABELS = ("bool", "int", "float", "string")


@dataclass(frozen=True)
class DataSpec:
    """Which columns are features, label and weight, and how rows become arrays.

    features: one column of arrays, nested arrays, vectors, raw bytes or images, or several scalar columns.
    label, weight: columns; weight may be absent.
    key: columns that identify a row or a group. Rows of one key share a split and a shard; without a key the whole
      content of a row stands in.
    target: "classes" maps labels to 0..K-1; "values" keeps numbers (scalars, arrays or vectors).
    shape: of one sample, channels last; None takes the flat length of the first row.
    image: "encoded" decodes PNG, JPEG and the like to bytes (H, W, channels); needs the extra `image`. "spark" takes
      the structs of Spark's own reader of images, whose bytes are in the order BGR; here they become RGB.
    resize: brings images to the height and width of `shape`: "stretch" scales both axes, "crop" scales until the
      image covers the shape and cuts off what is too much; "none" refuses images of another size.
    handle_invalid: "error" refuses nulls, NaN, infinities, ragged lists and broken images; "skip" drops their rows;
      "keep" turns null features into NaN and lets NaN and infinities pass.
    dtype: of training. Integers are stored exactly and converted when a batch is read.
    valid_fraction: share of rows (of keys) held out by their hash; valid_column: boolean column that says which.
    scale: factor on all features; standardize: then subtract the training mean and divide by the deviation.
    mean, std: known ones, of each channel, in place of the training rows' (after scale); both or none.
    """

    features: tuple[str, ...]
    label: str | None = None
    weight: str | None = None
    key: tuple[str, ...] = ()
    target: Literal["classes", "values"] = "classes"
    shape: tuple[int, ...] | None = None
    image: Literal["none", "encoded", "spark"] = "none"
    resize: Literal["none", "stretch", "crop"] = "none"
    channels: int | None = None
    handle_invalid: Literal["error", "skip", "keep"] = "error"
    dtype: Literal["float32", "float64"] = "float32"
    valid_fraction: float = 0.0
    valid_column: str | None = None
    scale: float = 1.0
    standardize: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("target", self.target, ("classes", "values")),
            ("image", self.image, ("none", "encoded", "spark")),
            ("resize", self.resize, ("none", "stretch", "crop")),
            ("channels", self.channels, (None, 1, 3, 4)),
            ("handle_invalid", self.handle_invalid, ("error", "skip", "keep")),
            ("dtype", self.dtype, ("float32", "float64")),
        ):
            if value not in allowed:
                raise ConfigError(f"data.{name} is one of {', '.join(map(repr, allowed))}; got {value!r}.")
        for name, columns in (("features", self.features), ("key", self.key)):
            if not isinstance(columns, tuple) or len(set(columns)) != len(columns):
                raise ConfigError(f"data.{name} is a tuple of distinct column names; got {columns!r}.")
        self._check_numbers()
        self._check_combinations()

    def _check_numbers(self) -> None:
        if not self.features:
            raise ConfigError("data.features names at least one column; got none.")
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise ConfigError(f"data.shape is a list of positive sizes; got {self.shape}.")
        if not 0.0 <= self.valid_fraction < 1.0:
            raise ConfigError(f"data.valid_fraction lies in [0, 1); got {self.valid_fraction}.")
        if not math.isfinite(self.scale) or self.scale == 0.0:
            raise ConfigError(f"data.scale is a finite factor other than 0; got {self.scale}. Write 1.0 for none.")

        mean, std = self.mean or (), self.std or ()
        if (self.mean is None) != (self.std is None) or len(mean) != len(std):
            raise ConfigError(f"data.mean and data.std go together, one of each a channel; got {mean} and {std}.")
        if not all(map(math.isfinite, mean + std)) or min(std, default=1.0) <= 0:
            raise ConfigError(f"data.mean is finite, and data.std above 0; got {mean} and {std}.")

    def _check_combinations(self) -> None:
        if self.standardize and self.mean is not None:
            raise ConfigError("data.standardize and data.mean exclude each other. Keep one.")
        if self.valid_fraction and self.valid_column:
            raise ConfigError("data.valid_fraction and data.valid_column exclude each other. Keep one.")
        if self.label in self.features:
            raise ConfigError(f"column {self.label!r} is both a feature and the label. Remove it from data.features.")
        if self.image == "none":
            for name, given in (("channels", self.channels is not None), ("resize", self.resize != "none")):
                if given:
                    raise ConfigError(f'data.{name} applies to encoded images only. Set data.image = "encoded".')
        elif self.resize != "none" and self.shape is None:
            raise ConfigError(f'data.resize = "{self.resize}" needs the size. Give data.shape.')
        elif self.shape is not None and (len(self.shape) != 3 or self.shape[2] != (self.channels or self.shape[2])):
            raise ConfigError(
                f"data.shape of images is (height, width, channels); got {self.shape} with channels {self.channels}."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        single = (self.label, self.weight, self.valid_column)
        return tuple(dict.fromkeys((*self.features, *(c for c in single if c is not None), *self.key)))

    def check_spool(self, parts: int, second: bool) -> None:
        """Refuse what cannot be spooled; second: validation rows come from a table of their own."""
        if self.label is None:
            raise ConfigError("data.label is required to train or evaluate. Name the column of the targets.")
        if parts < 1:
            raise ConfigError(f"there is at least one shard; got {parts}.")
        if second and (self.valid_fraction or self.valid_column):
            raise ConfigError("validation data of their own exclude data.valid_fraction and data.valid_column.")

    def for_scoring(self) -> DataSpec:
        """The same features without label, weight, key and split: what a prediction reads."""
        return replace(self, label=None, weight=None, key=(), valid_fraction=0.0, valid_column=None)


@dataclass(frozen=True)
class Field:
    """How one array of a sample is found in a row, and stored.

    kind: "scalars", "list", "vector", "binary", "image" for arrays; "bool", "int", "float", "string" for labels.
    shape: of one sample; None until the first row shows it. depth: levels of lists. channels, resize: of images.
    keep: nulls become NaN, and what is not finite passes.
    """

    columns: tuple[str, ...]
    kind: str
    dtype: str
    shape: Shape | None = ()
    depth: int = 0
    channels: int | None = None
    keep: bool = False
    resize: str = "none"

    @property
    def name(self) -> str:
        """The column, for messages."""
        return self.columns[0]


@dataclass(frozen=True)
class Packing:
    """A DataSpec resolved against a schema: all that a task needs to pack rows. label is None when scoring."""

    spec: DataSpec
    features: Field
    label: Field | None


def resolve(spec: DataSpec, schema: pa.Schema) -> Packing:
    """Check the columns and choose the storage of features and label; a DataError names column, type and remedy."""
    check_columns(spec, schema.names)
    features = _features(spec, schema)
    label = None if spec.label is None else _label(spec.label, spec.target, schema)
    if spec.weight is not None and not is_number(plain(schema.field(spec.weight).type)):
        raise _wrong(spec.weight, schema, "a weight is a number")
    if spec.valid_column is not None and not pa.types.is_boolean(schema.field(spec.valid_column).type):
        raise _wrong(spec.valid_column, schema, "data.valid_column is a boolean column, true for validation rows")
    for name in spec.key:
        kind = plain(schema.field(name).type)
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise _wrong(name, schema, "a key is a number, a string, bytes, a date or a time")
    return Packing(spec, features, label)


def check_columns(spec: DataSpec, names: Sequence[str]) -> None:
    """Refuse a table that lacks a column that is read, or has it twice."""
    for name in spec.columns:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The columns are {', '.join(names)}."
            raise DataError(f"column {name!r} is not in the data. {hint}")
        if names.count(name) > 1:
            raise DataError(f"{names.count(name)} columns are called {name!r}. Rename or drop all but one.")


def alike(packing: Packing, first: Packing) -> Packing:
    """The packing of a second table whose rows will lie beside those of a first one; DataError where they cannot."""
    features = _alike(packing.features, first.features)
    if packing.label is None or first.label is None:
        return replace(packing, features=features)
    return replace(packing, features=features, label=_alike(packing.label, first.label))


def _alike(mine: Field, other: Field) -> Field:
    same_kind = mine.kind == other.kind or mine.kind not in SCALAR_LABELS
    if not same_kind or (mine.kind != "string" and not np.can_cast(mine.dtype, other.dtype, "safe")):
        raise DataError(
            f"column {mine.name!r} of the validation data is {mine.kind} ({mine.dtype}), that of the training data "
            f"{other.kind} ({other.dtype}). Convert one of them."
        )
    return replace(mine, dtype=other.dtype)


def _features(spec: DataSpec, schema: pa.Schema) -> Field:
    kinds = [plain(schema.field(name).type) for name in spec.features]
    kind, keep = kinds[0], spec.handle_invalid == "keep"
    if spec.image == "encoded" and not (len(kinds) == 1 and is_bytes(kind)):
        raise _wrong(spec.features[0], schema, "encoded images are one column of bytes")
    if spec.image == "spark" and not (len(kinds) == 1 and is_image(kind)):
        raise _wrong(spec.features[0], schema, "images of Spark are one column of structs, as its reader makes them")
    if all(map(is_number, kinds)):
        return _scalars(spec, kinds)
    if len(kinds) > 1:
        odd = next(name for name, k in zip(spec.features, kinds, strict=True) if not is_number(k))
        remedy = TEXT_REMEDY if is_text(plain(schema.field(odd).type)) else "Give an array or an image alone."
        raise _wrong(odd, schema, "several feature columns must be scalar numbers", remedy)
    if spec.image != "none":
        channels = spec.channels or (spec.shape or (0, 0, None))[2]
        return Field(spec.features, "image", "uint8", spec.shape, channels=channels, resize=spec.resize)
    if is_bytes(kind):
        return Field(spec.features, "binary", "uint8", spec.shape)
    if not (is_vector(kind) or is_list(kind)):
        remedy = TEXT_REMEDY if is_text(kind) else ""
        raise _wrong(spec.features[0], schema, "features are numbers, lists of numbers, vectors or bytes", remedy)
    field = _array(spec.features, kind, spec.shape, spec.dtype)
    # NaN in place of a null needs a float.
    return replace(field, dtype=str(np.result_type(field.dtype, spec.dtype)), keep=True) if keep else field


def _scalars(spec: DataSpec, kinds: list[pa.DataType]) -> Field:
    """Several columns share one type: integers are exact as int64, and no fraction is lost in float64."""
    n, keep = len(kinds), spec.handle_invalid == "keep"
    if spec.shape is not None and math.prod(spec.shape) != n:
        raise DataError(
            f"data.shape {spec.shape} holds {math.prod(spec.shape)} values, but data.features names {n} columns. "
            "Correct one of them."
        )
    whole = not keep and all(map(is_whole, kinds))
    return Field(spec.features, "scalars", "int64" if whole else "float64", spec.shape or (n,), keep=keep)


def _array(columns: tuple[str, ...], kind: pa.DataType, shape: Shape | None, training: str) -> Field:
    """A column of lists, nested lists or vectors."""
    if is_vector(kind):
        return Field(columns, "vector", training, shape)
    depth, element = 0, kind
    while is_list(element):
        depth, element = depth + 1, element.value_type
    if not is_number(element):
        remedy = TEXT_REMEDY if is_text(element) else ""
        raise DataError(f"column {columns[0]!r} has type {kind}, but its elements must be numbers. {remedy}".rstrip())
    if depth > 1 and (shape is None or len(shape) != depth):
        raise DataError(
            f"column {columns[0]!r} holds lists nested {depth} deep, which needs a data.shape of {depth} sizes; "
            + ("none was given." if shape is None else f"got {shape}.")
        )
    return Field(columns, "list", _element_dtype(element, training), shape, depth)


def _element_dtype(element: pa.DataType, training: str) -> str:
    """Integers keep their range, unsigned ones as the signed type in which Spark reads them."""
    signed = {"bool": "uint8", "uint8": "int16", "uint16": "int32", "uint32": "int64"}
    if is_whole(element):
        return signed.get(str(element), str(element))
    if pa.types.is_floating(element):
        return training if pa.types.is_float64(element) else "float32"
    return "float64"


def _label(name: str, target: str, schema: pa.Schema) -> Field:
    kind = plain(schema.field(name).type)
    if target == "values":
        if is_number(kind):
            return Field((name,), "float", "float64")
        if not (is_list(kind) or is_vector(kind)):
            raise _wrong(name, schema, 'data.target = "values" needs numbers', 'Labels of classes take "classes".')
        return replace(_array((name,), kind, None, "float64"), dtype="float64")
    if is_text(kind):
        return Field((name,), "string", "str")
    if not is_number(kind):
        remedy = 'For arrays as targets set data.target = "values".' if is_list(kind) or is_vector(kind) else ""
        raise _wrong(name, schema, "a class label is a number, a boolean or a string", remedy)
    if pa.types.is_boolean(kind):
        return Field((name,), "bool", "int64")
    return Field((name,), "int", "int64") if is_whole(kind) else Field((name,), "float", "float64")


def _wrong(name: str, schema: pa.Schema, rule: str, remedy: str = "") -> DataError:
    return DataError(f"column {name!r} has type {schema.field(name).type}, but {rule}. {remedy}".rstrip())
