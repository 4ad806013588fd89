from __future__ import annotations

import io
import re
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparkdl.train import progress as module
from sparkdl.train.progress import Progress, epoch_line
from sparkdl.train.run import Run

RECORD = {
    "epoch": 3,
    "step": 300,
    "loss": 0.12341,
    "accuracy": 0.9671,
    "confusion_matrix": [[1]],
    "val_loss": 0.141,
    "val_accuracy": 0.95,
    "lr": 0.1,
    "seconds": 12.34,
    "samples_per_s": 1234.4,
    "data_s": 3.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def every_step_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.0)


class Clock:
    """What `time.monotonic` shows; stands still unless moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def fit(
    progress: Progress,
    run: Run,
    epochs: int,
    steps: int = 2,
    clock: Clock | None = None,
    seconds: tuple[float, ...] = (),
) -> None:
    """A fit whose i-th epoch takes seconds[i], spread over its steps."""
    progress.begin(run)
    for i in range(epochs):
        for _ in range(steps):
            run.step_in_epoch += 1
            if clock is not None:
                clock.now += seconds[i] / steps
            progress.step_end(run, {"loss": 0.5, "lr": 0.1, "samples_per_s": 1000.0})
        run.epoch, run.step_in_epoch = run.epoch + 1, 0
        progress.epoch_end(run, RECORD | {"epoch": run.epoch})
    progress.end(run)


def planned(epochs: int = 2) -> Run:
    return Run(params=np.zeros(1), epochs=epochs, steps_per_epoch=2)


def test_the_line_of_an_epoch() -> None:
    assert epoch_line(RECORD, 20, 70.4) == (
        "epoch  3/20  loss 0.1234  accuracy 0.967  val_loss 0.1410  val_accuracy 0.950  1,234 samples/s  12.3 s  "
        "eta 0:01:10"
    )
    assert epoch_line({"epoch": 3, "loss": 1e-5, "mae": 12345.0, "r2": -2e5}) == (
        "epoch 3  loss 1.000e-05  mae 1.234e+04  r2 -2e+05"
    )
    assert epoch_line({"epoch": 1}, left=36005) == "epoch 1  eta 10:00:05"
    assert epoch_line({"epoch": 1, "loss": float("nan")}).endswith("loss nan")


def test_a_log_gets_one_plain_line_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    fit(Progress(out, interval_s=60), planned(3), 2, clock=Clock(monkeypatch), seconds=(10, 20))
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3"]
    assert [line.split("  ")[-1] for line in lines] == ["eta 0:00:20", "eta 0:00:15"]
    assert "\r" not in out.getvalue()


def test_time_left_after_a_resume_counts_this_sessions_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    out, run = io.StringIO(), planned(8)
    run.epoch = 5
    fit(Progress(out, interval_s=60), run, 1, clock=Clock(monkeypatch), seconds=(10,))
    assert out.getvalue().rstrip().endswith("eta 0:00:20")


def test_a_long_epoch_is_told_of_every_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out, run = io.StringIO(), planned(1)
    run.steps_per_epoch = 10
    fit(Progress(out, interval_s=10), run, 1, steps=10, clock=Clock(monkeypatch), seconds=(40,))
    steps = [line for line in out.getvalue().splitlines() if "step" in line]
    assert steps == [f"epoch 1  step {n}/10  loss 0.5000  1,000 samples/s" for n in (3, 6, 9)]


def test_a_terminal_gets_a_bar_and_lines() -> None:
    out, threads = Terminal(), threading.active_count()
    fit(Progress(out), planned(), 2)
    text = out.getvalue()
    full = r"epoch 1/2 100%\|#+\| 2/2 \[\S+, loss 0.5000  1,000 samples/s\]"
    assert re.search(full + r"\r +\repoch 1/2  loss", text)  # wiped before the line
    assert text.count("samples/s  12.3 s") == text.count("\n") == 2
    assert threading.active_count() == threads


def test_a_bar_resumes_within_its_epoch() -> None:
    out, run = Terminal(), Run(params=np.zeros(1), epochs=1, steps_per_epoch=10, step_in_epoch=7)
    progress = Progress(out)
    progress.begin(run)
    run.step_in_epoch += 1
    progress.step_end(run, {"loss": 1.0})
    assert " 8/10 " in out.getvalue()
    progress.end(run)


def test_an_early_end_is_explained() -> None:
    out, run = io.StringIO(), planned(9)
    run.stop("val_loss has not improved")
    fit(Progress(out), run, 1)
    assert out.getvalue().splitlines()[-1] == "stopped after epoch 1: val_loss has not improved"
    assert "eta" not in out.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quiet(stream: Any) -> None:
    out, run = stream(), planned()
    run.stop("anything")
    fit(Progress(out, quiet=True), run, 2)
    assert out.getvalue() == ""


def test_the_default_is_stderr_when_the_fit_begins(capsys: pytest.CaptureFixture[str]) -> None:
    fit(Progress(), planned(), 1)
    captured = capsys.readouterr()
    assert captured.err.startswith("epoch 1/2")
    assert captured.out == ""


def test_a_notebook_without_widgets_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    out = io.StringIO()
    fit(Progress(out), planned(), 1)
    assert len(out.getvalue().splitlines()) == 1


def test_a_notebook_with_widgets_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    import tqdm.auto

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.tqdm)  # stands for the one that draws widgets
    out = io.StringIO()
    fit(Progress(out), planned(), 1)
    assert re.search(r"epoch 1/2 .*\| 2/2 \[", out.getvalue())


def test_a_reader_that_has_left_does_not_end_the_fit() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    shown, run = Progress(Broken()), Run(np.zeros(1), epochs=2, steps_per_epoch=1)
    shown.begin(run)
    shown.epoch_end(run, RECORD)
    run.stop("interrupted")
    shown.end(run)
