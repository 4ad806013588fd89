"""How kernels give way to compiled twins, and where machine code is kept."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from sparkdl import compiled
from sparkdl.compiled import compiling, enabled, takes, twin


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

    def total(x: np.ndarray) -> float:
        s = 0.0
        for v in x:
            s += v
        return s

    run = compiled.kernel(total)
    x = np.arange(5.0)
    assert run(x) == 10
    x.flags.writeable = False
    assert run(x) == 10
    assert len(compiled._compiled(total).signatures) == 1  # type: ignore[attr-defined]
    assert not x.flags.writeable


def test_the_private_folder_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path))
    folder = compiled._private_folder()
    assert folder == tmp_path / f"sparkdl-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert compiled._private_folder() == folder
    folder.chmod(0o777)
    other = compiled._private_folder()
    assert other != folder
    assert stat.S_IMODE(other.stat().st_mode) == 0o700


PROGRAM = """
import numpy as np
from numba.core import caching
for impl in (caching.CacheImpl, caching.CompileResultCacheImpl):  # neither the sources nor a home can be written
    impl._locator_classes = [c for c in impl._locator_classes if "UserProvided" in c.__name__]
import sparkdl.ops.winograd as w
out = np.empty((16, 4 * 4 + 24))
w.scatter_inputs(np.ones((1, 6, 6, 4)), (slice(0, 1), slice(0, 2)), w.Window((3, 3)), 2, out, 2)
print(sum(map(abs, out[5, :4])))
"""


def test_an_install_that_cannot_be_written_keeps_its_code_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": path, "SPARKDL_COMPILED": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 16
    assert list((tmp_path / f"sparkdl-{os.getuid()}").rglob("*.nbi"))


def test_without_compiled_twins_numba_is_not_imported() -> None:
    program = (
        "import sys, numpy as np; from sparkdl.nn import Conv2D, Ctx;"
        "Conv2D(2, 3, bias=False).forward({'W': np.ones((3, 3, 2, 2))}, np.ones((1, 4, 4, 2)), Ctx());"
        "sys.exit('numba' in sys.modules)"
    )
    environment = os.environ | {"SPARKDL_COMPILED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
