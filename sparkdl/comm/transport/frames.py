"""What goes over a wire: the header before each message, and the small frames of the control connection."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from sparkdl.comm.transport.base import Array

__all__ = [
    "DTYPES",
    "HEADER_BYTES",
    "MAX_CONTROL_BYTES",
    "Control",
    "ControlFrame",
    "ControlReader",
    "FrameError",
    "Header",
    "check_buffer",
    "describe",
]

VERSION = 1
DTYPES = tuple(np.dtype(name) for name in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"))
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_MAGIC = b"SDLm"
_HEADER = struct.Struct("<4sBBHqqq")  # magic, version, dtype code, flags (the stream), sequence, tag, size
HEADER_BYTES = _HEADER.size

MAX_CONTROL_BYTES = 4096
_CONTROL = struct.Struct("<BH")  # kind, length of the payload


class FrameError(Exception):
    """Bytes that are no frame of this protocol and version."""


class Header(NamedTuple):
    """One message of a directed pair of ranks: the how many-th, its tag, dtype code and number of elements."""

    sequence: int
    tag: int
    code: int
    size: int
    flags: int = 0

    @classmethod
    def of(cls, sequence: int, tag: int, buf: Array) -> Header:
        return cls(sequence, tag, _CODES[buf.dtype], buf.size)

    def pack(self) -> bytes:
        return _HEADER.pack(_MAGIC, VERSION, self.code, self.flags, self.sequence, self.tag, self.size)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> Header:
        magic, version, code, flags, sequence, tag, size = _HEADER.unpack(data)
        if magic != _MAGIC or version != VERSION or code >= len(DTYPES) or size < 0:
            raise FrameError(f"no message header of version {VERSION}: {bytes(data).hex()}")
        return cls(sequence, tag, code, size, flags)

    def __str__(self) -> str:
        return f"message {self.sequence} (tag {self.tag}, {DTYPES[self.code]} x {self.size})"


def check_buffer(rank: int, size: int, peer: int, buf: Array, *, write: bool) -> None:
    """Raise ValueError unless peer is another rank and buf one that a transport carries, or writes into."""
    if not 0 <= peer < size or peer == rank:
        raise ValueError(f"peer must be another rank of 0..{size - 1}; rank {rank} named {peer}")
    if buf.dtype not in _CODES or buf.ndim != 1 or not buf.flags.c_contiguous:
        names = ", ".join(map(str, DTYPES))
        raise ValueError(
            f"a message is a contiguous one-dimensional array of {names}; got {buf.dtype} of shape {buf.shape}, "
            f"strides {buf.strides}. Use np.ascontiguousarray(x).ravel()?"
        )
    if write and not buf.flags.writeable:
        raise ValueError("cannot receive into a read-only array; receive into a copy of it")


def describe(verb: str, peer: int, tag: int, buf: Array) -> str:
    """The operation, as errors name it."""
    direction = {"isend": "to", "share": "with"}.get(verb, "from")
    return f"{verb} {direction} rank {peer} (tag {tag}, {buf.dtype} x {buf.size})"


class Control(IntEnum):
    """Kinds of control frames: I am alive; I leave in peace; I leave because of a failure."""

    HEARTBEAT = 1
    BYE = 2
    ABORT = 3


class ControlFrame(NamedTuple):
    """A control frame; an abort's culprit is the rank that failed first and text its reason."""

    kind: Control
    culprit: int = -1
    text: str = ""

    def pack(self) -> bytes:
        if self.kind is not Control.ABORT:
            return _CONTROL.pack(self.kind, 0)
        text = self.text.encode()[: MAX_CONTROL_BYTES - 4]
        return _CONTROL.pack(self.kind, 4 + len(text)) + struct.pack("<i", self.culprit) + text


class ControlReader:
    """Cuts a stream of bytes into control frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[ControlFrame]:
        """The frames that data completes; FrameError where the bytes are none, or one is too long."""
        self._data += data
        frames = []
        while len(self._data) >= _CONTROL.size:
            kind, length = _CONTROL.unpack_from(self._data)
            if kind not in Control.__members__.values() or length > MAX_CONTROL_BYTES or 0 < length < 4:
                raise FrameError(f"no control frame: kind {kind}, {length} bytes; at most {MAX_CONTROL_BYTES}")
            end = _CONTROL.size + length
            if len(self._data) < end:
                break
            frames.append(self._frame(Control(kind), bytes(self._data[_CONTROL.size : end])))
            del self._data[:end]
        return frames

    @staticmethod
    def _frame(kind: Control, payload: bytes) -> ControlFrame:
        if not payload:
            return ControlFrame(kind)
        (culprit,) = struct.unpack_from("<i", payload)
        return ControlFrame(kind, culprit, payload[4:].decode(errors="replace"))
