"""Questions about Arrow types, whichever of its layouts a column has."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["is_bytes", "is_image", "is_list", "is_number", "is_text", "is_vector", "is_whole", "plain"]

VECTOR_FIELDS = ["type", "size", "indices", "values"]  # Spark ML's vectors, dense and sparse, as Arrow shows them
IMAGE_FIELDS = ["height", "width", "nChannels", "mode", "data"]


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values that a dictionary-encoded column stands for; any other type as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_number(kind: pa.DataType) -> bool:
    """Integers, floats, decimals and booleans."""
    t = pa.types
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) or t.is_boolean(kind))


def is_list(kind: pa.DataType) -> bool:
    """Lists of any of Arrow's layouts."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Strings of any of Arrow's layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_vector(kind: pa.DataType) -> bool:
    """A vector of Spark ML as Arrow shows it."""
    return bool(pa.types.is_struct(kind)) and [kind.field(i).name for i in range(kind.num_fields)] == VECTOR_FIELDS


def is_image(kind: pa.DataType) -> bool:
    """An image as Spark's reader of images gives it."""
    return bool(pa.types.is_struct(kind)) and set(IMAGE_FIELDS) <= {f.name for f in kind}


def is_bytes(kind: pa.DataType) -> bool:
    """Byte strings of any length."""
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind))


def is_whole(kind: pa.DataType) -> bool:
    """Whether int64 holds every value: Spark, too, reads uint64 as something else, a decimal."""
    t = pa.types
    return bool(t.is_boolean(kind) or (t.is_integer(kind) and not t.is_uint64(kind)))
