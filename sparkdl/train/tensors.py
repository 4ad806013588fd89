"""Named arrays as bytes (safetensors, no pickle), and the seal by which a reader tells whole bytes from damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparkdl.errors import ModelFormatError
from sparkdl.nn import Array, Layout

__all__ = ["check_layout", "check_seal", "pack", "seal", "under", "unpack"]


def pack(tensors: Mapping[str, Array]) -> bytes:
    """The arrays in the safetensors format."""
    data: bytes = save({name: np.ascontiguousarray(t) for name, t in tensors.items()})
    return data


def unpack(data: bytes) -> dict[str, Array]:
    """The arrays that `pack` wrote, each in memory of its own, in no particular order. Errors: ValueError."""
    try:
        tensors: dict[str, Array] = load(data)
    except SafetensorError as e:
        raise ValueError(f"not the safetensors format ({e})") from e
    return tensors


def seal(data: bytes) -> dict[str, int]:
    """Size and checksum."""
    return {"size": len(data), "crc32": zlib.crc32(data)}


def check_seal(data: bytes, expected: Mapping[str, Any]) -> None:
    """Raise ValueError, saying what differs, where data is not what was sealed."""
    for what, value in seal(data).items():
        if value != expected[what]:
            raise ValueError(f"the weights are damaged: their {what} is {value}, not {expected[what]}")


def check_layout(path: str, found: Mapping[str, Iterable[int]], layout: Layout) -> None:
    """Raise ModelFormatError naming the first parameter in which what lies at path differs from the layout."""
    theirs = [(name, tuple(shape)) for name, shape in found.items()]
    for other, own in zip_longest(theirs, layout.shapes().items()):
        if other != own:
            here, there = (f"{p[0]} {p[1]}" if p else "no further parameter" for p in (own, other))
            raise ModelFormatError(
                f"{path} was written for another model: where this one has {here}, it holds {there}. "
                f"Take the configuration it was written with, or another folder."
            )


def under(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Those whose names begin with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
