"""What bench/modes.py prints and draws of its results."""

from __future__ import annotations

from _mode_list import TOLERANCE
from _mode_run import Result

__all__ = ["goals", "heading", "line"]

FASTER, AT_LEAST = 2.0, 3  # so many modes so many times as fast as allreduce, on slow links


def heading() -> str:
    """The names of the columns."""
    return (
        f"{'mode':28}{'test accuracy':>14}{'seconds':>9}{'to target':>11}{'MB a worker':>13}{'lr':>7}{'momentum':>10}  "
        "staleness (mean, most) or consensus"
    )


def line(result: Result) -> str:
    """One row of the table."""
    apart = ""
    if result.staleness is not None:
        apart = "{:.2f}, {}".format(*result.staleness)
    elif result.consensus is not None:
        apart = f"{result.consensus:.3f}"
    reached = "-" if result.to_target is None else f"{result.to_target:.1f}"
    sent = "-" if result.sent_mb is None else f"{result.sent_mb:.1f}"
    made = f"{result.mode:28}{result.accuracy:14.2%}{result.seconds:9.1f}{reached:>11}{sent:>13}"
    return f"{made}{result.lr:7.3g}{result.momentum:10.1f}  {apart}"


def goals(results: list[Result]) -> list[str]:
    """Whether accuracy and speed are what they should be, a line each."""
    lines = [""]
    serial = next((r.accuracy for r in results if r.mode == "serial"), None)
    for family, points in TOLERANCE.items() if serial is not None else ():
        short = {
            f"({r.setting}) {r.mode}": 100 * (serial - r.accuracy)
            for r in results
            if r.family == family and 100 * (serial - r.accuracy) > points + 1e-9
        }
        missed = ", ".join(f"{name} by {gap:.2f}" for name, gap in short.items())
        lines.append(f"{family}: at most {points} points below serial: {f'missed: {missed}' if short else 'met'}")
    slow = {r.mode: r.to_target for r in results if r.setting == "b" and r.to_target is not None}
    if "allreduce" in slow:
        gains = sorted(((slow["allreduce"] / s, mode) for mode, s in slow.items()), reverse=True)
        fast = [f"{mode} {gain:.1f} x" for gain, mode in gains if gain >= FASTER]
        verdict = "met" if len(fast) >= AT_LEAST else "missed"
        lines.append(
            f"slow links: {AT_LEAST} modes {FASTER:g} times as fast to the target as allreduce: {verdict}: "
            f"{', '.join(fast) or 'none'}"
        )
    return lines
