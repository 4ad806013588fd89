"""What every benchmark shares: one row a comparison, a table, `--json FILE`, medians of alternating runs."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Row", "alternate", "arguments", "report"]


@dataclass(frozen=True)
class Row:
    """One comparison, both sides measured in the same run; ratio > 1 says that ours is better."""

    name: str
    ours: float
    rival: float
    ratio: float
    unit: str

    @classmethod
    def less_is_better(cls, name: str, ours: float, rival: float, unit: str) -> Row:
        """For times and sizes."""
        return cls(name, ours, rival, rival / ours, unit)

    @classmethod
    def more_is_better(cls, name: str, ours: float, rival: float, unit: str) -> Row:
        """For rates."""
        return cls(name, ours, rival, ours / rival, unit)


def alternate(
    ours: Callable[[], object], rival: Callable[[], object], runs: int, warm_up: int = 1
) -> tuple[float, float]:
    """Median seconds of each side, run in turn after `warm_up` runs of both, so that a noisy spell strikes both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + warm_up):
        for side, times in zip((ours, rival), seconds, strict=True):
            started = time.perf_counter()
            side()
            if run >= warm_up:
                times.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser that knows --json."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as JSON too")
    return parser


def report(rows: Iterable[Row], json_path: Path | None) -> None:
    """Print the rows as a table; write them as JSON where asked to."""
    rows = list(rows)
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'ours':>12}  {'rival':>12}  {'ratio':>7}  unit")
    for row in rows:
        print(f"{row.name:{width}}  {row.ours:12,.4g}  {row.rival:12,.4g}  {row.ratio:7.2f}  {row.unit}")
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
