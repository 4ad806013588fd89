"""Messages between workers and driver: a kind, plain values as JSON, and arrays as they lie in memory.

On the wire: magic, the length of the JSON text, the length of the arrays' bytes; then both. Lengths are checked against
their limits before anything is allocated, and nothing that arrives is unpickled.
"""

from __future__ import annotations

import json
import math
import select
import selectors
import struct
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparkdl.comm.transport.auth import Edge
from sparkdl.comm.transport.stream import Stream
from sparkdl.comm.transport.talk import Script, Talk

__all__ = ["MAX_TEXT_BYTES", "Message", "Wire", "WireError", "converse", "wait"]

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

MAX_TEXT_BYTES = 1 << 26
MAX_AXES, MAX_ENTRIES = 32, 1 << 48  # of an array; empty ones have to stay within them too
_MAGIC = b"SDLc"
_HEAD = struct.Struct("<4sIQ")
_DTYPES = {"float64", "float32", "float16", "int64", "int32", "uint8"}


class WireError(OSError):
    """Bytes that are no message of this protocol, or are longer than agreed."""


class Message(NamedTuple):
    """`data` holds what JSON can, NaN and infinities too; `arrays` contiguous arrays by name."""

    kind: str
    data: Mapping[str, Any] = {}
    arrays: Mapping[str, Array] = {}


class Wire:
    """Messages over a connected stream. One thread may send while another receives.

    timeout_s is how long nothing may move: a long message over a slow line takes what it takes.
    """

    def __init__(self, stream: Stream, max_bytes: int) -> None:
        """max_bytes bounds the arrays of a message that arrives."""
        self._stream, self._max_bytes = stream, max_bytes
        self._lock = threading.Lock()  # TLS does not bear a read beside a write

    def send(self, message: Message, timeout_s: float) -> None:
        """Send all of it. Errors: OSError, TimeoutError among them, after which the wire is of no use."""
        arrays = {name: np.asarray(a, order="C") for name, a in message.arrays.items()}
        kinds = [[name, str(a.dtype), list(a.shape)] for name, a in arrays.items()]
        text = json.dumps([message.kind, message.data, kinds]).encode()
        head = _HEAD.pack(_MAGIC, len(text), sum(a.nbytes for a in arrays.values()))
        for part in (memoryview(head + text), *(_bytes_of(a) for a in arrays.values())):
            while part:
                with self._lock:
                    count = self._stream.write(part)
                part = part[count:]
                if not count:
                    wait(self._stream, selectors.EVENT_WRITE, timeout_s)

    def receive(self, timeout_s: float) -> Message:
        """The next message. Errors: OSError, TimeoutError and WireError among them."""
        magic, text_bytes, array_bytes = _HEAD.unpack(self._exactly(_HEAD.size, timeout_s))
        if magic != _MAGIC or text_bytes > MAX_TEXT_BYTES or array_bytes > self._max_bytes:
            raise WireError(
                f"a message begins with {magic!r} and announces {text_bytes:,} + {array_bytes:,} bytes; "
                f"at most {MAX_TEXT_BYTES:,} + {self._max_bytes:,} are taken"
            )
        kind, data, kinds = _parsed(self._exactly(text_bytes, timeout_s))
        if sum(nbytes for *_, nbytes in kinds) != array_bytes:
            raise WireError(f"a message announces {array_bytes:,} bytes of arrays and describes others")
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape, _ in kinds}
        for array in arrays.values():
            self._fill(_bytes_of(array), timeout_s)
        return Message(kind, data, arrays)

    def pending(self) -> bool:
        """Whether something has arrived."""
        try:
            wait(self._stream, selectors.EVENT_READ, 0.0)
        except TimeoutError:
            return False
        return True

    def shut(self) -> None:
        """End the connection: whoever waits in `receive` gets an error."""
        self._stream.shut()

    def close(self) -> None:
        """End the connection and release it; to be called when nobody waits in `receive`."""
        self._stream.shut()
        self._stream.close()

    def _exactly(self, count: int, timeout_s: float) -> bytearray:
        data = bytearray(count)
        self._fill(memoryview(data), timeout_s)
        return data

    def _fill(self, view: memoryview, timeout_s: float) -> None:
        while view:
            with self._lock:
                count = self._stream.read(view)
            view = view[count:]
            if not count:
                wait(self._stream, selectors.EVENT_READ, timeout_s)


def converse(stream: Stream, conversation: Generator[tuple[bytes, int], bytes, T], timeout_s: float) -> T:
    """Carry out a handshake of `comm.transport.auth`, TLS before it where the stream is such; returns its result."""
    found: list[T] = []

    def script() -> Script:
        found.append((yield from conversation))
        return Edge(0, 0), None

    deadline = time.monotonic() + timeout_s
    talk = Talk(stream, script(), deadline, "", None)
    while events := talk.advance():
        wait(stream, events, deadline - time.monotonic())
    return found[0]


def wait(stream: Stream, events: int, timeout_s: float) -> None:
    """Return when the stream is ready for one of the selector events. Errors: TimeoutError."""
    poll = select.poll()  # unlike select(), takes descriptors of any number
    wanted = (events & selectors.EVENT_READ and select.POLLIN) | (events & selectors.EVENT_WRITE and select.POLLOUT)
    poll.register(stream, wanted)
    if not poll.poll(max(0.0, timeout_s) * 1e3):
        raise TimeoutError("no answer in time")


def _parsed(text: bytearray) -> tuple[str, dict[str, Any], list[tuple[str, str, list[int], int]]]:
    """Kind, data, and name, dtype, shape and bytes of each array; nothing of their size is allocated yet."""
    try:
        kind, data, kinds = json.loads(text)
        if not isinstance(kind, str) or not isinstance(data, dict) or len({name for name, *_ in kinds}) < len(kinds):
            raise ValueError("kind, values and arrays by name are expected")
        return kind, data, [(str(name), dtype, shape, _nbytes(dtype, shape)) for name, dtype, shape in kinds]
    except (ValueError, TypeError, RecursionError) as e:
        raise WireError(f"a message that cannot be read: {e}") from e


def _nbytes(dtype: str, shape: list[int]) -> int:
    whole = len(shape) <= MAX_AXES and all(isinstance(n, int) and n >= 0 for n in shape)
    if dtype not in _DTYPES or not whole or math.prod(n or 1 for n in shape) > MAX_ENTRIES:
        raise ValueError(f"no array is of type {dtype!r} and shape {shape}")
    return math.prod(shape) * np.dtype(dtype).itemsize


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
