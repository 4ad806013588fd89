"""Low rank: a matrix as the product of two thin ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparkdl.comm.compress.base import Reduce, Segment, Summable, finite, poison
from sparkdl.comm.compress.memory import Memory, Residual, State
from sparkdl.comm.compress.packing import join, take
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT

__all__ = ["PowerSGD"]

DEAD = 100  # a direction of which so many roundings are left lay within those before it


class _Matrix(NamedTuple):
    """A tensor of the vector, read as (rows, columns), and the rank it is sent with."""

    start: int
    rows: int
    columns: int
    rank: int

    def of(self, v: Array) -> Array:
        """A view of v."""
        return v[self.start : self.start + self.rows * self.columns].reshape(self.rows, self.columns)


@dataclass(frozen=True)
class PowerSGD(Summable):
    """M ~ P Q^T of `rank` columns: P = M Q, summed over the ranks and made orthonormal; Q = M^T P, summed.

    One step of power iteration from the last Q, so that it follows the leading directions. A tensor of two axes or more
    is the matrix (all axes but the last, the last); those that would not shrink, vectors, and what no segment covers
    travel as they are. Exact where the sum's rank is at most `rank`. (Vogels et al. 2019, arXiv:1905.13727.)
    """

    rank: int = field(default=2, metadata=COUNT)

    @property
    def memory(self) -> Memory:
        return Residual()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        """`matrices` (4 k,): start, rows, columns, rank of each; `q`: their Q^T (rank, columns), end to end."""
        matrices = list(self._matrices(size, segments))
        # The same on all ranks, by a seed of its own.
        q = np.random.default_rng(1905_13727).standard_normal(sum(m.rank * m.columns for m in matrices))
        return {"matrices": np.array(matrices, np.int64).reshape(-1), "q": q.astype(dtype)}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        if not size:
            return 0
        matrices = list(self._matrices(size, segments))
        thin = sum(m.rank * (m.rows + m.columns) - m.rows * m.columns for m in matrices)
        return 8 + 32 * len(matrices) + itemsize * (size + thin)

    def rounds(self, v: Array, state: State, rng: np.random.Generator, reduce: Reduce) -> tuple[Array, Array]:
        header = state["matrices"]
        matrices = _read(header)
        qs = list(_split(state["q"], [(m.rank, m.columns) for m in matrices]))
        ps = [_unit(q) @ m.of(v).T for m, q in zip(matrices, qs, strict=True)]
        rest = [v[a:b] for a, b in _gaps(v.size, matrices)]
        first = np.concatenate([p.reshape(-1) for p in ps] + rest)
        own_rest = first[first.size - sum(part.size for part in rest) :].copy()
        reduce(first)
        if not finite(first):
            return poison(), poison()
        ps = [_orthonormal(p) for p in _split(first, [(m.rank, m.rows) for m in matrices])]
        second = np.concatenate([(p @ m.of(v)).reshape(-1) for m, p in zip(matrices, ps, strict=True)] + [v[:0]])
        own = _message(header, ps, second, own_rest)
        reduce(second)
        if not finite(second):
            return poison(), poison()
        for q, new in zip(qs, _split(second, [q.shape for q in qs]), strict=True):
            alive = new.any(axis=1)  # a direction that met nothing keeps its Q, or it would be lost for ever
            q[alive] = new[alive]
        return own, _message(header, ps, second, first[first.size - own_rest.size :])

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        count, message = take(message, 1, np.int64)
        header, message = take(message, int(count[0]), np.int64)
        matrices, values = _read(header), message.view(out.dtype)
        shapes = [(m.rank, m.rows) for m in matrices] + [(m.rank, m.columns) for m in matrices]
        gaps = _gaps(out.size, matrices)
        parts = list(_split(values, shapes + [(b - a,) for a, b in gaps]))
        for m, p, q in zip(matrices, parts, parts[len(matrices) :], strict=False):
            # Products and sums of single elements: a matrix product has other bits on other processors.
            for column, row in zip(p, q * out.dtype.type(scale), strict=True):
                m.of(out)[...] += column[:, None] * row
        for (a, b), part in zip(gaps, parts[2 * len(matrices) :], strict=True):
            out[a:b] += part * out.dtype.type(scale)

    def _matrices(self, size: int, segments: Sequence[Segment]) -> Iterator[_Matrix]:
        for s in segments:
            if len(s.shape) < 2 or s.stop > size:
                continue
            rows, columns = prod(s.shape[:-1]), s.shape[-1]
            rank = min(self.rank, rows, columns)
            if rank * (rows + columns) < rows * columns:
                yield _Matrix(s.start, rows, columns, rank)


def _read(header: Array) -> list[_Matrix]:
    return [_Matrix(*row) for row in header.reshape(-1, 4).tolist()]


def _message(header: Array, ps: Sequence[Array], q: Array, rest: Array) -> Array:
    return join(np.array([header.size], np.int64), header, *ps, q, rest)


def _split(flat: Array, shapes: Sequence[tuple[int, ...]]) -> Iterator[Array]:
    """Views of flat in these shapes, one after the other."""
    at = 0
    for shape in shapes:
        yield flat[at : at + prod(shape)].reshape(shape)
        at += prod(shape)


def _gaps(size: int, matrices: Sequence[_Matrix]) -> list[tuple[int, int]]:
    """What of the vector lies in none of the matrices."""
    edges = [0, *(edge for m in matrices for edge in (m.start, m.start + m.rows * m.columns)), size]
    return [(a, b) for a, b in list(pairwise(edges))[::2] if a < b]


def _unit(q: Array) -> Array:
    """Q^T with rows of maximum 1: P is then of the gradient's own magnitude, not of its square."""
    largest = np.abs(q).max(axis=1, keepdims=True, initial=0)
    unit: Array = np.divide(q, largest, out=np.zeros_like(q), where=largest > 0)
    return unit


def _orthonormal(p: Array) -> Array:
    """The rows of p (rank, n) made orthonormal, by Gram and Schmidt, twice; a row within those before it becomes 0.

    In float64, without matrix products, so that all ranks get the same bits.
    """
    rows = p.astype(np.float64)
    tolerance = DEAD * float(np.finfo(p.dtype).eps)
    for k, row in enumerate(rows):
        largest = float(np.abs(row).max(initial=0))
        if not largest:
            continue
        row /= largest
        whole = _norm(row)
        for _ in range(2):
            for other in rows[:k]:
                row -= float(np.sum(row * other)) * other
        left = _norm(row)
        row *= 1 / left if left > tolerance * whole else 0
    out: Array = rows.astype(p.dtype)
    return out


def _norm(row: Array) -> float:
    return float(np.sqrt(np.sum(np.square(row))))
