"""Training among the workers on real Spark: the numbers of threads, and fits that survive their workers' mishaps."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import BarrierTaskContext, TaskContext
from pyspark.sql import DataFrame, SparkSession
from ranks import lasting_files, shared_files
from reference import blobs, mlp, tolerance

from sparkdl import nn
from sparkdl.backends import Slots
from sparkdl.backends.spark import SparkBackend
from sparkdl.comm import TransportOptions
from sparkdl.data import DataSpec
from sparkdl.errors import ConfigError, TrainingError
from sparkdl.ml import CheckpointPlan, TrainedModel, fit
from sparkdl.nn.zoo import cnn
from sparkdl.optim import SGD, Adam, Cosine
from sparkdl.strategies import AllReduce
from sparkdl.train import Callback, Run, Training

SPEC = DataSpec(features=("features",), label="label", valid_fraction=0.2)
DIGITS = DataSpec(features=("pixels",), label="label", shape=(8, 8, 1), scale=1 / 16, valid_fraction=0.1)
TIMEOUT_S = 2.0
QUICK = TransportOptions(timeout_s=TIMEOUT_S)
EPOCHS, STEPS = 3, 4


@dataclass(frozen=True)
class Saboteur(nn.Layer):
    """The identity; on one rank and once, guarded by the file `mark`, it does what it should not.

    when: "job" while the job is unpickled, "valid" in the first validation, or in the n-th training pass.
    """

    what: str = ""
    when: str | int = 0
    mark: str = ""
    rank: int = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.when == "job":
            self._act()

    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        if isinstance(self.when, int) and ctx.train:
            passes[self.mark] = passes.get(self.mark, 0) + 1
        if self.when == ("valid" if not ctx.train else passes.get(self.mark)):
            return self._act(x), None
        return x, None

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        return dy

    def _act(self, x: Any = None) -> Any:
        context = TaskContext.get()
        here = isinstance(context, BarrierTaskContext) and context.partitionId() == self.rank
        if not here or os.path.exists(self.mark):
            return x
        Path(self.mark).write_text(f"{os.getpid()} {time.time()}")
        if self.what in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, self.what))
            time.sleep(60)
        if self.what == "NaN":
            return np.full_like(x, np.nan)
        raise {"OSError": OSError, "MemoryError": MemoryError, "ValueError": ValueError}[self.what]("sabotage")


passes: dict[str, int] = {}  # in a worker: by mark, training passes so far


def net_with(layer: nn.Layer) -> nn.Sequential:
    return nn.Sequential((layer, nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.2), nn.Tanh(), nn.Dense(3)))


def train(data: Any, net: nn.Layer | None = None, workers: int = 2, **settings: Any) -> TrainedModel:
    training = Training(**{"epochs": EPOCHS, "batch_size": 16, "seed": 3} | settings.pop("training", {}))
    settings = {"strategy": AllReduce(network=QUICK), "optimizer": Adam(0.01)} | settings
    return fit(data, net or net_with(Saboteur()), SPEC, training=training, workers=workers, **settings)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def stopped() -> set[int]:
    """Processes that have been frozen."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[0] == "T":
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


@dataclass
class Left:
    """What a fit may not leave behind."""

    spark: SparkSession

    def now(self) -> dict[str, Any]:
        context = self.spark.sparkContext
        scratch = Path(str(context.getConf().get("spark.local.dir")))
        return {
            "persistent RDDs": set(context._jsc.getPersistentRDDs()),
            "broadcasts": set(Path(context._temp_dir).iterdir()),
            "threads": {t.name for t in threading.enumerate() if t.name.startswith("sparkdl")},
            "listening": sum(map(_listens, os.listdir("/proc/self/fd"))),
            "shards": {name for _, _, names in os.walk(scratch) for name in names if name.startswith("shard-")},
        }


def _listens(fd: str) -> bool:
    """Whether a descriptor is a socket that waits for connections."""
    try:
        if not stat.S_ISSOCK(os.fstat(int(fd)).st_mode):
            return False
        with socket.socket(fileno=os.dup(int(fd))) as sock:
            return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:  # closed meanwhile
        return False


@pytest.fixture(autouse=True)
def _nothing_is_left(spark: SparkSession) -> Iterator[None]:
    left = Left(spark)
    before, descriptors = left.now(), len(os.listdir("/proc/self/fd"))
    files, frozen = shared_files(), stopped()
    yield
    deadline = time.monotonic() + 10
    while (after := left.now()) != before and time.monotonic() < deadline:
        time.sleep(0.05)  # the JVM ends a task's process, and its connections, on its own time
    assert after == before
    while (still := stopped() - frozen) and time.monotonic() < deadline:
        time.sleep(0.05)  # others on this machine, such as tests beside these, may freeze theirs for a moment
    assert not still
    assert not lasting_files(files)
    assert len(os.listdir("/proc/self/fd")) < descriptors + 12  # threads keep a connection to the JVM for a while


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(blobs(80))


