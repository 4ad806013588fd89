"""Where the machine code of kernels is kept: one folder for each processor, numba and Python, for all processes.

The folder lies in NUMBA_CACHE_DIR if that is set; else in `__pycache__` beside this package; else, where that cannot be
written, in the user's cache (XDG_CACHE_HOME or ~/.cache), or in a private folder of the temporary directory. Files are
named by a digest of the sources they were made from, so that a changed source is compiled anew and no file is ever
made over. An empty file says that all kernels of these sources are there.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pkgutil
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["digest", "folders", "keep", "mark_ready", "modules", "ready", "timed", "writable"]

HOMES = ("sparkdl.ops.fast", "sparkdl.optim")  # of modules of kernels, with `fast` in their full name
SHARED = (  # what becomes part of other modules' kernels
    "sparkdl.ops.fast.elementary",
    "sparkdl.ops.fast.images",
    "sparkdl.ops.fast.order",
    "sparkdl.ops.fast.products",
    "sparkdl.compiled.kernels",
    "sparkdl.compiled.tiles",
)


def modules() -> list[str]:
    """The modules that hold kernels."""
    found = []
    for home in HOMES:
        spec = find_spec(home)
        found += [f"{home}.{m.name}" for m in pkgutil.iter_modules(spec.submodule_search_locations if spec else None)]
    return sorted(name for name in found if ".fast" in name)


def ready() -> Path | None:
    """The folder where the machine code of all kernels lies, if there is one."""
    return next((folder for folder in folders() if (folder / _stamp()).is_file() and _is_safe(folder)), None)


def mark_ready() -> Path:
    """Say that all kernels have been compiled into the folder that can be written."""
    folder = writable()
    (folder / _stamp()).touch()
    return folder


@functools.cache
def folders() -> tuple[Path, ...]:
    """Where machine code may lie, best first."""
    name = f"kernels-{_environment()}"
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return (Path(chosen) / name,)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    beside, private = Path(__file__).parent / "__pycache__", Path(tempfile.gettempdir()) / f"sparkdl-{os.getuid()}"
    return tuple(home / name for home in (beside, cache / "sparkdl", private))


@functools.cache
def writable() -> Path:
    """The folder that new machine code goes to: the one that is ready, or the best that can be written to."""
    found = ready()
    for folder in ([found] if found else []) + list(folders()):
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        if _is_safe(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="sparkdl-"))


def keep(dispatcher: Any) -> None:
    """Make numba keep the machine code of a kernel here, and look for it here; one process at a time compiles."""
    if not dispatcher.py_func.__module__.startswith("sparkdl."):
        return
    compile_it = dispatcher.compile

    def compile_alone(types: Any) -> Any:
        with _alone():
            return compile_it(types)

    dispatcher._cache, dispatcher.compile = _numba_cache()(dispatcher.py_func), compile_alone


def timed(function: Callable[..., Any], *args: Any) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    function(*args)
    return time.perf_counter() - started


@functools.cache
def _numba_cache() -> Any:
    """numba's class for a function's machine code on disk, with the folder and the names of files that are ours."""
    from numba.core import caching

    class Locator(caching._CacheLocator):
        def __init__(self, function: Any) -> None:
            self.digest = _digest(function.__module__, *SHARED)
            self.line = function.__code__.co_firstlineno

        @classmethod
        def from_function(cls, function: Any, path: str) -> Any:
            return cls(function)

        def get_cache_path(self) -> str:
            return str(writable())

        def get_source_stamp(self) -> str:
            return self.digest

        def get_disambiguator(self) -> str:
            return f"{self.line}-{self.digest}"

        def ensure_cache_path(self) -> None:
            """It exists."""

    class Implementation(caching.CompileResultCacheImpl):
        _locator_classes = [Locator]  # type: ignore[list-item]  # noqa: RUF012

    class Cache(caching.FunctionCache):
        _impl_class = Implementation

        def save_overload(self, sig: Any, data: Any) -> None:
            with suppress(OSError):  # on a full or a read-only disk the code serves this process
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    return Cache


@contextmanager
def _alone() -> Iterator[None]:
    """Other threads and processes that would compile wait, where the file system can tell them to."""
    try:
        lock = (writable() / "lock").open("w")
    except OSError:  # a folder that others made ready
        yield
        return
    with lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest() -> str:
    """Of the sources of all kernels."""
    return _digest(*modules(), *SHARED)


def _stamp() -> str:
    return f"ready-{digest()}"


@functools.cache
def _digest(*names: str) -> str:
    """Of the sources of modules."""
    found = hashlib.sha256()
    for name in names:
        package, _, module = name.rpartition(".")
        found.update(pkgutil.get_data(package, f"{module}.py") or b"")
    return found.hexdigest()[:12]


def _environment() -> str:
    """A digest of what machine code depends on besides its sources."""
    python = f"{sys.implementation.cache_tag} {version('numba')} {version('llvmlite')} {version('numpy')}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = "".join(sorted({line for line in lines if line.startswith(("model", "flags", "Features", "CPU part"))}))
    except OSError:
        cpu = platform.processor()
    settings = "".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NUMBA_CPU"))
    return hashlib.sha256(f"{python} {platform.platform()} {cpu} {settings}".encode()).hexdigest()[:12]


def _is_safe(folder: Path) -> bool:
    """Whether what lies there may be run: a home in the temporary directory must be ours alone."""
    if folder.parent.parent != Path(tempfile.gettempdir()):
        return True
    info = folder.parent.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077
