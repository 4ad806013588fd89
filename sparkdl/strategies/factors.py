"""Gradients of weight matrices as the factors whose product they are, where that moves fewer bytes.

Of a dense layer with input x (R, D) and delta (R, units) the gradient is x^T delta (D, units), of rank R: with R rows a
worker sends R (D + units) numbers in place of D units, and the server forms the product.
Chilimbi et al. 2014 (Project Adam, OSDI), section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn import Array
from sparkdl.nn.gradients import Fresh, add_product
from sparkdl.nn.layout import Layout

__all__ = ["FactorCodec", "Factors", "at_rows"]

DENSE = -1


class _Piece(NamedTuple):
    """Part [start, stop) of a server's entries: of the tensor at `tensor`, from its row `row` on.

    columns: of the matrix that it is, or 0.
    """

    tensor: int
    start: int
    stop: int
    row: int
    columns: int

    @property
    def rows(self) -> int:
        return (self.stop - self.start) // max(self.columns, 1)


class _Pair(NamedTuple):
    """x (R, D) and delta (R, units)."""

    x: Array
    delta: Array

    def squares(self) -> float:
        """|x^T delta|_F^2 = sum((x x^T) * (delta delta^T)), without the product itself."""
        x, delta = (a.astype(np.float64, copy=False) for a in self)
        with np.errstate(all="ignore"):  # what is not finite stays so
            found = float(np.sum((x @ x.T) * (delta @ delta.T)))
        return 0.0 if found < 0 else found  # by rounding


def at_rows(bounds: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The bounds, each moved to the nearest row of the matrix in which it lies."""

    def moved(at: int) -> int:
        for s in layout.trainable_segments:
            if s.start < at < s.stop and len(s.shape) == 2:
                return s.start + round((at - s.start) / s.shape[1]) * s.shape[1]
        return at

    return tuple(map(moved, bounds))


@dataclass(frozen=True)
class FactorCodec:
    """What a server's entries look like on the wire: an int64 for each of its tensors, then numbers.

    -1: the tensor's entries follow; R: the factors of a matrix, its own columns of x (R, rows) and delta (R, columns).
    """

    pieces: tuple[_Piece, ...]

    def encode(self, vec: Array, pairs: dict[int, _Pair]) -> Array:
        """Entries vec (n,) of this server, and in place of some tensors their factors, as bytes."""
        table, chunks = np.full(len(self.pieces), DENSE), []
        for i, p in enumerate(self.pieces):
            pair = pairs.get(p.tensor)
            if pair is None:
                chunks.append(vec[p.start : p.stop])
            else:
                table[i] = len(pair.x)
                chunks += [pair.x[:, p.row : p.row + p.rows].ravel(), pair.delta.ravel()]
        return np.concatenate([a.view(np.uint8) for a in (table, *chunks)])

    def add_into(self, vec: Array, message: Array) -> None:
        """Add what was encoded to vec (n,), in place. Errors: ValueError for a message that cannot be that."""
        table = message[: 8 * len(self.pieces)].view(np.int64).tolist()
        values, at = message[8 * len(self.pieces) :].view(vec.dtype), 0
        known = tuple(zip(table, self.pieces, strict=True))
        wanted = sum(p.stop - p.start if r == DENSE else r * (p.rows + p.columns) for r, p in known)
        if values.size != wanted or any(r < DENSE or (r > DENSE and not p.columns) for r, p in known):
            raise ValueError(f"a push of {values.size} numbers, where {wanted} would be right for its table {table}")
        for r, p in known:
            target = vec[p.start : p.stop]
            if r != DENSE:
                x = values[at : at + r * p.rows].reshape(r, p.rows)
                at += x.size
                delta = values[at : at + r * p.columns].reshape(r, p.columns)
                at += delta.size
                target.reshape(p.rows, p.columns)[...] += x.T @ delta
            else:
                target += values[at : at + target.size]
                at += target.size


class Factors:
    """A worker's gradient in part as factors: `take` is its `Ctx.outer`. `bounds` cut the entries for the servers.

    A layer that runs several times in a pass has the rows of all its runs, until they are too many: then its gradient
    is formed after all.
    """

    def __init__(self, layout: Layout, bounds: Sequence[int]) -> None:
        self.codecs = [_codec(layout, slice(a, b)) for a, b in pairwise(bounds)]
        pieces = [p for codec in self.codecs for p in codec.pieces if p.columns]
        self._shapes = {s.start: s.shape for s in layout.trainable_segments if len(s.shape) == 2}
        self._parts = {p.tensor: sum(q.tensor == p.tensor for q in pieces) for p in pieces}
        self._pairs: dict[int, _Pair] = {}
        self._formed: set[int] = set()
        self._vec: Array = np.empty(0)

    def begin(self, vec: Array) -> None:
        """A new gradient, which is written into vec; what was taken of the last one is forgotten."""
        self._vec, self._pairs, self._formed = vec, {}, set()

    def nothing(self) -> None:
        """There are no rows: every matrix is a product of none."""
        dtype = self._vec.dtype
        self._pairs = {at: _Pair(*(np.empty((0, n), dtype) for n in self._shapes[at])) for at in self._parts}

    def take(self, into: Any, x: Array, dy: Array) -> bool:
        """As `nn.Ctx.outer`."""
        g = into.array if isinstance(into, Fresh) else into
        tensor = (g.ctypes.data - self._vec.ctypes.data) // self._vec.itemsize
        if tensor not in self._parts or tensor in self._formed:
            return False
        earlier = self._pairs.pop(tensor, None)
        pair = _Pair(x.copy(), dy.copy())
        if earlier is not None:
            pair = _Pair(np.concatenate((earlier.x, x)), np.concatenate((earlier.delta, dy)))
        if len(pair.x) * (len(g) + self._parts[tensor] * g.shape[1]) < g.size:
            self._pairs[tensor] = pair
            return True
        self._formed.add(tensor)
        if earlier is not None:
            add_product(into, earlier.x.T, earlier.delta)
        return False

    def squares(self) -> float:
        """The sum of squares of all entries that are here as factors."""
        return sum(pair.squares() for pair in self._pairs.values())

    def scale(self, factor: float) -> None:
        """Multiply all that is here by the factor, in place."""
        for pair in self._pairs.values():
            np.multiply(pair.delta, factor, out=pair.delta)

    def message(self, k: int, vec: Array) -> Array:
        """For server k, with its entries vec (n,) of the rest."""
        return self.codecs[k].encode(vec, self._pairs)


def _codec(layout: Layout, part: slice) -> FactorCodec:
    pieces = []
    for s in layout.trainable_segments:
        start, stop = max(s.start, part.start), min(s.stop, part.stop)
        columns = s.shape[1] if len(s.shape) == 2 else 0
        if start < stop:
            row = (start - s.start) // columns if columns else 0
            pieces.append(_Piece(s.start, start - part.start, stop - part.start, row, columns))
    return FactorCodec(tuple(pieces))
