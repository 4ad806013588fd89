"""Workers as processes, which can be killed, frozen and cut off: training goes on and ends with the same bits."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import lasting_files, shared_files
from reference import blobs, mlp

from sparkdl.backends import Backend, ProcessBackend
from sparkdl.comm import TransportOptions
from sparkdl.data import DataSpec
from sparkdl.errors import TrainingError
from sparkdl.ml import TrainedModel, fit
from sparkdl.optim import Adam
from sparkdl.strategies import AllReduce
from sparkdl.train import Callback, Run, Training

SPEC = DataSpec(features=("features",), label="label", valid_fraction=0.2)
EPOCHS, WORKERS = 30, 3
ROOT = Path(__file__).resolve().parents[2]


class AtEpoch(Callback):
    """Does something once, at the end of an epoch; notes when."""

    def __init__(self, epoch: int, act: Callable[[], object]) -> None:
        self.epoch, self.act, self.at = epoch, act, 0.0

    def epoch_end(self, run: Run, logs: Any) -> None:
        if run.epoch == self.epoch and not self.at:
            self.at = time.monotonic()
            self.act()


def train(master: Any, callbacks: tuple[Callback, ...] = (), **settings: Any) -> TrainedModel:
    network = TransportOptions(timeout_s=settings.pop("timeout_s", 2.0))
    training = Training(epochs=EPOCHS, batch_size=16, seed=3)
    strategy = AllReduce(network=network, **settings)
    return fit(
        blobs(120),
        mlp(),
        SPEC,
        optimizer=Adam(0.01),
        training=training,
        strategy=strategy,
        workers=WORKERS,
        master=master,
        callbacks=callbacks,
    )


@pytest.fixture(scope="module")
def undisturbed() -> TrainedModel:
    return train("threads")


def rank_process(rank: int) -> int:
    """The process of a rank of the fit under way."""
    return next(p.pid for p in multiprocessing.active_children() if p.name == f"sparkdl-rank-{rank}" and p.pid)


def test_processes_equal_threads(undisturbed: TrainedModel) -> None:
    model = train("processes")
    assert np.array_equal(model.params, undisturbed.params)
    assert model.history["val_loss"] == undisturbed.history["val_loss"]
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("sparkdl-rank")]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_costs_a_restart_and_no_bit(
    how: signal.Signals, undisturbed: TrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    strike = AtEpoch(7, lambda: os.kill(rank_process(1), how))
    seen: list[float] = []

    class Watch(Callback):
        def epoch_end(self, run: Run, logs: Any) -> None:
            if strike.at and run.epoch == 9:
                seen.append(time.monotonic())

    with caplog.at_level(logging.WARNING, "sparkdl"):
        model = train("processes", (strike, Watch()))
    assert np.array_equal(model.params, undisturbed.params)
    assert model.history["loss"] == undisturbed.history["loss"]
    assert len(model.history) == EPOCHS
    assert any(
        "rank 1" in r.message and "was lost" in r.message and "restart 1 of 3" in r.message for r in caplog.records
    )
    assert seen[0] - strike.at < 20
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("sparkdl-rank")]


def test_no_restarts_left_names_who_was_lost() -> None:
    strike = AtEpoch(3, lambda: os.kill(rank_process(2), signal.SIGKILL))
    with pytest.raises(TrainingError, match=r"rank 2 \(host .*, process \d+\) was lost: "):
        train("processes", (strike,), max_restarts=0)


@dataclass(frozen=True)
class Enter:
    """Puts rank r into the r-th namespace."""

    names: tuple[str, ...]

    def __call__(self, rank: int) -> None:
        with open(f"/run/netns/{self.names[rank]}") as namespace:
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0


@pytest.fixture
def hosts() -> Iterator[tuple[str, ...]]:
    """Three hosts on a switch that this process, as the driver, is on too; their host names resolve to 127.0.1.1."""
    tag = os.getpid() % 10**6
    names = tuple(f"sparkdl-{tag}-{i}" for i in range(WORKERS))
    script = [f"link add sdl{tag} type bridge", f"addr add 10.78.0.254/24 dev sdl{tag}", f"link set sdl{tag} up"]
    for i, name in enumerate(names):
        script += [
            f"netns add {name}",
            f"link add v{tag}-{i} type veth peer name eth0 netns {name}",
            f"link set v{tag}-{i} master sdl{tag} up",
            f"-n {name} addr add 10.78.0.{i + 1}/24 dev eth0",
            f"-n {name} link set eth0 up",
            f"-n {name} link set lo up",
        ]
    try:
        try:
            for line in script:
                ip(line)
        except (OSError, subprocess.CalledProcessError) as e:
            pytest.skip(f"no network namespaces here: {e}")
        yield names
    finally:
        for line in [*(f"netns del {name}" for name in names), f"link del sdl{tag}"]:
            subprocess.run(["ip", *line.split()], check=False, capture_output=True)


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


def test_hosts_with_addresses_of_their_own(hosts: tuple[str, ...], undisturbed: TrainedModel) -> None:
    backend: Backend = ProcessBackend(WORKERS, Enter(hosts), "10.78.0.254")
    assert np.array_equal(train(backend).params, undisturbed.params)


def test_a_cut_link_is_noticed_and_training_goes_on_once_it_is_back(
    hosts: tuple[str, ...], undisturbed: TrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    def cut() -> None:
        ip(f"-n {hosts[2]} link set eth0 down")
        threading.Timer(3.0, ip, [f"-n {hosts[2]} link set eth0 up"]).start()

    backend = ProcessBackend(WORKERS, Enter(hosts), "10.78.0.254")
    with caplog.at_level(logging.WARNING, "sparkdl"):
        model = train(backend, (AtEpoch(5, cut),), timeout_s=1.5)
    assert np.array_equal(model.params, undisturbed.params)
    assert any("rank 2" in r.message and "restart 1" in r.message for r in caplog.records)


NOTED = """
import os, sys
from types import SimpleNamespace
from sparkdl.backends import ProcessBackend

def note(seat):
    with open(f"threads-{seat.rank}", "w") as file:
        file.write(os.environ["OMP_NUM_THREADS"])

if __name__ == "__main__":
    before = dict(os.environ)
    ProcessBackend(2).run_peers(SimpleNamespace(handles=(None, None)), note).wait()
    assert dict(os.environ) == before
"""


@pytest.mark.parametrize("given", [None, "3"])
def test_each_process_computes_on_one_core_unless_told_otherwise(tmp_path: Path, given: str | None) -> None:
    """A pool of as many threads as cores in each would wait for the others' at every product."""
    (tmp_path / "script.py").write_text(NOTED)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= {"PYTHONPATH": str(ROOT)} | ({} if given is None else {"OMP_NUM_THREADS": given})
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=True, timeout=120)
    assert [(tmp_path / f"threads-{rank}").read_text() for rank in range(2)] == [given or "1"] * 2


def test_descriptors_and_memory_are_given_back(
    undisturbed: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, files = len(os.listdir("/proc/self/fd")), shared_files()
    train("processes")
    train("threads")
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the server that forks the processes stays
    assert not lasting_files(files)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("sparkdl")]
    assert not list(tmp_path.glob("sparkdl-*"))