@pytest.fixture(scope="module")
def undisturbed(df: DataFrame) -> TrainedModel:
    return train(df)


def assert_same(model: TrainedModel, other: TrainedModel) -> None:
    assert model.params.tobytes() == other.params.tobytes()
    for name in ("epoch", "step", "lr", "loss", "val_loss"):
        np.testing.assert_allclose(model.history[name], other.history[name], rtol=1e-12)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spark_equals_one_process_and_the_bits_are_those_of_threads(
    spark: SparkSession, workers: int, dtype: str
) -> None:
    table = blobs(50)
    settings: dict[str, Any] = {"training": {"dtype": dtype}, "optimizer": SGD(0.1, 0.9), "net": mlp()}
    model = train(spark.createDataFrame(table).repartition(4), workers=workers, **settings)
    alone = train(table, workers=1, **settings)
    np.testing.assert_allclose(model.params, alone.params, rtol=0, atol=tolerance(dtype))
    assert_same(model, train(table, workers=workers, **settings))


@pytest.mark.parametrize("settings", [{"shard_optimizer": True}, {"sync_batch_norm": True, "bucket_mb": 1e-4}])
def test_other_ways_to_meet_give_the_bits_of_threads(df: DataFrame, settings: dict[str, Any]) -> None:
    strategy = AllReduce(network=QUICK, **settings)
    assert_same(train(df, strategy=strategy), train(blobs(80), strategy=strategy))


def test_without_shared_memory(df: DataFrame, undisturbed: TrainedModel) -> None:
    network = TransportOptions(shared_memory=False, streams=2)
    assert_same(train(df, strategy=AllReduce(network=network)), undisturbed)


def test_digits_pass_97_percent(digits: tuple[DataFrame, DataFrame]) -> None:
    train_df, test_df = digits
    net = functools.partial(cnn, filters=(16, 32), hidden=64)
    training = Training(epochs=6, batch_size=96, seed=1)
    settings: dict[str, Any] = {"optimizer": Adam(0.01), "schedule": Cosine(), "training": training}
    model = fit(train_df, net, DIGITS, strategy=AllReduce(), **settings)
    assert model.evaluate(test_df)["accuracy"] >= 0.97
    assert {"data_s", "compute_s", "waiting_s", "communication_s"} <= set(model.history.names)
    assert len(model.history[-1]["compute_s"]) == 2


class TestSlots:
    def test_too_few_are_told_at_once_with_both_numbers(self, df: DataFrame) -> None:
        started = time.monotonic()
        with pytest.raises(ConfigError, match=r"3 workers .* need as many task slots at once; this cluster has 2\."):
            train(df, workers=3)
        assert time.monotonic() - started < 1

    def test_run_on_what_there_is(self, df: DataFrame, undisturbed: TrainedModel) -> None:
        model = train(df, workers=3, strategy=AllReduce(few_slots="run"))
        assert len(model.data.train_counts) == 2
        assert_same(model, undisturbed)

    def test_fall_back_to_the_tree(self, df: DataFrame) -> None:
        model = train(df, workers=3, strategy=AllReduce(few_slots="tree_aggregate"), training={"epochs": 1})
        assert len(model.data.train_counts) == 3
        assert "communication_s" not in model.history

    @pytest.mark.parametrize("few_slots", ["error", "run", "tree_aggregate"])
    def test_executors_that_come_and_go(self, df: DataFrame, monkeypatch: pytest.MonkeyPatch, few_slots: Any) -> None:
        monkeypatch.setattr(SparkBackend, "slots", lambda self: Slots(2, dynamic=True))
        strategy = AllReduce(few_slots=few_slots)
        if few_slots == "tree_aggregate":
            assert "communication_s" not in train(df, strategy=strategy, training={"epochs": 1}).history
            return
        with pytest.raises(ConfigError, match=r"spark\.dynamicAllocation\.enabled is true"):
            train(df, strategy=strategy)


