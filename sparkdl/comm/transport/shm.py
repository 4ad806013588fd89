"""The shared-memory channel of two ranks on one host: a ring of bytes for each direction.

Each ring has one writer, who alone stores `head` (bytes written so far), and one reader, who alone stores `tail`
(bytes read so far). Data is written before the counter that announces it: processors that keep stores in order (x86)
need no more than that, on others the mesh uses TCP. A rank that has looked in vain for a while sets its `asleep` word
and sleeps on its doorbell; the peer rings when it finds the word set.
"""

from __future__ import annotations

import mmap
import os
import select
import threading
from collections import deque
from contextlib import suppress

import numpy as np

from sparkdl.comm.transport.base import Array, Op, combine
from sparkdl.comm.transport.channel import Channel, ChannelClosed, Task, Unexpected
from sparkdl.comm.transport.doorbell import ring
from sparkdl.comm.transport.frames import HEADER_BYTES, Header

__all__ = ["CONTROL_BYTES", "ShmChannel"]

CONTROL_BYTES = 4096  # the page before the two rings
PIECE_BYTES = 512 * 1024  # written or read before the other direction has its turn
_LINE = 64  # bytes of a cache line: counters lie apart, headers and payloads start on one
_STEP = _LINE // 8
_HEAD, _TAIL, _ASLEEP, _CLOSED = range(0, 8 * _STEP, 2 * _STEP)  # words of side 0; those of side 1 lie a line further


class ShmChannel(Channel):
    """One peer over `memory`; `side` is 0 at one end and 1 at the other. Owns memory and the peer's doorbell."""

    def __init__(self, memory: mmap.mmap, side: int, doorbell: int) -> None:
        capacity = (len(memory) - CONTROL_BYTES) // 2
        rings = [memoryview(memory)[CONTROL_BYTES + i * capacity :][:capacity] for i in (0, 1)]
        self._memory, self._closed = memory, False
        self._words = _Words(memoryview(memory)[:CONTROL_BYTES].cast("Q"), side, doorbell)
        self._writer = _Writer(self._words, side, rings[side])
        self._reader = _Reader(self._words, 1 - side, rings[1 - side])

    def send(self, header: Header, buf: Array) -> Task:
        task = _Outgoing(self._writer, header, buf)
        self._writer.queue.append(task)
        self._writer.push()
        return task

    def push(self) -> bool:
        return bool(self._writer.queue) and self._writer.push()

    @property
    def sending(self) -> bool:
        return bool(self._writer.queue)

    def expect(self, header: Header, out: Array, op: Op | None) -> Task:
        self._reader.begin(header, out, op)
        return self._reader

    def peek(self) -> Unexpected | None:
        """The next message, if one has come and nobody has asked for it yet."""
        return self._reader.peek()

    def wake(self) -> None:
        """Ring the peer's doorbell."""
        self._words.wake()

    @property
    def news(self) -> bool:
        return self._reader.ready

    def watch(self, poller: select.poll, reading: bool) -> bool:
        self._words.sleep()
        return not ((reading and self._reader.ready) or (self.sending and self._writer.ready))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._words.leave()
            self._writer.release()
            self._reader.release()
            with suppress(BufferError):  # a view in a traceback keeps the mapping until it goes itself
                self._memory.close()


class _Words:
    """The control page: the counters, who sleeps, who has left."""

    def __init__(self, words: memoryview, side: int, doorbell: int) -> None:
        self._words, self._doorbell = words, doorbell
        self._mine, self._peers = side * _STEP, (1 - side) * _STEP
        self._fence = threading.Lock()  # taking it is an atomic exchange: no load moves ahead of an earlier store

    def load(self, word: int) -> int:
        return self._words[word]

    @property
    def peer_left(self) -> bool:
        return bool(self._words[_CLOSED + self._peers])

    def publish(self, word: int, value: int) -> None:
        """Store a counter and wake the peer if it sleeps."""
        self._words[word] = value
        with self._fence:
            asleep = self._words[_ASLEEP + self._peers]
        if asleep:
            self._words[_ASLEEP + self._peers] = 0
            self.wake()

    def wake(self) -> None:
        ring(self._doorbell)

    def sleep(self) -> None:
        """Ask to be woken; the counters must be looked at once more before sleeping."""
        self._words[_ASLEEP + self._mine] = 1
        with self._fence:
            pass

    def leave(self) -> None:
        """Tell the peer that nothing more will come."""
        self.publish(_CLOSED + self._mine, 1)
        self._words.release()
        os.close(self._doorbell)


