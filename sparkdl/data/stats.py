"""What the tasks that read the data learn about it, and its merging: small, and independent of the rows' order."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from sparkdl.data.findings import Array, Finding, Findings, Found, merge_found
from sparkdl.data.moments import Moments
from sparkdl.data.schema import Packing, Shape

__all__ = ["MAX_LABELS", "Stats", "alike_remedy", "complaint", "describe"]

MAX_LABELS = 10_000  # distinct labels that are told apart
SHAPE_FAULTS = {"wrong length", "wrong size"}
KEEPABLE = {"null", "null element", "NaN", "infinite"}
MAX_REASONS = 5  # faults that a message lists


class Stats:
    """Counts of rows read and dropped, faults, shapes of (features, target), distinct labels, moments of features.

    `labels` is None where there are more than MAX_LABELS.
    """

    def __init__(self) -> None:
        self.rows = self.dropped = 0
        self.found: Found = {}
        self.shapes: set[tuple[Shape, Shape]] = set()
        self.labels: set[Any] | None = set()
        self.moments: Moments | None = None

    def add_findings(self, findings: Findings) -> None:
        """Count the rows of one batch and their faults."""
        self.rows += len(findings.bad)
        self.dropped += int(findings.bad.sum())
        merge_found(self.found, findings.found)

    def add_labels(self, y: pa.Array) -> None:
        """Note the distinct labels of a batch."""
        self._merge_labels(set(y.unique().to_pylist()))

    def add_moments(self, x: Array) -> None:
        """Add training rows x (N, D) to the moments."""
        if self.moments is None:
            self.moments = Moments(x.shape[1])
        self.moments.add(x)

    def merge(self, other: Stats) -> None:
        """Add the other's rows, in place."""
        self.rows += other.rows
        self.dropped += other.dropped
        merge_found(self.found, other.found)
        self.shapes |= other.shapes
        self._merge_labels(other.labels)
        if self.moments is None:
            self.moments = other.moments
        elif other.moments is not None and len(self.shapes) == 1:
            self.moments.merge(other.moments)

    def to_json(self) -> str:
        return json.dumps(
            {
                "rows": self.rows,
                "dropped": self.dropped,
                "found": [[*key, *finding] for key, finding in self.found.items()],
                "shapes": sorted(self.shapes),
                "labels": None if self.labels is None else sorted(self.labels),
                "moments": None if self.moments is None else self.moments.to_json(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Stats:
        data = json.loads(text)
        new = cls()
        new.rows, new.dropped = data["rows"], data["dropped"]
        new.found = {(column, reason): Finding(*rest) for column, reason, *rest in data["found"]}
        new.shapes = {(tuple(x), tuple(y)) for x, y in data["shapes"]}
        new.labels = None if data["labels"] is None else set(data["labels"])
        new.moments = None if data["moments"] is None else Moments.from_json(data["moments"])
        return new

    def _merge_labels(self, labels: set[Any] | None) -> None:
        if self.labels is not None:
            self.labels = None if labels is None else self.labels | labels
        if self.labels is not None and len(self.labels) > MAX_LABELS:
            self.labels = None


def complaint(found: Found, rows: int, dropped: int, packing: Packing) -> str | None:
    """What to tell the user of faults that `handle_invalid` does not forgive; None where there are none."""
    bad = {key: finding for key, finding in found.items() if not _forgiven(*key, packing)}
    return describe(bad, rows, dropped) + f" {_remedy(bad, packing)}" if bad else None


def describe(found: Found, rows: int, dropped: int) -> str:
    """Counts by column and reason, and the first example."""
    faults = sorted(found.items(), key=lambda item: -item[1].rows)
    listed = "; ".join(f"column {column!r}: {reason} in {f.rows:,}" for (column, reason), f in faults[:MAX_REASONS])
    more = f"; and {len(faults) - MAX_REASONS} more" if len(faults) > MAX_REASONS else ""
    (column, _), first = min(found.items(), key=lambda item: (item[1].place, item[1].row))
    example = f"partition {first.place}, row {first.row}, column {column!r}: {first.text}"
    return f"{dropped:,} of {rows:,} rows cannot be used ({listed}{more}). The first: {example}."


def _forgiven(column: str, reason: str, packing: Packing) -> bool:
    policy, features = packing.spec.handle_invalid, packing.features
    if policy == "skip":
        # Without a declared shape nobody knows which of two lengths is the wrong one.
        return features.shape is not None or reason not in SHAPE_FAULTS
    return policy == "keep" and features.keep and column in features.columns and reason in KEEPABLE


def alike_remedy(packing: Packing) -> str:
    """What to do where samples have different shapes."""
    if packing.features.kind != "image":
        return "Make the values equal in length, or say with data.shape which length is right."
    if packing.features.shape is not None:
        return (
            'Bring all images to data.shape with data.resize = "crop" or "stretch", or leave the others out with '
            'data.handle_invalid = "skip".'
        )
    return (
        "Make the images alike, or say with data.shape which size is right: data.resize = "
        '"crop" or "stretch" then brings all to it, and data.channels alone makes grey and coloured ones alike.'
    )


def _remedy(bad: Found, packing: Packing) -> str:
    shape_fault = any(reason in SHAPE_FAULTS for _, reason in bad)
    if shape_fault and (packing.features.shape is None or packing.features.kind == "image"):
        return alike_remedy(packing)
    if packing.spec.handle_invalid == "keep":
        return 'data.handle_invalid = "keep" forgives only nulls, NaN and infinities among numeric features.'
    return 'Mend the data, or leave such rows out with data.handle_invalid = "skip".'
