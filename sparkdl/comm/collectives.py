"""Collectives: functions over a transport that all ranks call together, with vectors of equal length and dtype.

Each runs a schedule (`schedules`): what that proves, holds here; `shared_allreduce` alone works in common memory. All
ranks end with the same bits. Vectors are contiguous, one-dimensional, of float64, float32, float16 or an integer type,
and are changed in place; any length will do, none included. A `tag` marks an operation's messages: a rank that is at
another operation gets an error, not its data. Errors are the transport's CommError, with a note on what failed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from sparkdl.comm.executor import compiled, execute
from sparkdl.comm.schedules import (
    ALLREDUCE,
    Hierarchical,
    RingAllgather,
    RingReduceScatter,
    Rooted,
    Schedule,
    chain_broadcast,
    chain_reduce,
    cuts,
    dissemination,
    tree_broadcast,
    tree_reduce,
)
from sparkdl.comm.shared import Shared
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.base import Array, Transport

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Reduction",
    "allgather",
    "allgatherv",
    "allreduce",
    "barrier",
    "broadcast",
    "chain_allreduce",
    "hierarchical_allreduce",
    "rabenseifner_allreduce",
    "recursive_doubling_allreduce",
    "reduce",
    "reduce_scatter",
    "ring_allreduce",
    "segmented_ring_allreduce",
    "shared_allreduce",
    "star_allreduce",
    "tree_allreduce",
]

Reduction = Literal["sum", "mean", "max"]
Algorithm = Schedule | Shared

ALGORITHMS: dict[str, Algorithm] = {**ALLREDUCE, "shared": Shared()}
"""The allreduce algorithms that need to be told nothing, by name: schedules, and the one that is none."""

SEGMENT_BYTES = 1 << 19
SHORT_BYTES = 1 << 16  # up to here a tree's few rounds count for more than a chain's few bytes


def allreduce(
    t: Transport,
    vec: Array,
    op: Reduction = "sum",
    algorithm: str | Algorithm = "ring",
    segment_bytes: int = SEGMENT_BYTES,
    tag: int = 0,
) -> None:
    """Reduce vec (n,) over all ranks, in place: each ends with the same sum, mean or maximum.

    `algorithm` is a name in `ALGORITHMS` or any allreduce schedule; `AllReducer` chooses one by itself. The
    mean is the sum divided at the end, so a float16 sum must fit float16; integers have none. ValueError for a vector
    or a name that will not do.
    """
    _check(vec)
    if op == "mean" and vec.dtype.kind != "f":
        raise ValueError(f"a mean needs a floating-point vector; got {vec.dtype}. Take the sum and divide it.")
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"no allreduce algorithm is called {algorithm!r}; there are {', '.join(ALGORITHMS)}")
        algorithm = ALGORITHMS[algorithm]
    if isinstance(algorithm, Shared):
        algorithm.reduce(t, vec, "sum" if op == "mean" else op, tag)
    else:
        _run(t, algorithm, vec, "sum" if op == "mean" else op, segment_bytes, tag)
    if op == "mean":
        np.divide(vec, t.size, out=vec)


def star_allreduce(t: Transport, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
    """Reduce vec over all ranks through rank 0, in place."""
    allreduce(t, vec, op, "star", tag=tag)


def tree_allreduce(t: Transport, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
    """Reduce vec over all ranks up and down a binomial tree, in place."""
    allreduce(t, vec, op, "tree", tag=tag)


def recursive_doubling_allreduce(t: Transport, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
    """Reduce vec over all ranks by log2 P exchanges of all of it, in place."""
    allreduce(t, vec, op, "recursive_doubling", tag=tag)


def ring_allreduce(t: Transport, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
    """Reduce vec over all ranks around a ring, in place."""
    allreduce(t, vec, op, "ring", tag=tag)


def segmented_ring_allreduce(
    t: Transport, vec: Array, op: Reduction = "sum", segment_bytes: int = SEGMENT_BYTES, tag: int = 0
) -> None:
    """Reduce vec over all ranks around a ring, in segments, in place."""
    allreduce(t, vec, op, "segmented_ring", segment_bytes, tag)


def chain_allreduce(
    t: Transport, vec: Array, op: Reduction = "sum", segment_bytes: int = SEGMENT_BYTES, tag: int = 0
) -> None:
    """Reduce vec over all ranks down and up a pipelined chain, in place."""
    allreduce(t, vec, op, "chain", segment_bytes, tag)


def rabenseifner_allreduce(t: Transport, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
    """Reduce vec over all ranks by recursive halving and doubling, in place."""
    allreduce(t, vec, op, "rabenseifner", tag=tag)


def hierarchical_allreduce(
    t: Transport, vec: Array, hosts: Hosts, op: Reduction = "sum", leaders: int | None = None, tag: int = 0
) -> None:
    """Reduce vec over all ranks, first within each host, in place. `leaders` per host: the smallest host's size."""
    allreduce(t, vec, op, Hierarchical(hosts, leaders or hosts.leaders), tag=tag)


