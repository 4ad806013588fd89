"""A picture of simulated throughput and efficiency over the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkdl.errors import SparkdlError
from sparkdl.ml.simulation import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot"]

TICKS = 8  # numbers of workers that an axis names, at most
MARKERS = "osD^vP*X"


def plot(rows: Sequence[Row], path: str | None = None) -> Figure:
    """Samples per second and efficiency, a line a configuration; written to `path` (.png, .svg, .pdf) if given.

    Errors: SparkdlError naming the extra where matplotlib is missing, or what cannot be written.
    """
    try:
        from matplotlib import pyplot
    except ImportError as e:
        raise SparkdlError("--plot needs matplotlib: pip install 'sparkdl-train[plot]'. The table does without.") from e
    fig, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    for name, marker in zip(dict.fromkeys(row.name for row in rows), MARKERS * len(rows), strict=False):
        mine = sorted((row for row in rows if row.name == name), key=lambda row: row.workers)
        sizes, style = [row.workers for row in mine], {"marker": marker, "ms": 4.5, "lw": 1.8, "label": name}
        left.plot(sizes, [row.samples_per_s for row in mine], **style)
        right.plot(sizes, [100 * row.efficiency for row in mine], **style)
        ideal = [row.samples_per_s / row.efficiency for row in mine]
        left.plot(sizes, ideal, color="0.6", lw=1, ls="--", zorder=1)
    left.plot([], [], color="0.6", lw=1, ls="--", label="efficiency 100 %")
    left.set_yscale("log")
    _dress(left, rows, "samples / s")
    _dress(right, rows, "efficiency (%)")
    right.set_ylim(0, 1.05 * max(100.0, *(100 * row.efficiency for row in rows)))
    fig.legend(*left.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=5)
    pyplot.close(fig)
    if path is not None:
        try:
            fig.savefig(path, dpi=150)
        except (OSError, ValueError) as e:
            raise SparkdlError(f"--plot {path}: the picture cannot be written: {e}") from e
    return fig


def _dress(ax: Axes, rows: Sequence[Row], what: str) -> None:
    sizes = sorted({row.workers for row in rows})
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes[:: -(-len(sizes) // TICKS)], labels=[f"{n:,}" for n in sizes[:: -(-len(sizes) // TICKS)]])
    ax.minorticks_off()
    ax.set_xlabel("workers")
    ax.set_ylabel(what)
    ax.grid(alpha=0.25, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
