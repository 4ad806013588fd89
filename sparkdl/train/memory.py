"""Memory that a training process keeps between steps.

A step asks for the same large arrays as the one before. As glibc's allocator comes set up, it hands much of what is
freed back to the system, and the next step pays for fresh pages: a tenth to a fifth of the time of a small
convolutional net. While a process trains, it keeps them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

__all__ = ["hold", "release"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_IN_HEAP = 32 << 20  # what glibc takes at most: a larger array is mapped, and unmapped when freed
HELD, USUAL = (1 << 31) - 1, 64 << 20  # bytes free at the heap's end from which on they are given back


def hold() -> None:
    """From now on, keep what is freed. Does nothing where the C library is not glibc."""
    if (libc := _glibc()) is not None:
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        libc.mallopt(M_TRIM_THRESHOLD, HELD)


def release() -> None:
    """Give back what is free, and from now on what will be."""
    if (libc := _glibc()) is not None:
        libc.mallopt(M_TRIM_THRESHOLD, USUAL)
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError, TypeError):
        return None
    return libc
