"""The course of bench/modes.py: the data, the modes in turn, the table and the goals."""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _mode_list import MODES, Mode
from _mode_plot import plot
from _mode_report import goals, heading, line
from _mode_run import RATE, SLOWER, Bench, Result
from _networks import can_throttle, throttled_hosts

__all__ = ["run"]

SETTINGS = {"a": "equal workers, links of loopback", "b": f"links of {RATE}, the last worker {SLOWER} times as slow"}
VALID_ROWS = 4000


def run(args: argparse.Namespace) -> int:
    """Measure what the options say and report; 1 where a mode failed."""
    if args.from_json is not None:
        results, failed = read(args.from_json), []
    else:
        results, failed = measured(args)
    print("\n".join(goals(results)))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    if args.plot is not None:
        plot(results, args.plot, args.target)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def read(paths: list[Path]) -> list[Result]:
    """The results in these files, printed; where a mode stands in several, those of the last."""
    rows = [Result(**row) for path in paths for row in json.loads(path.read_text())]
    results = list({(row.setting, row.mode): row for row in rows}.values())
    for setting in SETTINGS:
        print(f"\n({setting}) {SETTINGS[setting]}\n{heading()}")
        print("\n".join(line(result) for result in results if result.setting == setting))
    return results


def measured(args: argparse.Namespace) -> tuple[list[Result], list[str]]:
    """The results of all modes in all settings asked for, and the names of those that failed."""
    bench = Bench(*load(args.data, args.rows), args.epochs, args.workers, args.pace, args.target)
    wanted = [m for m in MODES if not args.modes or any(name in m.name for name in args.modes)]
    print(f"{args.rows} rows, {args.epochs} epochs, {args.workers} workers", end="; ")
    print(f"a gradient is made to last {args.pace * 1e3:g} ms; target: {args.target:.1%} of the validation rows")
    results, failed = list[Result](), list[str]()
    for setting in args.setting:
        if setting == "b" and not can_throttle():
            print("\n(b) left out: network namespaces need root, and the commands ip and tc")
            continue
        for found in turn(bench, setting, [m for m in wanted if setting in m.settings]):
            if isinstance(found, str):
                failed.append(found)
            else:
                results.append(found)
    return results, failed


def turn(bench: Bench, setting: str, modes: list[Mode]) -> Iterator[Result | str]:
    """Run and print one mode after the other; a name where it failed."""
    print(f"\n({setting}) {SETTINGS[setting]}\n{heading()}", flush=True)
    with hosts_of(setting, bench.workers) as hosts:
        for mode in modes:
            try:
                result = bench.run(setting, mode, hosts)
                print(line(result), flush=True)
                yield result
            except Exception:
                print(f"{mode.name} failed:\n{traceback.format_exc()}", flush=True)
                yield f"({setting}) {mode.name}"


def load(folder: Path, rows: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Training rows, validation rows and the test set."""
    files = [folder / f"{part}.parquet" for part in ("train", "test")]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SystemExit(f"MNIST is not there: {', '.join(missing)}. Name its folder with --data.")
    table, test = (pq.read_table(file) for file in files)
    if not 0 < rows <= len(table) - VALID_ROWS:
        raise SystemExit(
            f"--rows lies in [1, {len(table) - VALID_ROWS}], beside {VALID_ROWS} for validation; got {rows}"
        )
    order = np.random.default_rng(0).permutation(len(table))
    return table.take(order[:rows]), table.take(order[-VALID_ROWS:]), test


@contextmanager
def hosts_of(setting: str, workers: int) -> Iterator[list[str]]:
    """The namespaces that the workers of a setting are put into, if any."""
    if setting == "a":
        yield []
        return
    with throttled_hosts(workers, RATE) as hosts:
        yield hosts
