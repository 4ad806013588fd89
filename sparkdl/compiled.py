"""Compiled twins: how a kernel written in NumPy gives way to one of the same name that numba has compiled.

Whatever is marked with `twin` runs as it stands, unless the environment variable SPARKDL_COMPILED is 1 and numba (the
extra `fast`) is installed. Both are held equal by the tests, to rounding: all workers should set it, or none. numba
compiles a kernel when it is first called with a kind of arguments, which takes a while, and keeps the machine code on
disk for all processes: beside the source or, where nothing can be written there, in the user's cache or a private
folder of the temporary directory. NUMBA_CACHE_DIR names another place.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

__all__ = ["compiling", "enabled", "exact_kernel", "inline", "kernel", "takes", "twin"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

# Sums may be taken in another order, so that they fill vector registers; NaN and infinities keep their meaning.
FAST_MATH = {"arcp", "contract", "nsz", "reassoc"}

_on = os.environ.get("SPARKDL_COMPILED", "0") == "1" and importlib.util.find_spec("numba") is not None


def enabled() -> bool:
    """Whether compiled twins are in use."""
    return _on


@contextmanager
def compiling(on: bool) -> Iterator[None]:
    """Inside, in all threads, twins are in use or not. Raises ModuleNotFoundError where there is no numba to use."""
    global _on
    if on:
        importlib.import_module("numba")
    before, _on = _on, on
    try:
        yield
    finally:
        _on = before


def twin(module: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function that has a compiled twin, of its name and with its arguments, in `module`.

    A twin that does not take what it is given returns NotImplemented, and the function itself runs.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(plain)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _on:
                found = _find(module, plain.__name__)(*args, **kwargs)
                if found is not NotImplemented:
                    return cast(R, found)
            return plain(*args, **kwargs)

        return call

    return decorate


def takes(*arrays: np.ndarray[Any, np.dtype[Any]]) -> bool:
    """Whether kernels serve these arrays: all float32, or all float64."""
    dtype = arrays[0].dtype
    return dtype.char in "fd" and all(a.dtype == dtype for a in arrays)


def kernel(function: F) -> F:
    """A function over arrays and numbers, compiled when it is first called. It never writes to what it only reads."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return _compiled(function)(*map(_open, args))

    return cast(F, call)


def exact_kernel(function: F) -> F:
    """A kernel that rounds as its lines say, on every processor: replicas that compute alike stay alike."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return _compiled(function, exact=True)(*map(_open, args))

    return cast(F, call)


def inline(function: F) -> F:
    """A function that kernels call, and that becomes part of them."""
    return cast(F, _compiled(function))


@functools.cache
def _find(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


@functools.cache
def _compiled(function: Callable[..., Any], exact: bool = False) -> Callable[..., Any]:
    import numba

    compile_it = numba.njit(cache=True, nogil=True, fastmath=not exact and FAST_MATH, error_model="numpy")
    try:
        compiled: Callable[..., Any] = compile_it(function)
    except RuntimeError:  # no place where the machine code could be kept
        numba.config.CACHE_DIR = str(_private_folder())  # type: ignore[attr-defined]
        compiled = compile_it(function)
    return compiled


def _open(arg: Any) -> Any:
    """An array marked read-only as one that is not: numba would compile the kernel once more for it."""
    if isinstance(arg, np.ndarray) and not arg.flags.writeable:
        return np.asarray(_Opened(arg))
    return arg


class _Opened:
    """The memory of an array under NumPy's array interface, which says that it may be written."""

    def __init__(self, array: np.ndarray[Any, np.dtype[Any]]) -> None:
        place, _ = array.__array_interface__["data"]
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (place, False)}


def _private_folder() -> Path:
    """A folder that no other user can write to: what lies there is run."""
    folder = Path(tempfile.gettempdir()) / f"sparkdl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        return Path(tempfile.mkdtemp(prefix="sparkdl-"))
    return folder
