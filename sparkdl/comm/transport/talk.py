"""A connection on its way through a conversation: bytes out, bytes in, without waiting."""

from __future__ import annotations

import selectors
from collections.abc import Generator

from sparkdl.comm.transport.auth import Edge
from sparkdl.comm.transport.shm import ShmChannel
from sparkdl.comm.transport.stream import Stream

__all__ = ["Script", "Talk"]

Script = Generator[tuple[bytes, int], bytes, tuple[Edge, ShmChannel | None]]


class Talk:
    """One connection. `advance` as often as the socket is ready; its result stands in `result` at the end."""

    result: tuple[Edge, ShmChannel | None]

    def __init__(self, stream: Stream, script: Script, deadline: float, name: str, edge: Edge | None) -> None:
        self.stream, self.deadline, self.name, self.edge = stream, deadline, name, edge
        self._script = script
        self._outgoing, wanted = next(script)
        self._incoming = memoryview(bytearray(wanted))
        self._filled = 0
        self._secured = False

    def advance(self) -> int:
        """Go on as far as possible; the selector events to wait for, or 0 at the end. OSError and Refused pass."""
        if not self._secured:
            if waiting := self.stream.secure():
                return waiting
            self._secured = True
        while True:
            if self._outgoing:
                if not (count := self.stream.write(memoryview(self._outgoing))):
                    return selectors.EVENT_WRITE
                self._outgoing = self._outgoing[count:]
            elif self._filled < len(self._incoming):
                if not (count := self.stream.read(self._incoming[self._filled :])):
                    return selectors.EVENT_READ
                self._filled += count
            else:
                try:
                    self._outgoing, wanted = self._script.send(bytes(self._incoming))
                except StopIteration as end:
                    self.result = end.value
                    return 0
                self._incoming, self._filled = memoryview(bytearray(wanted)), 0

    def close(self) -> None:
        self._script.close()
        self.stream.close()
