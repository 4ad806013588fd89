"""Allreduce between processes on this machine: ours over TCP and over shared memory, beside gloo and MPI.

    python bench/collectives.py [--ranks 2 4] [--channels tcp shm] [--algorithms all] [--mpi PYTHON] [--json FILE]
    python bench/collectives.py --throttle 1gbit 100mbit [--ranks 2 4]

All sum the same float32 vectors on one thread per rank. Ours and gloo (torch.distributed, over loopback TCP) alternate
within the same processes; MPI over loopback TCP runs by itself right after. A time is the slowest rank's, the median
over several rounds; a ratio above 1 is better for us. `--algorithms` times ours one by one beside the chooser's pick;
"zeros" is ours over shared memory on a vector made by `AllReducer.zeros`. `--throttle` does the same with all
algorithms between network namespaces joined by links of these rates (needs root). Where all algorithms are timed, the
best of them is named, and the chosen one's time divided by its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from _networks import CIDR, INTERFACE, throttled_hosts
from report import Row, arguments, report

NBYTES = (1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 10**7, 32 << 20, 10**8)
FEW_NBYTES = (1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
MIN_ROUNDS, MAX_ROUNDS = 9, 40
MIN_THROTTLED_ROUNDS = 4  # there is little chance in a throttled link

LOOPBACK = ("tcp", "shm")
RIVALS = ("ours", "zeros", "gloo", "mpi")  # whatever else is timed is one of our algorithms

Run = Callable[[Any], object]  # allreduce of one vector, in place


class Place(NamedTuple):
    """Where a worker stands."""

    channel: str  # tcp, shm, mpi or the rate of a link
    rank: int
    size: int
    folder: str
    secret: str


class Report(NamedTuple):
    """What rank 0 of a contest says about one length."""

    nbytes: int
    chosen: str
    tuned_s: float
    seconds: dict[str, float]
    best: str = ""  # of our algorithms, where several were timed
    ratio: float = 1.0  # of the chosen one's time to the best one's


def main() -> None:
    """Run the contests asked for, print a table of each, and sum up."""
    args = _arguments()
    if args.worker:
        place = Place(*json.loads(args.worker))
        (_work_mpi if place.channel == "mpi" else _work)(args, place)
        return
    contests: dict[tuple[int, str], list[Report]] = {}
    for size in args.ranks:
        for channel in args.throttle or args.channels:
            contests[size, channel] = _contest(args, size, channel)
        if "tcp" in args.channels and not args.throttle:
            _add_mpi(contests[size, "tcp"], _mpi(args, size))
    rows = [row for (size, channel), reports in contests.items() for row in _rows(size, channel, reports)]
    print()
    report(rows, args.json)
    _print_means(rows)


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--channels", nargs="+", choices=("tcp", "shm"), default=["tcp", "shm"])
    parser.add_argument("--throttle", nargs="+", default=[], metavar="RATE", help="as tc understands it")
    parser.add_argument("--nbytes", type=int, nargs="+")
    parser.add_argument("--algorithms", nargs="+", default=[], help="by name, or all")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the slowest contestant at each length")
    parser.add_argument(
        "--mpi", type=Path, default=Path(sys.executable), help="a Python with mpi4py, mpiexec beside it"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.nbytes = args.nbytes or list(FEW_NBYTES if args.throttle else NBYTES)
    args.algorithms = ["all"] if args.throttle else args.algorithms
    return args


# ---- one process per rank


def _work(args: argparse.Namespace, place: Place) -> None:
    """The life of one rank: meet the others, then run every contestant in turn at every length."""
    from sparkdl.comm import AllReducer, TransportOptions, allreduce, connect

    cidr = "127.0.0.0/8" if place.channel in LOOPBACK else CIDR
    options = TransportOptions(shared_memory=place.channel == "shm", cidr=cidr)
    gather = _allgather_by_files(Path(place.folder), place.rank, place.size)
    secret = bytes.fromhex(place.secret)
    with connect(place.rank, place.size, gather, secret, job_id="bench", options=options) as t, _gloo(place) as gloo:
        start = time.perf_counter()
        reducer = AllReducer(t)
        tuned_s = time.perf_counter() - start
        contestants: dict[str, Run] = {"ours": reducer.allreduce}
        if place.channel == "shm":
            common = reducer.zeros(max(args.nbytes) // 4)
            contestants["zeros"] = lambda vec: reducer.allreduce(common[: vec.size])
        known = [name for name in reducer.schedules if name != "shared" or place.channel == "shm"]
        for name in known if args.algorithms == ["all"] else args.algorithms:
            contestants[name] = lambda vec, name=name: allreduce(t, vec, "sum", reducer.schedules[name])
        contestants |= gloo
        for nbytes in args.nbytes:
            least = MIN_ROUNDS if place.channel in LOOPBACK else MIN_THROTTLED_ROUNDS
            laps = _alternate(t, contestants, nbytes, args.seconds, least)
            if place.rank == 0:
                chosen = reducer.choice(nbytes).algorithm
                seconds = {name: median(of) for name, of in laps.items()}
                print(json.dumps(Report(nbytes, chosen, tuned_s, seconds, *_best(laps, chosen))), flush=True)


def _best(laps: dict[str, list[float]], chosen: str) -> tuple[str, float]:
    """The best of our algorithms, and how many times longer the chosen one takes.

    The first is found in the even rounds and the second in the odd ones: the fastest of many is so by chance as well.
    """
    ours = {name: of for name, of in laps.items() if name not in RIVALS}
    if chosen not in ours:
        return "", 1.0
    best = min(ours, key=lambda name: median(ours[name][::2]))
    return best, median(ours[chosen][1::2]) / median(ours[best][1::2])


def _alternate(t: Any, contestants: dict[str, Run], nbytes: int, budget_s: float, least: int) -> dict[str, list[float]]:
    """The slowest rank's seconds in each round; every round runs all contestants, in an order of its own.

    (One who always followed the same rival would suffer from what that leaves behind.)
    """
    from sparkdl.comm import allreduce, barrier

    vec = np.zeros(nbytes // 4, np.float32)
    runs, laps = list(contestants.values()), []
    rounds = 1
    while len(laps) < rounds + 1:  # the first is a warm-up
        laps.append(np.zeros(len(contestants)))
        for at in np.random.default_rng(len(laps)).permutation(len(contestants)):
            barrier(t)
            start = time.perf_counter()
            runs[at](vec)
            laps[-1][at] = time.perf_counter() - start
        allreduce(t, laps[-1], "max", "tree")
        if len(laps) == 2:
            rounds = int(np.clip(budget_s / max(laps[1]), least, MAX_ROUNDS))
    return dict(zip(contestants, np.transpose(laps[1:]).tolist(), strict=True))


@contextlib.contextmanager
def _gloo(place: Place) -> Iterator[dict[str, Run]]:
    """torch.distributed's allreduce, where torch is installed."""
    if importlib.util.find_spec("torch") is None:
        yield {}
        return
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if place.channel in LOOPBACK else INTERFACE
    rendezvous = f"file://{place.folder}/gloo"
    dist.init_process_group("gloo", init_method=rendezvous, rank=place.rank, world_size=place.size)
    yield {"gloo": lambda vec: dist.all_reduce(torch.from_numpy(vec))}
    dist.destroy_process_group()


