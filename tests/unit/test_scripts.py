"""The set-up scripts on machines that lack something, and the shipped data against their source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "cksum", "dirname", "head", "rm", "sed")  # what the scripts may count on anywhere


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of commands that is the whole PATH of a script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def command(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def run(script: Path, machine: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script)], env={"PATH": str(machine), **environment}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def java(folder: Path, version: str) -> None:
    command(
        folder, "java", f"echo 'Picked up JAVA_TOOL_OPTIONS: -X' >&2; echo 'openjdk version \"{version}\" 2025' >&2"
    )


ENSURE_JAVA = ROOT / "scripts" / "ensure_java.sh"


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_new_enough_java_is_taken_in_silence(machine: Path, version: str) -> None:
    java(machine, version)
    done = run(ENSURE_JAVA, machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("version", "named"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11"), (None, "none")])
def test_a_user_who_cannot_install_is_told_what_to(machine: Path, version: str | None, named: str) -> None:
    if version is not None:
        java(machine, version)
    command(machine, "id", "echo 1000")
    command(machine, "apt-get", "exit 100")
    done = run(ENSURE_JAVA, machine)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"found {named}" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr


def test_java_home_goes_before_the_path(machine: Path, tmp_path: Path) -> None:
    java(machine, "17.0.1")
    java(tmp_path / "old" / "bin", "11.0.1")
    command(machine, "id", "echo 0")
    command(machine, "apt-get", "exit 0")
    done = run(ENSURE_JAVA, machine, JAVA_HOME=str(tmp_path / "old"))
    assert done.returncode == 1
    assert f"JAVA_HOME={tmp_path}/old holds Java 11" in done.stderr


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
def test_root_installs_what_the_system_has(machine: Path, package: str) -> None:
    command(machine, "id", "echo 0")
    java(machine / "aside", "17.0.1")
    command(
        machine, "apt-get", f'echo "$*" >>{machine}/log; [ "$1" = update ] && exit 0\n'
        f'[ "${{@: -1}}" = {package} ] && /bin/cp {machine}/aside/java {machine}/java',
    )  # fmt: skip
    done = run(ENSURE_JAVA, machine)
    assert done.returncode == 0, done.stderr
    assert (machine / "log").read_text().startswith("update -qq\n")


def test_root_without_a_network_is_told_what_to_install(machine: Path) -> None:
    command(machine, "id", "echo 0")
    command(machine, "apt-get", "exit 100")
    done = run(ENSURE_JAVA, machine)
    assert done.returncode == 1
    assert "install openjdk-17-jre-headless" in done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the environment script reads."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "make_env.sh", folder / "scripts")
    (folder / "pyproject.toml").write_text("a")
    (folder / "constraints.txt").write_text("b")
    return folder


def python(folder: Path, name: str, *, pip: int = 0, new_enough: int = 0) -> None:
    """An interpreter that makes environments of its own kind, and whose pip ends with this exit code."""
    command(
        folder, name, f"""echo "$*" >>{folder.parent}/log
        case "$*" in
            *sys.version_info*) exit {new_enough};;
            *venv*) /bin/mkdir -p .venv/bin; /bin/cp "$0" .venv/bin/python;;
            *"pip --version"*) exit 0;;
            *"pip install"*) exit {pip};;
        esac""",
    )  # fmt: skip


def test_without_a_python_one_line_says_so(machine: Path, project: Path) -> None:
    python(machine, "python3", new_enough=1)
    done = run(project / "scripts/make_env.sh", machine)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Python 3.11 or newer" in done.stderr
    assert not (project / ".venv").exists()


def test_the_environment_is_made_once_and_anew_when_the_pins_change(machine: Path, project: Path) -> None:
    python(machine, "python3.12")
    for change, expected in ((None, 1), (None, 1), ("constraints.txt", 2), ("pyproject.toml", 3), (None, 3)):
        if change is not None:
            (project / change).write_text(f"changed {change}")
        done = run(project / "scripts/make_env.sh", machine)
        assert done.returncode == 0, done.stderr
        assert (machine.parent / "log").read_text().count("pip install") == expected


def test_a_failed_installation_says_so_and_is_tried_again(machine: Path, project: Path) -> None:
    python(machine, "python3.11", pip=1)
    for _ in range(2):
        done = run(project / "scripts/make_env.sh", machine)
        assert done.returncode == 1
        assert "could not be installed. Is there a network" in done.stderr


def test_a_half_made_environment_is_made_anew(machine: Path, project: Path) -> None:
    python(machine, "python3.11")
    command(project / ".venv/bin", "python", "exit 127")
    (project / ".venv/.installed").write_text("old")
    done = run(project / "scripts/make_env.sh", machine)
    assert done.returncode == 0, done.stderr
    assert "venv --clear .venv" in (machine.parent / "log").read_text()


def test_the_shipped_data_are_what_the_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(ROOT / "scripts/make_data.py"), str(tmp_path)]
    subprocess.run(script, check=True, env=environment, capture_output=True, timeout=120)
    for name in ("digits/train", "digits/test", "wine/train", "wine/test"):
        assert pq.read_table(ROOT / f"data/{name}.parquet").equals(pq.read_table(tmp_path / f"{name}.parquet")), name


def test_digits_are_1797_images_of_64_small_integers() -> None:
    parts = [pq.read_table(ROOT / f"data/digits/{part}.parquet") for part in ("train", "test")]
    assert [part.num_rows for part in parts] == [1438, 359]
    for part in parts:
        assert set(part["label"].to_pylist()) == set(range(10))
        assert {len(row) for row in part["pixels"].to_pylist()} == {64}
        assert {value for row in part["pixels"].to_pylist() for value in row} == set(range(17))
