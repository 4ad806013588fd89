"""Progress of a fit for people: a live bar in a terminal or notebook, plain lines everywhere else."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from sparkdl.train.callbacks import Callback, Logs
from sparkdl.train.run import Run

__all__ = ["Progress", "epoch_line"]

REFRESH_S = 0.1  # least time between two drawings of the bar
NOT_SHOWN = {"epoch", "step", "lr", "rows", "seconds", "samples_per_s", "slowest_rank"}
WAITING = 0.1  # share of an epoch that workers may wait for the slowest before it is named


class Progress(Callback):
    """A bar that moves with each update, and a line for each finished epoch.

    The bar (epoch, loss, samples/s, time left) appears where `stream` is a terminal, or in a notebook that can show
    widgets. Elsewhere, in a log file or under spark-submit, which passes output through a pipe, lines are written: for
    each epoch, and every `interval_s` seconds within a long one. quiet=True writes nothing.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False, interval_s: float = 10.0) -> None:
        self.stream = stream  # None: sys.stderr as it is when the fit begins, which notebooks and tests replace
        self.quiet = quiet
        self.interval_s = interval_s
        self._out: TextIO = sys.stderr
        self._bar: Any = None
        self._started = 0.0
        self._written = 0.0
        self._first_epoch = 0

    def begin(self, run: Run) -> None:
        """The clock starts."""
        self._out = self.stream if self.stream is not None else sys.stderr
        self._started = self._written = time.monotonic()
        self._first_epoch = run.epoch

    def step_end(self, run: Run, logs: Logs) -> None:
        """Move the bar."""
        if self.quiet:
            return
        if self._bar is None:
            self._bar = _bar(self._out, run)
        if self._bar is not None:
            self._bar.set_postfix_str(_step_text(logs), refresh=False)
            self._bar.update()
        elif time.monotonic() - self._written >= self.interval_s:
            of = f"/{run.steps_per_epoch}" if run.steps_per_epoch else ""
            self._write(f"epoch {run.epoch + 1}  step {run.step_in_epoch}{of}  {_step_text(logs)}")

    def epoch_end(self, run: Run, logs: Logs) -> None:
        """Write the epoch's line."""
        self._close()
        if self.quiet:
            return
        done = run.epoch - self._first_epoch
        left = None
        if run.epochs and done and run.stop_reason is None:
            left = (time.monotonic() - self._started) / done * (run.epochs - run.epoch)
        self._write(epoch_line(logs, run.epochs, left))

    def end(self, run: Run) -> None:
        """Say why the fit ended early, if it did."""
        self._close()
        if run.stop_reason is not None and not self.quiet:
            self._write(f"stopped after epoch {run.epoch}: {run.stop_reason}")

    def _write(self, line: str) -> None:
        with suppress(OSError):  # whoever read it has left, as a JVM that Ctrl-C has ended; the fit goes on
            self._out.write(line + "\n")
            self._out.flush()
        self._written = time.monotonic()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def epoch_line(logs: Mapping[str, Any], epochs: int = 0, left: float | None = None) -> str:
    """One line about an epoch: training figures, then those of validation, speed, time, and `left` seconds to go.

    Example: `epoch  3/20  loss 0.1234  accuracy 0.967  val_loss 0.1410  1,234 samples/s  12.3 s  eta 0:01:10`.
    """
    epoch = str(logs["epoch"])
    parts = [f"epoch {epoch.rjust(len(str(epochs)))}/{epochs}" if epochs else f"epoch {epoch}"]
    parts += [
        f"{name} {_figure(name, value)}"
        for name, value in logs.items()
        if name not in NOT_SHOWN and not name.endswith("_s") and isinstance(value, int | float)
    ]
    if "samples_per_s" in logs:
        parts.append(f"{logs['samples_per_s']:,.0f} samples/s")
    if "seconds" in logs:
        parts.append(f"{logs['seconds']:.1f} s")
    waited = max(logs.get("waiting_s", [0.0])) / max(logs.get("seconds", 0.0), 1e-9)
    if waited > WAITING:
        parts.append(f"rank {logs['slowest_rank']} is slow: others wait {100 * waited:.0f} %")
    if left is not None:
        parts.append(f"eta {_clock(left)}")
    return "  ".join(parts)


def _figure(name: str, value: float) -> str:
    """Shares such as an accuracy with three decimals, losses and errors, whose size is open, with four digits."""
    if name.removeprefix("val_").startswith(("loss", "mse", "mae")):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if abs(value) < 1e4 else f"{value:.4g}"


def _step_text(logs: Logs) -> str:
    parts = [f"{name} {_figure(name, value)}" for name, value in logs.items() if name == "loss"]
    if "samples_per_s" in logs:
        parts.append(f"{logs['samples_per_s']:,.0f} samples/s")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}"


def _bar(stream: TextIO, run: Run) -> Any:
    """A bar over the updates of the epoch under way, or None where nobody could see it move."""
    notebook = _in_notebook()
    if not notebook and not stream.isatty():
        return None
    if notebook:
        from tqdm.auto import tqdm
    else:
        from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """A bar without tqdm's watcher thread, which would outlive the fit."""

        monitor_interval = 0

    of = f"/{run.epochs}" if run.epochs else ""
    return Bar(
        desc=f"epoch {run.epoch + 1}{of}",
        total=run.steps_per_epoch or None,
        initial=run.step_in_epoch - 1,
        file=stream,
        leave=False,
        mininterval=REFRESH_S,
        miniters=1,
        dynamic_ncols=True,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
    )


def _in_notebook() -> bool:
    """Whether this is an IPython kernel whose front end can show widgets."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config and importlib.util.find_spec("ipywidgets") is not None