def shared_allreduce(t: Transport, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
    """Reduce vec over all ranks in memory that the ranks of a host share, and by messages between hosts, in place."""
    allreduce(t, vec, op, "shared", tag=tag)


def broadcast(t: Transport, vec: Array, root: int = 0, tag: int = 0) -> None:
    """Root's vec (n,) to all ranks, in place."""
    _check(vec)
    schedule = tree_broadcast if vec.nbytes <= SHORT_BYTES else chain_broadcast
    _run(t, _rooted(t, schedule, root), vec, "sum", SEGMENT_BYTES, tag)


def reduce(t: Transport, vec: Array, op: Literal["sum", "max"] = "sum", root: int = 0, tag: int = 0) -> None:
    """The sum or maximum of vec (n,) over all ranks, in place on root; elsewhere vec is used up."""
    _check(vec)
    schedule = tree_reduce if vec.nbytes <= SHORT_BYTES else chain_reduce
    _run(t, _rooted(t, schedule, root), vec, op, SEGMENT_BYTES, tag)


def reduce_scatter(
    t: Transport,
    vec: Array,
    op: Literal["sum", "max"] = "sum",
    bounds: tuple[int, ...] | None = None,
    tag: int = 0,
) -> Array:
    """Reduce vec (n,) over all ranks, each of which gets its own chunk, a view of vec; the rest of vec is used up.

    Chunk r is vec[bounds[r]:bounds[r + 1]], by default `cuts(n, size)`.
    """
    bounds = _bounds(t, vec, bounds)
    _run(t, RingReduceScatter(bounds), vec, op, 1, tag)
    return vec[bounds[t.rank] : bounds[t.rank + 1]]


def allgather(t: Transport, vec: Array, bounds: tuple[int, ...] | None = None, tag: int = 0) -> None:
    """Each rank's own chunk of vec (n,) to all ranks, in place; chunks as in `reduce_scatter`."""
    _run(t, RingAllgather(_bounds(t, vec, bounds)), vec, "sum", 1, tag)


def allgatherv(t: Transport, part: Array, tag: int = 0) -> list[Array]:
    """The parts (n_r,) of all ranks, in rank order; lengths may differ, dtypes may not. `part` is left as it is."""
    _check(part, written=False)
    counts = np.zeros(t.size, np.int64)
    counts[t.rank] = part.size
    allgather(t, counts, tag=tag)
    bounds = (0, *np.cumsum(counts).tolist())
    whole = np.empty(bounds[-1], part.dtype)
    whole[bounds[t.rank] : bounds[t.rank + 1]] = part
    allgather(t, whole, bounds, tag)
    return [whole[a:b] for a, b in pairwise(bounds)]


def barrier(t: Transport, tag: int = 0) -> None:
    """Return once every rank has called this."""
    _run(t, dissemination, np.zeros(2, np.uint8), "sum", 1, tag)


def _run(t: Transport, schedule: Schedule, vec: Array, op: Literal["sum", "max"], segment_bytes: int, tag: int) -> None:
    segment = max(1, segment_bytes // vec.itemsize)
    execute(t, compiled(schedule, t.rank, t.size, vec.size, segment), vec, op, tag)


def _rooted(t: Transport, schedule: Schedule, root: int) -> Schedule:
    if not 0 <= root < t.size:
        raise ValueError(f"root must be a rank below {t.size}; got {root}")
    return Rooted(schedule, root) if root else schedule


def _bounds(t: Transport, vec: Array, bounds: tuple[int, ...] | None) -> tuple[int, ...]:
    _check(vec)
    if bounds is None:
        return cuts(vec.size, t.size)
    if len(bounds) != t.size + 1 or bounds[0] != 0 or bounds[-1] != vec.size or any(a > b for a, b in pairwise(bounds)):
        raise ValueError(f"bounds must rise from 0 to {vec.size} in {t.size} chunks; got {bounds}")
    return bounds


def _check(vec: Array, written: bool = True) -> None:
    """Raise ValueError before any message has left: later, the other ranks would wait for this one."""
    if written and not vec.flags.writeable:
        raise ValueError("a collective works in place; got a read-only array. Pass a copy.")
    if vec.ndim != 1 or not vec.flags.c_contiguous or vec.dtype.kind not in "fiu":
        raise ValueError(
            f"a collective takes a contiguous one-dimensional array of numbers; got {vec.dtype} of shape {vec.shape}, "
            f"strides {vec.strides}. Pass np.ascontiguousarray(x).reshape(-1)."
        )
