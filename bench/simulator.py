"""The simulator beside real fits of 2 to 8 processes: seconds of a step, measured and simulated.

python bench/simulator.py [--rate 200mbit] [--processes 2 4 8] [--modes NAME ...] [--tcp reno] [--json FILE]

Each process is a host of its own, a network namespace whose link has the given rate (needs root). A local step sleeps,
for as long each time or for random times, so that the machine's few cores are not what is measured. The simulator is
given those times, the links as they were measured on the same networks, and what a local step takes besides, which a
fit tells whose processes meet nobody. Run one benchmark of namespaces at a time: they use the same addresses.

The links' congestion control is Reno, behind deep queues. With BBR, a connection that has rested for some 0.2 s moves
2 MB a third slower than one in use, which the cost model does not know: ways that change partners (butterflies, trees)
then take longer than simulated (`--tcp bbr`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
import pyarrow as pa
from _networks import CIDR, DRIVER, Enter, can_throttle, throttled_hosts
from _sleeper import Sleeper, laps_in
from report import Row, arguments, report

from sparkdl.backends import ProcessBackend
from sparkdl.comm import TransportOptions, connect
from sparkdl.comm.measure import measure_link, save_links
from sparkdl.config import links_at
from sparkdl.data import DataSpec, synthetic
from sparkdl.ml import fit
from sparkdl.nn import Dense, Sequential
from sparkdl.optim import SGD
from sparkdl.simulate import Cluster, Compute, simulate
from sparkdl.strategies import AllReduce, Gossip, ModelAveraging, ParameterServer, Strategy
from sparkdl.train import Training

SPEC = DataSpec(features=("features",), label="label")
BALLAST = 500_000  # parameters: 2 MB
SLEEP_S = 0.1
ROWS = 16  # of a local step: no process is ever without one
WARM_UP, STEPS = 8, 64
CLOSE = 0.1
QUEUE = "16mb"  # nothing is dropped
TCP: Any = {"network": TransportOptions(shared_memory=False)}

MODES: dict[str, Strategy] = {
    "allreduce": AllReduce(bucket_mb=0, **TCP),
    "allreduce, ring": AllReduce("ring", bucket_mb=0, **TCP),
    "model_averaging": ModelAveraging(period=4, **TCP),
    "gossip": Gossip(**TCP),
    "gossip, asynchronous": Gossip(asynchronous=True, **TCP),
    "parameter_server, bsp": ParameterServer("bsp", **TCP),
    "parameter_server, ssp 2": ParameterServer("ssp", 2, **TCP),
    "parameter_server, 1 server": ParameterServer("bsp", servers=1, **TCP),
}
ALONE = ModelAveraging(period=10**6, **TCP)
TIMES = {"constant": Compute(SLEEP_S), "lognormal": Compute(SLEEP_S, "lognormal", cv=0.5)}


class Replayed:
    """Compute times that were slept, (steps, processes), with what a local step takes besides."""

    def __init__(self, slept_s: np.ndarray, besides_s: float) -> None:
        self.table, self.at = slept_s + besides_s, 0
        self.seconds = float(self.table.mean())

    def draw(self, rng: np.random.Generator, workers: int, steps: int) -> np.ndarray:
        """The next rows, from the first one on again after the last."""
        rows = np.arange(self.at, self.at + steps) % len(self.table)
        self.at += steps
        return self.table[rows]


def measured(
    strategy: Strategy, compute: Compute, backend: ProcessBackend, processes: int, data: pa.Table
) -> tuple[float, np.ndarray]:
    """Seconds of a step of a real fit, by the steps of all its processes once it has warmed up; what they slept."""
    with tempfile.TemporaryDirectory() as folder:
        net = Sequential([Sleeper(compute, BALLAST, folder), Dense(2)])
        training = Training(epochs=1, batch_size=ROWS * processes, steps_per_epoch=WARM_UP + STEPS + 1)
        fit(
            data,
            net,
            SPEC,
            optimizer=SGD(0.01),
            training=training,
            strategy=strategy,
            workers=processes,
            master=backend,
        )
        table = [laps[WARM_UP:] for laps in laps_in(folder)]
    step_s = harmonic_mean((laps[-1].start - laps[0].start) / (len(laps) - 1) for laps in table)
    least = min(map(len, table)) - 1
    return step_s, np.array([[lap.slept_s for lap in laps[:least]] for laps in table]).T


def measure(hosts: list[str], folder: Path) -> Path:
    """The file of links that processes on these hosts measure."""
    context = multiprocessing.get_context("spawn")
    path, secret = folder / f"links-{len(hosts)}.toml", secrets.token_bytes(32)
    ranks = [
        context.Process(target=_measure, args=(rank, tuple(hosts), folder, secret, path)) for rank in range(len(hosts))
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return path


def _measure(rank: int, hosts: tuple[str, ...], folder: Path, secret: bytes, path: Path) -> None:
    Enter(hosts)(rank)
    options = TransportOptions(shared_memory=False, cidr=CIDR)
    with connect(rank, len(hosts), _by_files(folder, rank, len(hosts)), secret, job_id="links", options=options) as t:
        link = measure_link(t, [range(len(hosts))])
    if rank == 0:
        save_links(path, link)


def _by_files(folder: Path, rank: int, size: int) -> Callable[[str], list[str]]:
    """The rendezvous: every rank writes its text to a file and reads the others'."""
    turn = 0

    def allgather(text: str) -> list[str]:
        nonlocal turn
        turn += 1
        draft = folder / f"draft-{rank}"
        draft.write_text(text)
        draft.rename(folder / f"{size}-{turn}-{rank}")
        paths = [folder / f"{size}-{turn}-{peer}" for peer in range(size)]
        while not all(p.exists() for p in paths):
            time.sleep(0.01)
        return [p.read_text() for p in paths]

    return allgather


