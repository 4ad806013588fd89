"""Ctrl-C as a polite request: the first one stops training after the step at hand, the second at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sparkdl.train.run import Run

__all__ = ["INTERRUPTED", "stop_on_interrupt"]

log = logging.getLogger(__name__)

INTERRUPTED = "interrupted"


@contextmanager
def stop_on_interrupt(run: Run) -> Iterator[None]:
    """While open, SIGINT and SIGTERM stop the run; a second one raises KeyboardInterrupt.

    Signals reach the main thread only: a fit on another thread is left to its caller.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if run.stop_reason == INTERRUPTED:
            raise KeyboardInterrupt
        log.warning("interrupted: stopping after this step; once more to stop at once")
        run.stop(INTERRUPTED)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
