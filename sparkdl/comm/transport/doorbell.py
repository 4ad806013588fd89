"""A pipe that wakes a sleeping rank: rung by its own monitor, and by peers that share memory with it."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["Doorbell", "ring"]


class Doorbell:
    """A byte in a pipe. Ringing never blocks: a full pipe already wakes."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self.write_end, False)

    def fileno(self) -> int:
        return self._read_end

    def ring(self) -> None:
        ring(self.write_end)

    def silence(self) -> None:
        """Forget the rings so far."""
        with suppress(BlockingIOError):
            os.read(self._read_end, 4096)

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self.write_end)


def ring(write_end: int) -> None:
    """Ring another rank's doorbell; one that is gone needs no waking."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(write_end, b"!")
