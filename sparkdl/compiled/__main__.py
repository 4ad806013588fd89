"""python -m sparkdl.compiled: compiles all kernels for this processor, unless that has been done."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

from sparkdl.compiled import store
from sparkdl.compiled.kernels import KERNELS

__all__ = ["main"]


def main() -> int:
    """Compiles, and says so."""
    if find_spec("numba") is None:
        print("Compiled kernels need numba: pip install 'sparkdl-train[fast]'.", file=sys.stderr)
        return 1
    if found := store.ready():
        print(f"The compiled kernels are ready in {found}.")
        return 0
    print(f"Compiling sparkdl's kernels into {store.writable()} (once; about a minute) ...", flush=True)
    seconds = 0.0
    for module in store.modules():
        importlib.import_module(module)
        kernels = [k for k in KERNELS if k.function.__module__ == module]
        took = sum(k.prepare() for k in kernels)
        print(f"{module}: {len(kernels)} in {took:.1f} s", flush=True)
        seconds += took
    print(f"{len(KERNELS)} kernels in {seconds:.0f} s; they are in use from now on (SPARKDL_COMPILED=0 runs NumPy's).")
    store.mark_ready()
    return 0


if __name__ == "__main__":
    sys.exit(main())
