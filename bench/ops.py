"""Training throughput of the operator core against PyTorch on the same CPU: forward, backward and update, in float32.

python bench/ops.py [NET ...] [--threads 1] [--seconds 8] [--quick] [--as-set] [--json FILE]

Both sides train the same nets on the same batches, a few steps in turn, each in a process of its own as a user would
have it: ours keeps freed memory as a worker does, and runs compiled kernels if they are ready (SPARKDL_COMPILED=0 for
NumPy's); torch in the faster of its two layouts. Memory is the most that a process ever had beyond its beginning.

Where the environment has NumPy's OpenBLAS run the kernels of another processor than this one (OPENBLAS_CORETYPE), that
does not count, unless --as-set says so.
"""

from __future__ import annotations

import os
import sys

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"

if "--as-set" not in sys.argv:
    for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(_name, None)

import math
import statistics
import time
import timeit
from collections.abc import Callable

import numpy as np
from _nets import SUITE
from _sides import Side
from report import Row, arguments, report
from threadpoolctl import threadpool_info

SETTLING = 0.02  # seconds of steps that do not count


def medians(sides: list[Callable[[], float]], seconds: float, turn: int = 4) -> list[float]:
    """Median seconds of each side's step, which says how long it took, in turn for `seconds`, at least twice.

    The first steps of a turn do not count: caches are cold, and the other side's threads may still wait actively.
    """
    times: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[-1]) < 2 * turn:
        for side, found in zip(sides, times, strict=True):
            settled = 0.0
            while settled < SETTLING:
                settled += side()
            found.extend(side() for _ in range(turn))
    return [statistics.median(found) for found in times]


def gemm_peak(size: int = 1024) -> float:
    """Operations a second of NumPy's own matrix product."""
    a = np.ones((size, size), np.float32)
    return 2 * size**3 / min(timeit.repeat(lambda: a @ a, number=1, repeat=10))


def products() -> str:
    """Which library multiplies NumPy's matrices, and for which processors it was written."""
    found = next((lib for lib in threadpool_info() if lib["user_api"] == "blas"), None)
    if found is None:
        return "a library that says nothing of itself"
    set_by_hand = " as OPENBLAS_CORETYPE says" if "OPENBLAS_CORETYPE" in os.environ else ""
    return f"{found['internal_api']} {found['version']} for {found.get('architecture', 'any processor')}{set_by_hand}"


def measure(name: str, seconds: float, threads: int) -> tuple[Row, Row]:
    """Samples a second, and peak memory, of both sides on one net."""
    entry = SUITE[name]
    kinds = ["ours", "torch"] + (["torch channels last"] if len(entry.in_shape) == 3 else [])
    sides = [Side(kind, name, threads) for kind in kinds]
    ours, *theirs = (entry.batch / s for s in medians([side.step for side in sides], seconds))
    our_mb, *their_mb = (side.close() for side in sides)
    best = max(theirs)
    rate = Row.more_is_better(name, ours, best, "samples/s")
    return rate, Row.less_is_better(f"{name} memory", our_mb, their_mb[theirs.index(best)], "MB")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(SUITE)}; all if none is named")
    parser.add_argument("--threads", type=int, default=1, help="of each side")
    parser.add_argument("--seconds", type=float, default=8, help="for each net")
    parser.add_argument("--as-set", action="store_true", help="leave OPENBLAS_CORETYPE as the environment has it")
    parser.add_argument("--quick", action="store_true", help="one second for each net")
    args = parser.parse_args()
    if unknown := set(args.nets) - set(SUITE):
        parser.error(f"unknown nets {', '.join(sorted(unknown))}; there are {', '.join(SUITE)}")
    rows, memory, peak = [], [], gemm_peak()
    print(f"NumPy multiplies with {products()}, at {peak / 1e9:.0f} GFLOP/s")
    for name in args.nets or SUITE:
        row, mb = measure(name, 1 if args.quick else args.seconds, args.threads)
        entry = SUITE[name]
        work = 6 * entry.ours().madds(entry.in_shape)  # a multiply-add is two operations; backward makes two for each
        print(f"{name}: {row.ours * work / peak:.0%} of that, ratio {row.ratio:.2f}", flush=True)
        rows.append(row)
        memory.append(mb)
    report(rows + memory, args.json)
    print(f"geometric mean {math.exp(statistics.mean(math.log(row.ratio) for row in rows)):.2f}")


if __name__ == "__main__":
    main()