def compared(args: argparse.Namespace, processes: int, data: pa.Table, folder: Path) -> list[Row]:
    """A row for each mode and kind of compute times, printed as they come."""
    rows = []
    with throttled_hosts(processes, args.rate, QUEUE, args.tcp) as hosts:
        link = links_at(measure(hosts, folder)).between.link
        print(f"{processes} hosts: {1e6 * link.alpha:.0f} us, {8e-9 / link.beta:.3f} Gbit/s,", end=" ", flush=True)
        backend = ProcessBackend(processes, Enter(tuple(hosts)), DRIVER)
        alone_s, _ = measured(ALONE, TIMES["constant"], backend, processes, data)
        print(f"{1e3 * alone_s:.1f} ms of a local step; seconds of a step measured, simulated, ratio")
        for name in args.modes:
            for kind, compute in TIMES.items():
                real, slept = measured(MODES[name], compute, backend, processes, data)
                local: Any = Replayed(slept, alone_s - SLEEP_S)
                mode, nbytes = MODES[name].simulated(processes), 4 * (BALLAST + 18)
                through = simulate(mode, Cluster(processes, link), local, nbytes, steps=len(slept)).throughput
                rows.append(Row(f"{name}, {kind}, {processes}", real, through.step_s, through.step_s / real, "s"))
                print(f"  {rows[-1].name:<36} {real:8.4f} {through.step_s:8.4f} {rows[-1].ratio:6.3f}", flush=True)
    return rows


def main() -> None:
    """Measure, simulate and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rate", default="200mbit", help="of the links, as tc understands it")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES), metavar="NAME")
    parser.add_argument("--tcp", default="reno", help="congestion control of the links")
    args = parser.parse_args()
    if not can_throttle():
        sys.exit("throttled links need root, `ip` and `tc`")
    data = pa.Table.from_batches(synthetic(ROWS * max(args.processes) * (WARM_UP + STEPS + 2), (8,), 2, seed=0))
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for processes in args.processes for row in compared(args, processes, data, Path(folder))]
    print()
    report(rows, args.json)
    worst = max(rows, key=lambda row: abs(row.ratio - 1))
    within = sum(abs(row.ratio - 1) <= CLOSE for row in rows)
    print(f"{within} of {len(rows)} within {CLOSE:.0%}; the farthest is {worst.name}, {worst.ratio:.3f}")


if __name__ == "__main__":
    main()
