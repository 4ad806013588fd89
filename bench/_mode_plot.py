"""The picture of bench/modes.py: accuracy against seconds, and the seconds to a target, on slow links."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from _mode_run import Result

__all__ = ["plot"]

COLOURS = {
    "consistent": "#3b4252",
    "compressed": "#3b6fb6",
    "averaging": "#2a9d8f",
    "gossip": "#d98e04",
    "asynchronous": "#c8385a",
}
CURVES = {  # what is drawn, and how
    "allreduce": "-",
    "allreduce, PowerSGD": "-",
    "averaging, period 8": "-",
    "gossip, Int8": "-",
    "ssp": ":",
    "async": "--",
    "async, window 8": "-",
    "gossip, asynchronous, 4": "-.",
}


def plot(results: list[Result], path: Path, target: float) -> None:
    """Write the picture of setting (b) as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image  # matplotlib needs it too

    slow = [r for r in results if r.setting == "b"]
    fig, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained", width_ratios=(5, 6))
    _curves(left, slow, target)
    _bars(right, slow, target)
    fig.suptitle("Four workers, one of them three times as slow, on links of 100 Mbit/s: MNIST, same samples for all")
    fig.savefig(drawn := io.BytesIO(), dpi=110)
    pyplot.close(fig)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)  # few colours: a small file


def _curves(ax: Any, results: list[Result], target: float) -> None:
    for r in results:
        if r.mode in CURVES:
            seconds, accuracy = zip(*r.curve, strict=True)
            colour = COLOURS[r.family]
            ax.plot(seconds, [100 * a for a in accuracy], CURVES[r.mode], marker="o", color=colour, label=r.mode)
    ax.axhline(100 * target, color="0.6", lw=0.8, ls=":")
    ax.set(xlabel="seconds", ylabel="validation accuracy, %", ylim=(94, 97.5))
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, loc="lower right")
    ax.spines[["top", "right"]].set_visible(False)


def _bars(ax: Any, results: list[Result], target: float) -> None:
    reached = sorted((r for r in results if r.to_target is not None), key=lambda r: -(r.to_target or 0))
    ax.barh([r.mode for r in reached], [r.to_target for r in reached], color=[COLOURS[r.family] for r in reached])
    plain = next((r.to_target for r in reached if r.mode == "allreduce"), None)
    for i, r in enumerate(reached):
        gain = "" if plain is None or r.mode == "allreduce" else f"  ({plain / (r.to_target or 1):.1f} x)"
        ax.text(r.to_target, i, f" {r.to_target:.0f} s{gain}", va="center", fontsize=8)
    ax.set(xlabel=f"seconds to {100 * target:g} % validation accuracy (x: times as fast as allreduce)")
    ax.margins(x=0.2, y=0.01)
    ax.tick_params(axis="y", labelsize=8, length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    missed = [r.mode for r in results if r.to_target is None]
    if missed:
        ax.text(1, 0.62, f"not reached: {', '.join(missed)}", transform=ax.transAxes, ha="right", fontsize=8)
    handles = [ax.barh([0], [0], color=colour, label=family) for family, colour in COLOURS.items()]
    ax.legend(handles=handles, frameon=False, loc="upper right", fontsize=8)