def test_a_missing_shard_is_written_anew(
    df: DataFrame, undisturbed: TrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    class Deletes(Callback):
        def begin(self, run: Run) -> None:
            scratch = Path(str(df.sparkSession.sparkContext.getConf().get("spark.local.dir")))
            next(scratch.rglob("shard-*")).unlink()

    assert_same(train(df, callbacks=[Deletes()]), undisturbed)
    assert "restart 1 of 3" in caplog.text
    assert "writing all of them anew" in caplog.text


LOST = ("SIGKILL", "SIGSTOP")


# Each takes two new processes, hence a part of {what} x {"job", 1, 6, "valid"} only; all of it holds.
@pytest.mark.parametrize(
    ("what", "when"),
    [("SIGKILL", "job"), ("SIGKILL", 6), ("SIGKILL", "valid"), ("SIGSTOP", 6), ("OSError", "job"), ("MemoryError", 1)],
)
def test_a_fit_survives(
    df: DataFrame,
    undisturbed: TrainedModel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    what: str,
    when: str | int,
) -> None:
    mark = tmp_path / "mark"
    with caplog.at_level(logging.WARNING):
        model = train(df, net_with(Saboteur(what, when, str(mark))))
    pid, at = mark.read_text().split()
    assert_same(model, undisturbed)
    (record,) = [r for r in caplog.records if "restart 1 of 3" in r.getMessage()]
    text = record.getMessage()
    why = "was lost: " if what in LOST else f"failed: {what}: sabotage"
    assert re.match(rf"rank 1 \(host \S+, process {pid}\) {why}", text)
    assert ("going on from epoch 1, step 4" if when == 6 else "going on from epoch 0, step 0") in text
    assert record.created - float(at) < (TIMEOUT_S + 10 if what == "SIGSTOP" else 10)
    if what in LOST:
        deadline = time.monotonic() + 10
        while alive(int(pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(int(pid))


@pytest.mark.parametrize(("rank", "when"), [(1, "job"), (0, 6), (1, "valid")])
def test_a_mistake_is_not_tried_again(
    df: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str | int, rank: int
) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(TrainingError) as caught:
        train(df, net_with(Saboteur("ValueError", when, str(mark), rank)))
    pid, at = mark.read_text().split()
    assert time.time() - float(at) < 10
    assert re.fullmatch(rf"rank {rank} \(host \S+, process {pid}\) failed: ValueError: sabotage", str(caught.value))
    (note,) = caught.value.__notes__
    assert "in _act" in note
    assert "restart" not in caplog.text


def test_numbers_that_are_not_finite_are_not_tried_again(
    df: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TrainingError, match=r"A gradient must be finite; step 5 \(epoch 2\): loss nan") as caught:
        train(df, net_with(Saboteur("NaN", 6, str(tmp_path / "mark"))))
    (note,) = caught.value.__notes__
    assert re.match(r"On rank \d \(host \S+, process \d+\):\nTraceback", note)
    assert "restart" not in caplog.text


def test_without_restarts_the_error_names_who_was_lost_and_why(df: DataFrame, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(TrainingError) as caught:
        train(df, net_with(Saboteur("SIGSTOP", 1, str(mark))), strategy=AllReduce(max_restarts=0, network=QUICK))
    pid = mark.read_text().split()[0]
    assert re.match(rf"rank 1 \(host \S+, process {pid}\) was lost: \S", str(caught.value))
    assert time.time() - float(mark.read_text().split()[1]) < 12


def test_rank_0_may_be_lost_as_any_other(df: DataFrame, undisturbed: TrainedModel, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert_same(train(df, net_with(Saboteur("SIGKILL", 6, str(mark), rank=0))), undisturbed)
    assert mark.exists()


def test_checkpoints_within_an_epoch_are_gone_on_from(
    df: DataFrame, undisturbed: TrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = CheckpointPlan(str(tmp_path / "checkpoints"), every_steps=2)
    net = net_with(Saboteur("SIGKILL", 7, str(tmp_path / "mark")))
    strategy = AllReduce(shard_optimizer=True, network=QUICK)
    model = train(df, net, strategy=strategy, checkpoints=plan)
    assert "going on from epoch 1, step 6" in caplog.text
    assert_same(model, train(df, strategy=strategy))


class Interrupted(Callback):
    """Ends a fit as Ctrl-C does, after some updates."""

    def step_end(self, run: Run, logs: Any) -> None:
        if run.step >= 2:
            run.stop("interrupted")


@pytest.mark.parametrize("every_steps", [None, 2])
def test_a_fit_that_is_interrupted_in_the_stage_goes_on_later(
    df: DataFrame, undisturbed: TrainedModel, tmp_path: Path, every_steps: int | None
) -> None:
    plan = CheckpointPlan(str(tmp_path), every_steps=every_steps)
    stopped = train(df, checkpoints=plan, callbacks=[Interrupted()])
    assert stopped.stop_reason == "interrupted"
    assert len(stopped.history) < EPOCHS
    assert_same(train(df, checkpoints=plan), undisturbed)


class Raises(Callback):
    """Fails after the first update that is heard of."""

    def step_end(self, run: Run, logs: Any) -> None:
        raise ZeroDivisionError("mine")


def test_a_callback_that_raises_ends_the_stage(df: DataFrame) -> None:
    tracker = df.sparkSession.sparkContext.statusTracker()
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(df, callbacks=[Raises()], training={"epochs": 1000})
    assert tracker.getActiveJobsIds() == []
    assert tracker.getActiveStageIds() == []


def test_many_fits_in_one_session(df: DataFrame, undisturbed: TrainedModel) -> None:
    for _ in range(20):
        assert_same(train(df), undisturbed)


def test_two_fits_at_once(df: DataFrame, undisturbed: TrainedModel) -> None:
    with ThreadPoolExecutor(2) as pool:
        for model in list(pool.map(lambda _: train(df), range(2))):
            assert_same(model, undisturbed)
