"""The TCP channel: messages cut over one or several streams, received straight into place.

Between hosts the sizes of the sockets' buffers are left to the kernel: it grows them with the traffic, up to several
MiB, which a size set here would switch off, and which many kernels would cut to 208 KiB. Within a host, where there is
no distance to fill, so much under way only drives the data out of the caches: there the sender's buffer is kept short.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence

import numpy as np

from sparkdl.comm.transport.base import Array, Op, combine
from sparkdl.comm.transport.channel import Channel, ChannelClosed, Task, Unexpected
from sparkdl.comm.transport.frames import HEADER_BYTES, Header
from sparkdl.comm.transport.stream import Stream

__all__ = ["PIECE_BYTES", "TcpChannel"]

PIECE_BYTES = 512 * 1024  # what is reduced at once: small enough to be still in the cache that it was received into
HOST_SEND_BYTES = 512 * 1024
MIN_PART_BYTES = 64 * 1024  # shorter parts are not worth another system call


class TcpChannel(Channel):
    """One peer over `streams`. Each stream carries, in order, its part of every message behind a header of its own."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.limit_within_host(HOST_SEND_BYTES)
        self._writers = [_Writer(stream) for stream in streams]
        self._readers = [_Reader(stream) for stream in streams]

    def send(self, header: Header, buf: Array) -> Task:
        data = buf.view(np.uint8).data
        parts = _parts(buf.size, buf.itemsize, len(self._writers))
        task = _Outgoing(self, len(parts))
        for index, (start, stop) in enumerate(parts):
            part = data[start * buf.itemsize : stop * buf.itemsize]
            self._writers[index].queue.append(_Frame(_numbered(header, index).pack(), part, task))
        task.step()
        return task

    def push(self) -> bool:
        return sum(writer.push() for writer in self._writers if writer.queue) > 0

    @property
    def sending(self) -> bool:
        return any(writer.queue for writer in self._writers)

    def expect(self, header: Header, out: Array, op: Op | None) -> Task:
        parts = _parts(out.size, out.itemsize, len(self._readers))
        for index, (start, stop) in enumerate(parts):
            self._readers[index].begin(_numbered(header, index), out[start:stop], op)
        readers = self._readers[: len(parts)]
        return readers[0] if len(readers) == 1 else _Incoming(readers)

    @property
    def news(self) -> bool:
        return self._writers[0].stream.readable

    def watch(self, poller: select.poll, reading: bool) -> bool:
        resting = all(reader.done for reader in self._readers)  # the next message begins on the first stream
        for index, (writer, reader) in enumerate(zip(self._writers, self._readers, strict=True)):
            awaited = reading and (index == 0 if resting else not reader.done)
            events = (select.POLLOUT if writer.queue else 0) | (select.POLLIN if awaited else 0)
            if events:
                poller.register(writer.stream, events)
        return True

    def close(self) -> None:
        for writer in self._writers:
            writer.stream.close()


def _numbered(header: Header, stream: int) -> Header:
    """The header of a stream's part; that of the first is as it came, which is all that short messages need."""
    return header._replace(flags=stream) if stream else header


def _parts(count: int, itemsize: int, streams: int) -> list[tuple[int, int]]:
    """[start, stop) of each stream's share of a message; both ends cut alike, and short messages stay whole."""
    if streams == 1 or count * itemsize < streams * MIN_PART_BYTES:
        return [(0, count)]
    return [(count * i // streams, count * (i + 1) // streams) for i in range(streams)]


class _Outgoing:
    """A send whose parts are not all written yet."""

    def __init__(self, channel: TcpChannel, parts: int) -> None:
        self._channel = channel
        self.parts = parts

    @property
    def done(self) -> bool:
        return not self.parts

    def step(self) -> bool:
        return self._channel.push()


class _Frame:
    """The unsent rest of a header and its payload."""

    __slots__ = ("header", "payload", "task")

    def __init__(self, header: bytes, payload: memoryview, task: _Outgoing) -> None:
        self.header, self.payload, self.task = memoryview(header), payload, task


class _Writer:
    """The sending half of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.queue: deque[_Frame] = deque()

    def push(self) -> bool:
        frame = self.queue[0]
        try:
            count = self.stream.write(frame.header, frame.payload) if frame.header else self.stream.write(frame.payload)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        in_header = min(count, len(frame.header))
        frame.header, frame.payload = frame.header[in_header:], frame.payload[count - in_header :]
        if not frame.header and not frame.payload:
            self.queue.popleft()
            frame.task.parts -= 1
        return count > 0


class _Reader:
    """The receiving half of a stream: fills out as bytes arrive, or combines pieces of a reused scratch buffer."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._scratch: Array = np.empty(0, np.uint8)
        self.done = True

    def begin(self, expected: Header, out: Array, op: Op | None) -> None:
        self._expected, self._packed = expected, expected.pack()
        self._out, self._op = out, op
        self._missing = HEADER_BYTES  # of the header
        self._at = 0  # bytes of the message that are in place
        self._fill = 0  # bytes in the scratch buffer
        self.done = False
        if op is None:
            self._view = out.view(np.uint8).data
        else:
            if not self._scratch.size:
                self._scratch = np.empty(PIECE_BYTES, np.uint8)
            self._piece = self._scratch[: min(PIECE_BYTES, out.nbytes)]
            self._view = self._piece.data

    def step(self) -> bool:
        view = self._view[self._fill :]
        try:
            if not self._missing:
                count = self._stream.read(view)
            elif view:
                count = self._stream.read(self._header[-self._missing :], view)
            else:
                count = self._stream.read(self._header[-self._missing :])
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not count:
            return False
        if self._missing:
            count = self._take_header(count)
        self._fill += count
        if not self._missing and self._fill == len(self._view):
            self._take_piece()
        return True

    def _take_header(self, count: int) -> int:
        """Count off the header's bytes, check it once it is whole, and return how many bytes of payload came too."""
        taken = min(count, self._missing)
        self._missing -= taken
        if not self._missing and self._header != self._packed:
            raise Unexpected.of(bytes(self._header))
        return count - taken

    def _take_piece(self) -> None:
        self._at += self._fill
        if self._op is not None:
            start, stop = (at // self._out.itemsize for at in (self._at - self._fill, self._at))
            combine(self._out[start:stop], self._piece.view(self._out.dtype), self._op)
            self._piece = self._piece[: self._out.nbytes - self._at]
            self._view = self._piece.data
        self._fill = 0
        self.done = self._at == self._out.nbytes


class _Incoming:
    """A receive over several streams."""

    def __init__(self, readers: Sequence[_Reader]) -> None:
        self._readers = readers

    @property
    def done(self) -> bool:
        return all(reader.done for reader in self._readers)

    def step(self) -> bool:
        return sum(reader.step() for reader in self._readers if not reader.done) > 0
