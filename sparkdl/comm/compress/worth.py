"""Whether a compressor moves fewer bytes than an uncompressed allreduce would."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from sparkdl.comm.compress.base import Compressor, Route, Segment
from sparkdl.comm.schedules import cuts

__all__ = ["BreakEven", "break_even"]


class BreakEven(NamedTuple):
    """Bytes that a rank sends for one sum, compressed and dense; a warning where compression moves more."""

    sent: float
    dense: float
    warning: str | None

    @property
    def ratio(self) -> float:
        """Sent to dense; 1 where there is nothing to send."""
        return self.sent / self.dense if self.dense else 1.0


def break_even(
    compressor: Compressor,
    size: int,
    itemsize: int,
    ranks: int,
    segments: Sequence[Segment] = (),
    route: Route | None = None,
) -> BreakEven:
    """Predict what `compressed_allreduce` of (size,) sends per rank, against 2 (P - 1) / P n of a ring.

    A message of m bytes costs (P - 1) m where all are gathered, and 2 (P - 1) / P m where they are reduced or summed in
    two phases. Pairs of value and index, gathered, therefore pay below a ratio of 1 / P only, and gathered bits below
    64 ranks. `route` supposes another way than the compressor's own.
    """
    route = route or compressor.route
    dense = 2 * (ranks - 1) / ranks * size * itemsize
    if route == "gather":
        sent = float((ranks - 1) * compressor.nbytes(size, itemsize, segments))
    elif route == "two_phase":
        chunks = [b - a for a, b in pairwise(cuts(size, ranks))]
        sent = 2 * (ranks - 1) / ranks * sum(compressor.nbytes(chunk, itemsize) for chunk in chunks)
    else:
        sent = 2 * (ranks - 1) / ranks * compressor.nbytes(size, itemsize, segments)
    return BreakEven(sent, dense, _warning(compressor, route, sent, dense, ranks) if sent > dense else None)


def _warning(compressor: Compressor, route: Route, sent: float, dense: float, ranks: int) -> str:
    figures = (
        f"{compressor} sends {sent:,.0f} bytes per rank and step among {ranks} ranks, where none sends {dense:,.0f}"
    )
    if route == "gather":
        return (
            f"{figures}: its messages go to all ranks, so that their bytes grow with the ranks. Lower the ratio or the "
            "levels, or take what is summed on the way: power_sgd, random_k, one_bit, int8, fp16."
        )
    return f"{figures}. Take fewer bits or a lower rank, or none."
