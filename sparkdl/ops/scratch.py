"""Arrays for what a kernel needs only until it returns, in memory that each thread keeps for the next call."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

__all__ = ["scratch"]

_kept = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """An array of undefined contents, which the thread's next call with this name overwrites."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = getattr(_kept, name, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(size, np.uint8)
        setattr(_kept, name, buffer)
    found: np.ndarray[Any, np.dtype[Any]] = buffer[:size].view(dtype).reshape(shape)
    return found
