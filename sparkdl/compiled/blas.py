"""How many cores a matrix product of NumPy takes: where it is one, compiled products take its place."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

__all__ = ["multiplies_alone", "multiply_alone"]

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # what a BLAS heeds when it is loaded


@functools.cache
def multiplies_alone() -> bool:
    """Whether it takes one core: so the environment says, as Spark does for tasks of one, or `multiply_alone` has."""
    if find_spec("threadpoolctl") is None:
        return (os.cpu_count() or 2) == 1 or "1" in (os.environ.get(name) for name in VARIABLES)
    from threadpoolctl import threadpool_info

    counts = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    return bool(counts) and max(counts) == 1


@functools.cache
def multiply_alone() -> None:
    """From now on a product takes one core, in this process. Raises ModuleNotFoundError without threadpoolctl."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
    multiplies_alone.cache_clear()
