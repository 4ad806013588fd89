"""A real cluster of two workers, each with an executor of its own: jobs train on it, and survive a lost executor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyspark
import pytest
from submitting import JVM, ROOT, environment

SPARK = Path(pyspark.__file__).parent


class Cluster:
    """A standalone master and two workers of one core each, on loopback; ends them all on leaving."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self.url = ""

    def __enter__(self) -> Cluster:
        log = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._seen(log, r"spark://127\.0\.0\.1:\d+")
        for i in range(2):
            work = str(self.folder / f"work-{i}")
            options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
            self._seen(self._start("Worker", *options, self.url), "Successfully registered with master")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, role: str, *args: str) -> Path:
        """A daemon in the foreground; returns the file of its log."""
        log = self.folder / f"{role}-{time.monotonic_ns()}.log"
        main = f"org.apache.spark.deploy.{role.lower()}.{role}"
        with open(log, "w") as out:
            process = subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), main, *args],
                env=environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(process.wait)
        self._stack.callback(os.killpg, process.pid, signal.SIGKILL)
        return log

    def _seen(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := re.search(pattern, log.read_text()):
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in {log.read_text()[-2000:]}")

    def submit(self, *args: str, conf: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        executors = ("spark.executor.memory=512m", f"spark.executor.extraJavaOptions={JVM}")
        settings = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", *executors, *conf)
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", self.url]
        command += [part for setting in settings for part in ("--conf", setting)]
        command += [str(ROOT / "jobs" / "train.py"), str(ROOT / "conf" / "digits-allreduce.toml"), *args]
        return subprocess.Popen(
            command, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def executors(self) -> list[int]:
        """The processes of this cluster's executors, which run in the workers' folders."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit() or str(self.folder) not in os.readlink(entry / "cwd"):
                    continue
                if b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def sets(folder: Path, **values: object) -> list[str]:
    own = {"output.model": folder / "model", "training.epochs": 30} | {
        k.replace("__", "."): v for k, v in values.items()
    }
    return [part for key, value in own.items() for part in ("--set", f"{key}={value}")]


def test_a_job_survives_a_killed_executor(cluster: Cluster, tmp_path: Path) -> None:
    """The second job loses an executor in its middle; both end with the same figures, digit for digit."""
    calm = cluster.submit(*sets(tmp_path / "calm"), "--verbose")
    out, _ = calm.communicate(timeout=240)
    assert calm.returncode == 0, out
    with cluster.submit(*sets(tmp_path / "hit"), "--verbose") as hit:
        assert hit.stdout is not None
        lines = []
        for line in hit.stdout:
            lines.append(line)
            if line.startswith("epoch  4/"):
                os.kill(cluster.executors()[0], signal.SIGKILL)
    assert hit.returncode == 0, "".join(lines)
    assert any("was lost" in line and "restart 1 of 3" in line for line in lines), "".join(lines)
    figures = [json.loads((tmp_path / kind / "metrics.json").read_text()) for kind in ("calm", "hit")]
    timeless = [{k: v for k, v in f.items() if not k.endswith(("_s", "seconds", "slowest_rank"))} for f in figures]
    assert timeless[0] == timeless[1]
    assert figures[0]["test.accuracy"] > 0.95


def test_more_workers_than_slots_are_refused_at_once(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(*sets(tmp_path, training__workers=3))
    started = time.monotonic()
    out, _ = job.communicate(timeout=120)
    assert job.returncode == 2, out
    assert "3 workers" in out
    assert "has 2" in out
    assert time.monotonic() - started < 60