def _work_mpi(args: argparse.Namespace, place: Place) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for nbytes in args.nbytes:
        vec = np.zeros(nbytes // 4, np.float32)
        laps: list[float] = []
        rounds = 1
        while len(laps) < rounds + 1:
            comm.Barrier()
            start = time.perf_counter()
            comm.Allreduce(MPI.IN_PLACE, vec)
            laps.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
            if len(laps) == 2:
                rounds = int(np.clip(args.seconds / laps[1], MIN_ROUNDS, MAX_ROUNDS))
        if comm.rank == 0:
            print(json.dumps(Report(nbytes, "", 0.0, {"mpi": median(laps[1:])})), flush=True)


def _allgather_by_files(folder: Path, rank: int, size: int) -> Callable[[str], list[str]]:
    """The rendezvous: every rank writes its text to a file and reads the others'."""
    turn = 0

    def allgather(text: str) -> list[str]:
        nonlocal turn
        turn += 1
        draft = folder / f"draft{rank}"
        draft.write_text(text)
        draft.rename(folder / f"{turn}.{rank}")
        paths = [folder / f"{turn}.{peer}" for peer in range(size)]
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {rank}: not all ranks have come to the rendezvous")
            time.sleep(0.01)
        return [path.read_text() for path in paths]

    return allgather


# ---- the contests


def _contest(args: argparse.Namespace, size: int, channel: str) -> list[Report]:
    """Run the workers of one contest and print what rank 0 reports as it comes."""
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
        secret = secrets.token_hex(16)
        workers = []
        networks = [] if channel in LOOPBACK else started.enter_context(throttled_hosts(size, channel))
        for rank in range(size):
            command = _command(args, Place(channel, rank, size, folder, secret))
            command = ["ip", "netns", "exec", networks[rank], *command] if networks else command
            workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            started.callback(workers[-1].communicate)
            started.callback(workers[-1].kill)
        assert workers[0].stdout is not None
        for line in workers[0].stdout:
            reports.append(Report(*json.loads(line)))
            _print_line(size, channel, reports[-1], len(reports) == 1)
        codes = [worker.wait(60) for worker in workers]
        if any(codes):
            raise SystemExit(f"{size} ranks over {channel}: a worker failed")
    return reports


def _command(args: argparse.Namespace, place: Place) -> list[str]:
    passed = ["--nbytes", *map(str, args.nbytes), "--seconds", str(args.seconds)]
    if args.algorithms:
        passed += ["--algorithms", *args.algorithms]
    return [sys.executable, __file__, *passed, "--worker", json.dumps(place)]


def _mpi(args: argparse.Namespace, size: int) -> dict[int, float]:
    """Seconds by length of MPI over TCP; empty, with a word of why, where there is none."""
    launcher = args.mpi.with_name("mpiexec")
    probe = [args.mpi, "-c", "import mpi4py"]
    if not launcher.exists() or subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
        print(f"\nno MPI for {size} ranks: {args.mpi} has no mpi4py, or no mpiexec beside it")
        return {}
    # MPICH and Open MPI: sockets instead of shared memory, and more ranks than cores are welcome.
    env = os.environ | {
        "MPIR_CVAR_NOLOCAL": "1",
        "FI_PROVIDER": "tcp",
        "UCX_TLS": "tcp,self",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_pml": "ob1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    _, *worker = _command(args, Place("mpi", 0, size, "", ""))
    command = [launcher, "-n", str(size), args.mpi, *worker]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        print(f"\nno MPI for {size} ranks: {done.stderr.strip()[-300:]}")
        return {}
    reports = [Report(*json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]
    return {r.nbytes: r.seconds["mpi"] for r in reports}


def _add_mpi(reports: list[Report], seconds: dict[int, float]) -> None:
    for r in reports:
        if r.nbytes in seconds:
            r.seconds["mpi"] = seconds[r.nbytes]


def _rows(size: int, channel: str, reports: list[Report]) -> Iterator[Row]:
    for r in reports:
        for rival, theirs in r.seconds.items():
            if rival != "ours":
                name = f"{rival}: {size} ranks, {channel}, {_length(r.nbytes)}"
                yield Row.less_is_better(name, 1e3 * r.seconds["ours"], 1e3 * theirs, "ms")


def _print_line(size: int, channel: str, r: Report, first: bool) -> None:
    if first:
        print(f"\n{size} ranks over {channel}, ms; the chooser took {r.tuned_s:.2f} s")
        print(f"{'':>9} {'chosen':<20}" + "".join(f"{name[:12]:>13}" for name in r.seconds))
    times = "".join(f"{1e3 * s:13.3f}" for s in r.seconds.values())
    verdict = f"  best {r.best}, {r.ratio:.2f}" if r.best else ""
    print(f"{_length(r.nbytes):>9} {r.chosen:<20}{times}{verdict}", flush=True)


def _print_means(rows: list[Row]) -> None:
    print("\ngeometric mean of the ratios, and the least")
    kinds: dict[str, list[float]] = {}
    for row in rows:
        kinds.setdefault(row.name.rpartition(",")[0], []).append(row.ratio)
    for kind, ratios in kinds.items():
        print(f"  {kind:<40} {geometric_mean(ratios):7.2f} {min(ratios):7.2f}")


def _length(nbytes: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes % scale == 0:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes / 1e6:g} MB"


if __name__ == "__main__":
    main()
