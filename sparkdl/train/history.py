"""What a fit achieved, epoch by epoch: records, files, a table, a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkdl.train.files import jsonable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["History", "Record"]

Record = dict[str, Any]  # name -> number, or list of numbers (a confusion matrix)

NOT_PLOTTED = {"epoch", "step", "rows", "lr", "samples_per_s", "skipped", "slowest_rank"}
TABLE_ROWS = 20  # epochs shown from the start and the end of a long history


class History:
    """One record an epoch: `history["val_accuracy"]` is the list of that figure, `history[-1]` the last record."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.records: list[Record] = [dict(r) for r in records]

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one epoch's figures; names may differ between epochs (validation need not run in each)."""
        self.records.append({name: _plain(value) for name, value in record.items()})

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self.to_json() == other.to_json()

    def __contains__(self, name: object) -> bool:
        return any(name in r for r in self.records)

    def __getitem__(self, name: str | int) -> Any:
        """By name: that figure of every epoch, NaN where an epoch has none. By number: that epoch's record.

        Errors: KeyError naming the known figures, IndexError.
        """
        if isinstance(name, int):
            return self.records[name]
        if name not in self:
            raise KeyError(f"no figure {name!r} in this history; it holds: {', '.join(self.names) or 'nothing yet'}.")
        return [r.get(name, math.nan) for r in self.records]

    @property
    def names(self) -> list[str]:
        """Every figure that occurs, in order of appearance."""
        return list(dict.fromkeys(name for r in self.records for name in r))

    def to_json(self) -> str:
        """A JSON list of records. NaN and infinities, which JSON lacks, are the strings "nan", "inf" and "-inf"."""
        return json.dumps([jsonable(r) for r in self.records], indent=1, allow_nan=False)

    def to_json_lines(self) -> str:
        """The same records, one a line."""
        return "".join(json.dumps(jsonable(r), allow_nan=False) + "\n" for r in self.records)

    def to_csv(self) -> str:
        """A header and one line an epoch; figures that an epoch has not are empty, lists are JSON text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.names, restval="", lineterminator="\n")
        writer.writeheader()
        for r in self.records:
            writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in r.items()})
        return out.getvalue()

    @classmethod
    def from_json(cls, text: str) -> History:
        """From `to_json` or `to_json_lines`."""
        stripped = text.strip()
        records = json.loads(stripped) if stripped.startswith("[") else map(json.loads, stripped.splitlines())
        return cls(map(_restored, records))

    def __repr__(self) -> str:
        """A table of the numeric figures, one row an epoch; the middle of a long history is left out."""
        if not self.records:
            return "History: no epochs yet"
        names = [n for n in self.names if not any(isinstance(r.get(n), list) for r in self.records)]
        rows = [[_cell(r.get(n)) for n in names] for r in self.records]
        if len(rows) > TABLE_ROWS:
            half = TABLE_ROWS // 2
            rows = [*rows[:half], ["..."] * len(names), *rows[-half:]]
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in [names, *rows]]
        return "\n".join(lines)

    def plot(self, path: str | None = None) -> Figure:
        """Loss and metrics over the epochs, training beside validation; written to `path` (.png, .svg, .pdf) if given.

        Errors: ImportError naming the extra where matplotlib is missing, ValueError for a history without epochs.
        """
        try:
            from matplotlib import pyplot
        except ImportError as e:
            raise ImportError("History.plot needs matplotlib: pip install 'sparkdl-train[plot]'.") from e
        panels = self._panels()
        if not panels:
            raise ValueError("There is nothing to plot: this history holds no epoch with a loss or a metric.")
        rows = math.ceil(len(panels) / 3)
        columns = math.ceil(len(panels) / rows)
        fig, axes = pyplot.subplots(
            rows, columns, figsize=(4.4 * columns, 3.2 * rows), squeeze=False, layout="constrained"
        )
        for ax, name in zip(axes.flat, panels, strict=False):
            self._draw(ax, name)
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        pyplot.close(fig)  # a notebook shows the returned figure, once
        if path is not None:
            fig.savefig(path, dpi=150)
        return fig

    def _panels(self) -> list[str]:
        """Base names of the figures to draw: the loss first, then the metrics."""
        plain = [n for n in self.names if all(isinstance(r.get(n, 0.0), int | float) for r in self.records)]
        bases = dict.fromkeys(n.removeprefix("val_") for n in plain if n not in NOT_PLOTTED and not _is_time(n))
        return sorted(bases, key=lambda n: n != "loss")

    def _draw(self, ax: Axes, name: str) -> None:
        epochs = [r.get("epoch", i) for i, r in enumerate(self.records, 1)]
        marker = "o" if len(epochs) <= 30 else None
        for key, label, colour in ((name, "training", "tab:blue"), (f"val_{name}", "validation", "tab:orange")):
            points = [
                (e, r[key]) for e, r in zip(epochs, self.records, strict=True) if math.isfinite(r.get(key, math.nan))
            ]
            if points:
                ax.plot(*zip(*points, strict=True), color=colour, label=label, lw=1.8, marker=marker, ms=3.5)
        ax.set_title(name.replace("_", " "), fontsize=11, loc="left")
        ax.set_xlabel("epoch")
        ax.locator_params(axis="x", integer=True)
        ax.grid(alpha=0.25, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        if ax.lines:
            ax.legend(frameon=False)


def _is_time(name: str) -> bool:
    return name == "seconds" or name.endswith("_s")


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _restored(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restored(v) for v in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)
