"""Training throughput of the operator core against PyTorch on the same CPU: forward, backward and update, in float32.

python bench/ops.py [NET ...] [--threads 1] [--seconds 8] [--quick] [--json FILE]

Both sides train the same nets on the same batches, step by step in turn; torch in the faster of its two layouts.
"""

from __future__ import annotations

import os
import sys

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _nets import SUITE, Entry
from report import Row, arguments, report

from sparkdl import nn, optim

LR, MOMENTUM = 0.01, 0.9


def our_step(entry: Entry, x: Any, y: Any) -> Callable[[], object]:
    """One update by sparkdl, as a worker makes it."""
    model = nn.Model(entry.ours(), nn.SoftmaxCrossEntropy(), entry.in_shape)
    layout, rng, optimizer = model.layout, np.random.default_rng(0), optim.SGD(LR, MOMENTUM)
    params, grad, n = model.init(rng), np.zeros(layout.size, np.float32), layout.num_trainable
    state = optimizer.init(params[:n])

    def step() -> None:
        grad[:] = 0
        sums, _ = model.accumulate(params, grad, x, y, None, nn.Ctx(train=True, rng=rng))
        mean = grad[:n]
        mean /= sums.weight
        optimizer.step(params[:n], mean, state, LR, layout.trainable_segments)
        params[n:] = grad[n:] / sums.rows

    return step


def torch_step(entry: Entry, x: Any, y: Any, channels_last: bool) -> Callable[[], object]:
    """One update by torch."""
    torch.manual_seed(0)
    net, inputs, labels = entry.rival(), torch.tensor(x), torch.tensor(y)
    if inputs.ndim == 4:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        inputs = inputs.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        net = net.to(memory_format=layout)
    optimizer, loss = torch.optim.SGD(net.parameters(), LR, MOMENTUM), torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(net(inputs), labels).backward()
        optimizer.step()

    return step


def medians(sides: list[Callable[[], object]], seconds: float, warm_up: int = 2) -> list[float]:
    """Median seconds of each side's step, taken in turn for about `seconds`, at least three times."""
    for _ in range(warm_up):
        for side in sides:
            side()
    times: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for side, found in zip(sides, times, strict=True):
            started = time.perf_counter()
            side()
            found.append(time.perf_counter() - started)
    return [statistics.median(found) for found in times]


def gemm_peak(size: int = 1024) -> float:
    """Operations a second of NumPy's own matrix product."""
    a = np.ones((size, size), np.float32)
    return 2 * size**3 / min(medians([lambda: a @ a], 0.3))


def measure(name: str, seconds: float) -> Row:
    """Samples a second of both sides on one net."""
    entry, rng = SUITE[name], np.random.default_rng(1)
    x = rng.standard_normal((entry.batch, *entry.in_shape), dtype=np.float32)
    y = rng.integers(entry.classes, size=entry.batch)
    layouts = (True, False) if x.ndim == 4 else (False,)
    rivals = [torch_step(entry, x, y, channels_last) for channels_last in layouts]
    ours, *theirs = (entry.batch / s for s in medians([our_step(entry, x, y), *rivals], seconds))
    return Row.more_is_better(name, ours, max(theirs), "samples/s")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(SUITE)}; all if none is named")
    parser.add_argument("--threads", type=int, default=1, help="of each side")
    parser.add_argument("--seconds", type=float, default=8, help="for each net")
    parser.add_argument("--quick", action="store_true", help="one second for each net")
    args = parser.parse_args()
    if unknown := set(args.nets) - set(SUITE):
        parser.error(f"unknown nets {', '.join(sorted(unknown))}; there are {', '.join(SUITE)}")
    torch.set_num_threads(args.threads)
    rows, peak = [], gemm_peak()
    for name in args.nets or SUITE:
        row = measure(name, 1 if args.quick else args.seconds)
        entry = SUITE[name]
        work = 6 * entry.ours().madds(entry.in_shape)  # a multiply-add is two operations; backward makes two for each
        print(f"{name}: {row.ours * work / peak:.0%} of {peak / 1e9:.0f} GFLOP/s, ratio {row.ratio:.2f}", flush=True)
        rows.append(row)
    report(rows, args.json)
    print(f"geometric mean {math.exp(statistics.mean(math.log(row.ratio) for row in rows)):.2f}")


if __name__ == "__main__":
    main()
