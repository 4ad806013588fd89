"""What is wrong with rows: counted by column and reason, each with its first example."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Array", "Finding", "Findings", "Found", "merge_found"]

Array = np.ndarray[Any, np.dtype[Any]]
EXCERPT = 80  # characters of a value that a message shows


class Finding(NamedTuple):
    """`rows` rows have this fault; the first is row `row` of partition `place`, and `text` describes it."""

    rows: int
    place: int
    row: int
    text: str


Found = dict[tuple[str, str], Finding]  # (column, reason) -> Finding


class Findings:
    """Collects the faults of one batch, whose first row is row `start` of partition `place`.

    `bad` (N,) bool marks the rows that cannot be used.
    """

    def __init__(self, rows: int, place: int = 0, start: int = 0) -> None:
        self.bad = np.zeros(rows, bool)
        self.found: Found = {}
        self._place, self._start = place, start

    def add(self, column: str, reason: str, rows: Array, text: object, keep: bool = False) -> None:
        """Rows (indices, ascending, no doubles) have a fault; text describes the first. `keep` lets them pass."""
        if len(rows) == 0:
            return
        if not keep:
            self.bad[rows] = True
        excerpt = text if isinstance(text, str) else repr(text)
        excerpt = excerpt if len(excerpt) <= EXCERPT else excerpt[: EXCERPT - 3] + "..."
        finding = Finding(len(rows), self._place, self._start + int(rows[0]), excerpt)
        merge_found(self.found, {(column, reason): finding})


def merge_found(into: Found, other: Found) -> None:
    """Add the counts of other and keep the first examples, in place."""
    for key, new in other.items():
        old = into.get(key)
        if old is not None:
            first = min(old, new, key=lambda f: (f.place, f.row))
            new = first._replace(rows=old.rows + new.rows)
        into[key] = new
