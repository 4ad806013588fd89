"""The jobs as people start them: spark-submit, its exit codes, what it prints and what it leaves behind.

spark-submit sends all that a Python job writes, to stderr too, to its own stdout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from submitting import ROOT, environment

QUICK = ["training.epochs=3", "training.batch_size=128", "optimizer.lr=0.01"]
SUBMIT = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]

Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """Runs a job from a folder of its own."""

    def run(job: str, *args: object, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*SUBMIT, *options, str(ROOT / "jobs" / f"{job}.py"), *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280)

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that `train.py` wrote, with what it printed in `out.txt` beside it."""
    folder = tmp_path_factory.mktemp("trained")
    overrides = [*QUICK, f"output.model={folder}/model", f"output.history={folder}/history.csv"]
    sets = [part for override in overrides for part in ("--set", override)]
    command = [*SUBMIT, str(ROOT / "jobs/train.py"), str(ROOT / "conf/digits.toml"), *sets, "--profile"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (folder / "out.txt").write_text(done.stdout)
    return folder


def test_train_prints_and_writes_what_a_user_needs(trained: Path) -> None:
    out = (trained / "out.txt").read_text()
    assert "multiply-adds" in out
    assert "forward" in out
    assert f"model: {trained}/model" in out
    assert out.count("  val_accuracy ") == 3
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["test.accuracy"] > 0.8
    assert f"test accuracy {metrics['test.accuracy']:.4f}" in out
    assert sorted(p.name for p in (trained / "model").iterdir()) == [
        "history.json",
        "model.json",
        "weights.safetensors",
    ]
    assert (trained / "history.csv").read_text().count("\n") == 4


def test_evaluate_prints_the_figures_that_training_ended_with(trained: Path, submit: Submit) -> None:
    done = submit("evaluate", trained / "model", ROOT / "data/digits/test.parquet")
    assert done.returncode == 0, done.stderr
    figures = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    metrics = json.loads((trained / "metrics.json").read_text())
    assert float(figures["accuracy"]) == pytest.approx(metrics["test.accuracy"], abs=1e-5)


def test_predict_adds_two_columns(trained: Path, submit: Submit, tmp_path: Path) -> None:
    data, out = ROOT / "data/digits/test.parquet", tmp_path / "scored"
    done = submit("predict", trained / "model", data, out)
    assert done.returncode == 0, done.stderr
    scored = pq.read_table(out)
    assert scored.column_names == ["pixels", "label", "prediction", "probability"]
    assert scored.num_rows == 359
    right = sum(p == y for p, y in zip(scored["prediction"].to_pylist(), scored["label"].to_pylist(), strict=True))
    metrics = json.loads((trained / "metrics.json").read_text())
    assert right / 359 == pytest.approx(metrics["test.accuracy"], abs=1e-9)


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("training.epoch=3", 2, "unknown key training.epoch; did you mean training.epochs?"),
        ('data.features=["pixel"]', 3, "column 'pixel' is not in the data. Did you mean 'pixels'?"),
    ],
)
def test_mistakes_are_one_message(submit: Submit, override: str, code: int, message: str) -> None:
    done = submit("train", ROOT / "conf/digits.toml", "--set", override, "--set", "output.model=model")
    assert done.returncode == code, done.stdout
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "\tat " not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout


def interrupt(command: list[str], folder: Path, when: str) -> None:
    """Run a job, and press Ctrl-C once it has printed what matches `when`."""
    with (folder / "out.txt").open("w") as out:
        job = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 200
            while not re.search(when, (folder / "out.txt").read_text()):
                assert job.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(job.pid, signal.SIGINT)  # as a terminal does: to the JVM as well
            assert job.wait(60) == 130
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            raise


def test_ctrl_c_leaves_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    sets = ["training.epochs=4", "training.batch_size=128", f"checkpoint.folder={tmp_path}/checkpoints"]
    arguments = [part for s in [*sets, f"output.model={tmp_path}/model"] for part in ("--set", s)]
    command = [*SUBMIT, str(ROOT / "jobs/train.py"), str(ROOT / "conf/digits.toml"), *arguments]
    interrupt(command, tmp_path, "epoch 1/4")
    assert list((tmp_path / "checkpoints").glob("step-*"))
    done = subprocess.run(
        [*command, "--verbose"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stdout
    history = json.loads((tmp_path / "model/history.json").read_text())
    assert [record["epoch"] for record in history] == [1, 2, 3, 4]


def test_ctrl_c_while_the_workers_are_among_themselves_leaves_their_last_epoch(tmp_path: Path) -> None:
    """The stage ends with the JVM. What the driver has of it goes into a checkpoint, though none was due."""
    sets = ["training.epochs=100000", "checkpoint.every_epochs=100000", f"checkpoint.folder={tmp_path}/checkpoints"]
    arguments = [part for s in [*sets, f"output.model={tmp_path}/model"] for part in ("--set", s)]
    interrupt(
        [*SUBMIT, str(ROOT / "jobs/train.py"), str(ROOT / "conf/digits-allreduce.toml"), *arguments],
        tmp_path,
        r"epoch +2/100000",
    )
    deadline = time.monotonic() + 60
    while not (found := list((tmp_path / "checkpoints").glob("step-*"))) and time.monotonic() < deadline:
        time.sleep(0.05)  # the driver outlives the JVM
    (checkpoint,) = found
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["stop_reason"] == "interrupted"
    assert state["run"]["epoch"] == len(state["history"]) >= 2
    assert not (tmp_path / "model").exists()


MAIN = """
import numpy as np
import pyarrow as pa
from dataclasses import dataclass
from pyspark.sql import SparkSession
import sparkdl
from sparkdl import nn

@dataclass(frozen=True)
class Double(nn.Layer):
    def out_shape(self, in_shape): return in_shape
    def forward(self, p, x, ctx): return 2 * x, None
    def backward(self, p, cache, dy, g, ctx): return 2 * dy

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
x = np.random.default_rng(0).standard_normal((40, 3))
df = spark.createDataFrame(pa.table({"x": list(x), "y": (x[:, 0] > 0).astype(int)}))
net = nn.Sequential((Double(), nn.Dense(2)))
model = sparkdl.fit(df, net, sparkdl.DataSpec(features=("x",), label="y"), training=sparkdl.Training(epochs=2))
print("rows", model.transform(df).count(), sparkdl.__file__)
"""


def test_a_layer_of_the_main_script_and_a_package_shipped_as_an_archive(tmp_path: Path) -> None:
    """The archive is what `make dist` builds; the interpreter has no other sparkdl."""
    archive = shutil.make_archive(str(tmp_path / "sparkdl"), "zip", ROOT, "sparkdl")
    (tmp_path / "script.py").write_text(MAIN)
    command = [*SUBMIT, "--py-files", archive, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "rows 40" in done.stdout
    assert "sparkdl.zip" in done.stdout
