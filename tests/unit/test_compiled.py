"""How kernels give way to compiled twins, and where machine code is kept."""

from __future__ import annotations

import importlib
import json
import os
import stat
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from sparkdl import compiled
from sparkdl.compiled import compiling, enabled, store, takes, twin, twins
from sparkdl.compiled.kernels import KERNELS


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of twins: `double` serves floats only."""
    found = types.ModuleType("twins_for_a_test")
    found.double = lambda x: "compiled" if isinstance(x, float) else NotImplemented  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, found.__name__, found)
    return found.__name__


def test_a_twin_runs_where_it_is_in_use_and_takes_its_arguments(module: str) -> None:
    pytest.importorskip("numba")

    @twin(module)
    def double(x: object) -> str:
        """What it does."""
        return "plain"

    assert double.__doc__ == "What it does."
    with compiling(True):
        assert enabled()
        assert (double(1.0), double(1)) == ("compiled", "plain")
        with compiling(False):
            assert not enabled()
            assert double(1.0) == "plain"
        assert double(1.0) == "compiled"


def test_kernels_take_one_floating_dtype() -> None:
    single, double = np.ones(2, np.float32), np.ones(2)
    assert takes(single)
    assert takes(double, double)
    assert not takes(single, double)
    assert not takes(np.ones(2, np.int32))
    assert not takes(np.ones(2, np.float16))


def test_a_kernel_is_compiled_once_for_arrays_that_may_be_written_or_not() -> None:
    pytest.importorskip("numba")

    @compiled.kernel
    def total(x: compiled.Real1) -> float:
        s = 0.0
        for v in x:
            s += v
        return s

    KERNELS.pop()
    x = np.arange(5.0)
    assert total(x) == 10
    x.flags.writeable = False
    assert total(x) == 10
    assert len(total.compiled.signatures) == 1  # type: ignore[attr-defined]
    assert not x.flags.writeable
    assert next(total.signatures()) != next(iter(total.compiled.signatures))  # type: ignore[attr-defined]
    assert [str(types) for types in total.signatures()][1] == str(total.compiled.signatures[0])  # type: ignore[attr-defined]


def test_kernels_of_the_package_say_what_they_are_compiled_for() -> None:
    pytest.importorskip("numba")
    for module in store.modules():
        importlib.import_module(module)
    assert len({k.function for k in KERNELS}) == len(KERNELS) >= 40
    for found in KERNELS:
        arguments = found.function.__code__.co_argcount
        assert [len(types) for types in found.signatures()] == [arguments] * len(found.dtypes)


PROGRAM = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
import numpy as np
from sparkdl.compiled import enabled, store
from sparkdl.ops.norm import channel_sum
if len(sys.argv) > 1:
    store.mark_ready()
total = channel_sum(np.ones((4, 8)))
print(json.dumps([enabled(), "numba" in sys.modules, total.tolist(), str(store.ready() or "")]))
"""


def run(*arguments: str, **settings: str) -> tuple[list[object], str]:
    """What a fresh process prints, and its log."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {k: v for k, v in os.environ.items() if k not in {"SPARKDL_COMPILED", "NUMBA_CACHE_DIR"}}
    environment |= {"PYTHONPATH": path} | settings
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_by_default_kernels_are_in_use_where_they_are_ready(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (on, loaded, total, where), log = run(NUMBA_CACHE_DIR=str(tmp_path))
    assert (on, loaded, total, where) == (False, False, [4.0] * 8, "")
    assert log.count("python -m sparkdl.compiled") == 1
    (on, loaded, total, where), log = run("ready", NUMBA_CACHE_DIR=str(tmp_path))
    assert (on, loaded, total) == (True, True, [4.0] * 8)
    assert Path(str(where)).parent == tmp_path
    assert not log
    made = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nb?")}
    assert made
    assert run(NUMBA_CACHE_DIR=str(tmp_path))[0][0] is True
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nb?")} == made
    assert run(NUMBA_CACHE_DIR=str(tmp_path), SPARKDL_COMPILED="0")[0][:2] == [False, False]


def test_on_request_kernels_are_compiled_when_needed(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    assert run(NUMBA_CACHE_DIR=str(tmp_path), SPARKDL_COMPILED="1")[0] == [True, True, [4.0] * 8, ""]
    assert list(tmp_path.rglob("norm._sums*.nbc"))


def test_without_numba_the_log_says_what_to_install(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr(twins, "find_spec", lambda name: None)
        patch.setenv("SPARKDL_COMPILED", "auto")
        assert not twins._decided.__wrapped__()
        assert "sparkdl-train[fast]" in caplog.text
        patch.setenv("SPARKDL_COMPILED", "yes")
        with pytest.raises(ValueError, match="SPARKDL_COMPILED=yes: it is auto"):
            twins._decided.__wrapped__()


def test_where_nothing_can_be_written_machine_code_goes_to_the_cache_or_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(store, "__file__", str(blocked / "store.py"))  # no folder can be made below a file
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(store, "folders", store.folders.__wrapped__)
    find = store.writable.__wrapped__
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find().parent == tmp_path / "cache" / "sparkdl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    private = find().parent
    assert private == tmp_path / f"sparkdl-{os.getuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert find().parent == private
    private.chmod(0o777)
    assert find().parent != private


def test_without_compiled_twins_numba_is_not_imported() -> None:
    program = (
        "import sys, numpy as np; from sparkdl.nn import Conv2D, Ctx;"
        "Conv2D(2, 3, bias=False).forward({'W': np.ones((3, 3, 2, 2))}, np.ones((1, 4, 4, 2)), Ctx());"
        "sys.exit('numba' in sys.modules)"
    )
    environment = os.environ | {"SPARKDL_COMPILED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
