"""A pipe that wakes a sleeping rank: rung by its own monitor, and by peers that share memory with it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

__all__ = ["Doorbell", "ring"]


class Doorbell:
    """A byte in a pipe. Ringing never blocks: a full pipe already wakes. Any thread may ring, also after the end."""

    def __init__(self) -> None:
        self._lock, self._closed = threading.Lock(), False
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self.write_end, False)

    def fileno(self) -> int:
        return self._read_end

    def ring(self) -> None:
        """Wake its owner, unless it is closed."""
        with self._lock:  # once closed, its descriptors may be another's
            if not self._closed:
                ring(self.write_end)

    def silence(self) -> None:
        """Forget the rings so far."""
        with suppress(BlockingIOError):
            os.read(self._read_end, 4096)

    def close(self) -> None:
        """Release the pipe."""
        with self._lock:
            self._closed = True
            os.close(self._read_end)
            os.close(self.write_end)


def ring(write_end: int) -> None:
    """Ring another rank's doorbell; one that is gone needs no waking."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(write_end, b"!")
