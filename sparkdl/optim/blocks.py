"""Walking a long vector: block by block for the cache, tensor by tensor for the rules that look at one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from sparkdl.optim.base import Array, Segment

__all__ = ["BLOCK", "Span", "blocks", "norm", "runs", "scratch_for", "tensors"]

BLOCK = 32768  # elements: weights, gradient, two slots and scratch of one block fit a second-level cache


class Span(NamedTuple):
    """A stretch of the vector, and whether an exclusion list takes it out of decay and trust."""

    start: int
    stop: int
    excluded: bool


def blocks(start: int, stop: int) -> Iterator[slice]:
    """start..stop in slices of at most BLOCK."""
    for at in range(start, stop, BLOCK):
        yield slice(at, min(at + BLOCK, stop))


def scratch_for(vec: Array) -> Array:
    """One block's worth of memory of the vector's dtype."""
    return np.empty(min(BLOCK, vec.size), vec.dtype)


def tensors(size: int, segments: Iterable[Segment], excluded: Callable[[Segment], bool]) -> Iterator[Span]:
    """The first `size` entries cut at the segments, which come in ascending order.

    Segments past the end (buffers) are left out; entries that no segment covers form a tensor that is not excluded.
    """
    at = 0
    for s in segments:
        if s.start >= size:
            break
        if at < s.start:
            yield Span(at, s.start, False)
        yield Span(s.start, s.stop, excluded(s))
        at = s.stop
    if at < size:
        yield Span(at, size, False)


def runs(spans: Iterable[Span]) -> Iterator[Span]:
    """Neighbours that are treated alike, joined."""
    for excluded, group in groupby(spans, key=lambda span: span.excluded):
        joined: Sequence[Span] = tuple(group)
        yield Span(joined[0].start, joined[-1].stop, excluded)


def norm(vec: Array) -> float:
    """Euclidean norm of vec (n,), summed in float64; inf or NaN where vec holds one, inf where the squares overflow."""
    # Not a BLAS dot product: its bits depend on processor and threads, and replicas must clip alike.
    squares, total = np.empty(min(BLOCK, vec.size), np.float64), 0.0
    with np.errstate(over="ignore"):
        for at in blocks(0, vec.size):
            s = squares[: at.stop - at.start]
            np.copyto(s, vec[at])
            np.multiply(s, s, out=s)
            total += float(s.sum())
    return math.sqrt(total)