class _Outgoing:
    """A message that is not wholly in the ring yet."""

    __slots__ = ("_writer", "at", "data", "done", "header")

    def __init__(self, writer: _Writer, header: Header, buf: Array) -> None:
        self._writer = writer
        self.header = header.pack()
        self.data = buf.view(np.uint8).data
        self.at = -1  # bytes in the ring; -1: not even the header
        self.done = False

    def step(self) -> bool:
        return self._writer.push()


class _Writer:
    """The sending end of a ring."""

    def __init__(self, words: _Words, direction: int, ring: memoryview) -> None:
        self.queue: deque[_Outgoing] = deque()
        self._words, self._ring, self._capacity = words, ring, len(ring)
        self._head_at, self._tail_at = (at + direction * _STEP for at in (_HEAD, _TAIL))
        self._head = 0

    @property
    def ready(self) -> bool:
        return self._words.peer_left or self._head - self._words.load(self._tail_at) < self._capacity

    def push(self) -> bool:
        """Write the next piece of the first message, if there is room."""
        free = self._capacity - self._head + self._words.load(self._tail_at)
        if not free:
            if self._words.peer_left:
                raise ChannelClosed("connection closed by the peer")
            return False
        message, ring = self.queue[0], self._ring
        start = self._head % self._capacity
        if message.at < 0:
            ring[start : start + HEADER_BYTES] = message.header
            message.at = 0
            self._head += _LINE
            free -= _LINE
            start = (start + _LINE) % self._capacity
        at = message.at
        count = min(free, self._capacity - start, len(message.data) - at, PIECE_BYTES)
        if count:
            ring[start : start + count] = message.data[at : at + count]
            message.at += count
            self._head += -(-count // _LINE) * _LINE
        if message.at == len(message.data):
            message.done = True
            self.queue.popleft()
        self._words.publish(self._head_at, self._head)
        return True

    def release(self) -> None:
        self._ring.release()


class _Reader:
    """The receiving end of a ring: copies out of it, or combines straight from it."""

    def __init__(self, words: _Words, direction: int, ring: memoryview) -> None:
        self._words, self._ring, self._capacity = words, ring, len(ring)
        self._head_at, self._tail_at = (at + direction * _STEP for at in (_HEAD, _TAIL))
        self._tail = 0
        self.done = True

    @property
    def ready(self) -> bool:
        return self._words.peer_left or self._words.load(self._head_at) != self._tail

    def begin(self, expected: Header, out: Array, op: Op | None) -> None:
        self._expected = expected.pack()
        self._out, self._op = out, op
        self._bytes = out.view(np.uint8).data
        self._at = -1  # bytes of the message that are in place; -1: the header is to come
        self.done = False

    def step(self) -> bool:
        left = self._words.peer_left  # looked at first: what was written before it must still be found
        available = self._words.load(self._head_at) - self._tail
        if not available:
            if left:
                raise ChannelClosed("connection closed by the peer")
            return False
        start = self._tail % self._capacity
        if self._at < 0:
            self._take_header()
            self._tail += _LINE
            available -= _LINE
            start = (start + _LINE) % self._capacity
        count = min(available, self._capacity - start, len(self._bytes) - self._at, PIECE_BYTES)
        if count:
            self._take_piece(self._ring[start : start + count])
            self._tail += -(-count // _LINE) * _LINE
        self.done = self._at == len(self._bytes)
        self._words.publish(self._tail_at, self._tail)
        return True

    def peek(self) -> Unexpected | None:
        if not self.done or self._words.load(self._head_at) == self._tail:
            return None
        return Unexpected.of(self._next_header())

    def _next_header(self) -> bytes:
        start = self._tail % self._capacity
        return bytes(self._ring[start : start + HEADER_BYTES])

    def _take_header(self) -> None:
        header = self._next_header()
        if header != self._expected:
            raise Unexpected.of(header)
        self._at = 0

    def _take_piece(self, piece: memoryview) -> None:
        start, self._at = self._at, self._at + len(piece)
        if self._op is None:
            self._bytes[start : self._at] = piece
        else:
            out = self._out[start // self._out.itemsize : self._at // self._out.itemsize]
            combine(out, np.frombuffer(piece, out.dtype), self._op)

    def release(self) -> None:
        self._ring.release()
