"""How a kernel written in NumPy gives way to one of the same name that numba has compiled.

What is marked with `twin` runs as it stands unless twins are in use. The environment variable SPARKDL_COMPILED says
when they are: "auto", which is the default, where their machine code is ready (see `sparkdl.compiled.store`), so that
nothing is ever compiled in the midst of a run; "1" wherever there is numba (the extra `fast`), compiling what is
missing; "0" never. A process decides once. Both are held equal by the tests, to rounding.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar, cast

from sparkdl.compiled import store

__all__ = ["compiling", "enabled", "kernels_in_use", "twin"]

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)
_wanted: bool | None = None  # inside `compiling`


def enabled() -> bool:
    """Whether compiled twins are in use."""
    return _decided() if _wanted is None else _wanted


def kernels_in_use() -> str:
    """Which kernels compute in this process: those of NumPy, or compiled ones, by a digest of their sources."""
    return f"compiled {store.digest()}" if enabled() else "NumPy"


@contextmanager
def compiling(on: bool) -> Iterator[None]:
    """Inside, in all threads, twins are in use or not. Raises ModuleNotFoundError where there is no numba to use."""
    global _wanted
    if on:
        importlib.import_module("numba")
    before, _wanted = _wanted, on
    try:
        yield
    finally:
        _wanted = before


def twin(module: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function that has a compiled twin, of its name and with its arguments, in `module`.

    A twin that does not take what it is given returns NotImplemented, and the function itself runs.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(plain)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if enabled():
                found = _find(module, plain.__name__)(*args, **kwargs)
                if found is not NotImplemented:
                    return cast(R, found)
            return plain(*args, **kwargs)

        return call

    return decorate


@functools.cache
def _decided() -> bool:
    wish = os.environ.get("SPARKDL_COMPILED", "auto")
    if wish not in ("auto", "0", "1"):
        raise ValueError(f"SPARKDL_COMPILED={wish}: it is auto (compiled kernels where they are ready), 1 or 0.")
    if wish == "0":
        return False
    if find_spec("numba") is None:
        log.info("NumPy's kernels run; compiled ones need numba: pip install 'sparkdl-train[fast]'.")
        return False
    if wish == "auto" and store.ready() is None:
        log.info("NumPy's kernels run. `python -m sparkdl.compiled` makes the compiled ones ready, once a machine.")
        return False
    return True


@functools.cache
def _find(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
