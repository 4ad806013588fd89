"""Compiled twins of kernels that are written in NumPy; `python -m sparkdl.compiled` makes their machine code."""

from sparkdl.compiled.kernels import (
    Bool1,
    Byte4,
    Double1,
    Double2,
    Index1,
    Real,
    Real1,
    Real2,
    Real3,
    Real4,
    Real6,
    exact_kernel,
    inline,
    kernel,
    single_kernel,
    takes,
)
from sparkdl.compiled.twins import compiling, enabled, twin

__all__ = [
    "Bool1",
    "Byte4",
    "Double1",
    "Double2",
    "Index1",
    "Real",
    "Real1",
    "Real2",
    "Real3",
    "Real4",
    "Real6",
    "compiling",
    "enabled",
    "exact_kernel",
    "inline",
    "kernel",
    "single_kernel",
    "takes",
    "twin",
]
