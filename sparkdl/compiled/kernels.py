"""What kernels are made of: plain loops over arrays and numbers, whose annotations say what they are compiled for.

A kernel's arrays and the numbers marked `Real` have one dtype, float32 or float64; arrays are contiguous, in C order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from sparkdl.compiled import store

__all__ = [
    "KERNELS",
    "Bool1",
    "Byte2",
    "Double1",
    "Double2",
    "Index1",
    "Index2",
    "Kernel",
    "Real",
    "Real1",
    "Real2",
    "Real3",
    "Real4",
    "Real6",
    "exact_kernel",
    "inline",
    "kernel",
    "memory",
    "single_kernel",
    "takes",
]

F = TypeVar("F", bound=Callable[..., Any])

# Annotations: the axes of an array, and what its entries are where they are not of the kernel's dtype.
Real = Any
Real1 = np.ndarray[Any, np.dtype[Any]]
Real2 = np.ndarray[Any, np.dtype[Any]]
Real3 = np.ndarray[Any, np.dtype[Any]]
Real4 = np.ndarray[Any, np.dtype[Any]]
Real6 = np.ndarray[Any, np.dtype[Any]]
Double1 = np.ndarray[Any, np.dtype[Any]]
Double2 = np.ndarray[Any, np.dtype[Any]]
Byte2 = np.ndarray[Any, np.dtype[Any]]
Bool1 = np.ndarray[Any, np.dtype[Any]]
Index1 = np.ndarray[Any, np.dtype[Any]]
Index2 = np.ndarray[Any, np.dtype[Any]]
ENTRIES = {"Double": "float64", "Byte": "uint8", "Bool": "bool", "Index": "int64"}

# Sums may be taken in another order, so that they fill vector registers; NaN and infinities keep their meaning.
FAST_MATH = {"arcp", "contract", "nsz", "reassoc"}

KERNELS: list[Kernel] = []  # of all modules imported so far


@dataclass(frozen=True)
class Kernel:
    """A compiled function. It never writes to what it only reads."""

    function: Callable[..., Any]
    exact: bool
    dtypes: tuple[str, ...]

    def __call__(self, *args: Any) -> Any:
        """Runs it; its machine code is loaded on the first call, or made where there is none."""
        return self.compiled(*map(_open, args))

    @cached_property
    def compiled(self) -> Any:
        """What numba makes of it."""
        return _dispatcher(self.function, fastmath=False if self.exact else FAST_MATH)

    def prepare(self) -> float:
        """Loads or makes its machine code for all its dtypes; the seconds that took."""
        return math.fsum(store.timed(self.compiled.compile, types) for types in self.signatures())

    def signatures(self) -> Iterator[tuple[Any, ...]]:
        """The types of its arguments, for each dtype."""
        names = [text for name, text in self.function.__annotations__.items() if name != "return"]
        for dtype in self.dtypes:
            yield tuple(_numba_type(text, dtype) for text in names)


def kernel(function: F) -> F:
    """Makes a kernel of a function."""
    return _registered(function)


def exact_kernel(function: F) -> F:
    """A kernel that rounds as its lines say, on every processor: replicas that compute alike stay alike."""
    return _registered(function, exact=True)


def single_kernel(function: F) -> F:
    """A kernel in float32 only."""
    return _registered(function, dtypes=("float32",))


def inline(function: F) -> F:
    """A function that kernels call, and that becomes part of them."""
    import numba

    return cast(F, numba.njit(fastmath=FAST_MATH, error_model="numpy")(function))


def takes(*arrays: np.ndarray[Any, np.dtype[Any]]) -> bool:
    """Whether kernels serve these arrays: all float32, or all float64."""
    dtype = arrays[0].dtype
    for array in arrays[1:]:
        if array.dtype is not dtype and array.dtype != dtype:
            return False
    return dtype.char in "fd" and dtype.isnative


def _registered(function: F, exact: bool = False, dtypes: tuple[str, ...] = ("float32", "float64")) -> F:
    made = Kernel(function, exact, dtypes)
    KERNELS.append(made)
    return cast(F, made)


def _dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    import numba

    made = numba.njit(nogil=True, error_model="numpy", **options)(function)
    store.keep(made)
    return made


def _numba_type(text: str, dtype: str) -> Any:
    import numba

    if text == "int":
        return numba.int64
    if text == "Real":
        return getattr(numba, dtype)
    entry, axes = ENTRIES.get(text[:-1], dtype), int(text[-1])
    return numba.types.Array(numba.from_dtype(np.dtype(entry)), axes, "C")


def _open(arg: Any) -> Any:
    """An array marked read-only as one that is not: numba would compile the kernel once more for it."""
    if isinstance(arg, np.ndarray) and not arg.flags.writeable:
        return np.asarray(_Opened(arg))
    return arg


def memory(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """All memory from the array's first entry to its last, along one axis, open to kernels. No stride is negative."""
    flags = array.flags
    if (flags.c_contiguous or flags.f_contiguous) and flags.writeable:
        return (array if flags.c_contiguous else array.T).reshape(-1)
    steps = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return np.asarray(_Opened(array, shape=(steps // array.itemsize + 1,), strides=None))


class _Opened:
    """The memory of an array under NumPy's array interface, which says that it may be written."""

    def __init__(self, array: np.ndarray[Any, np.dtype[Any]], **changes: Any) -> None:
        place, _ = array.__array_interface__["data"]
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (place, False)} | changes
