"""python -m sparkdl COMMAND: what needs no Spark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkdl.config import load
from sparkdl.ml.cli import options, run_job
from sparkdl.ml.simulation import rows_of, table

__all__ = ["main", "simulate", "sizes"]

MOST = 1 << 16  # workers
SIMULATE = """How fast configurations would train on clusters of these sizes, and how stale their updates would be.

The strategy's own schedules are played, message by message, over the links and with the compute times that the section
[simulate] supposes; compute_s = 0 measures the local step on this machine.
"""


def sizes(text: str) -> list[int]:
    """Numbers of workers: "8,64,512", "8..4096" (doubling) and "4..16:4" (in steps of 4), ascending."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, dots, rest = part.partition("..")
            last, colon, step = rest.partition(":")
            size, end = int(first), int(last) if dots else int(first)
            if not 1 <= size <= end <= MOST or (colon and int(step) < 1):
                raise ValueError
            while size <= end:
                found.add(size)
                size = size + int(step) if colon else 2 * size
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes numbers of workers from 1 to {MOST:,}: 8,64,512 or 8..4096 (doubling) or 4..16:4; got {text!r}"
        ) from None
    return sorted(found)


def simulate(args: argparse.Namespace) -> int:
    """Print a row for each configuration and number of workers; draw them if asked for."""
    stems = [Path(conf).stem for conf in args.conf]
    names = [stem if stems.count(stem) == 1 else conf for stem, conf in zip(stems, args.conf, strict=True)]
    configs = [load(conf, args.set) for conf in args.conf]  # a mistake in the last shows before the first is played
    rows = [row for name, config in zip(names, configs, strict=True) for row in rows_of(name, config, args.workers)]
    print(json.dumps([row._asdict() for row in rows], indent=1) if args.json else table(rows))
    if args.plot is not None:
        from sparkdl.ml.simulation_plot import plot

        plot(rows, args.plot)
        if not args.json:
            print(f"plot: {args.plot}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns its exit code, as `run_job` says."""
    parser = argparse.ArgumentParser("python -m sparkdl", description=(__doc__ or "").partition(": ")[2])
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser(
        "simulate",
        help="how fast configurations would train on clusters of any size",
        description=SIMULATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("conf", nargs="+", help="the TOML files")
    command.add_argument("--workers", type=sizes, default=sizes("1..512"), metavar="N,N,..", help="8,64,512 or 1..512")
    command.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a key")
    command.add_argument("--plot", metavar="FILE", help="draw throughput and efficiency: .png, .svg or .pdf")
    command.add_argument("--json", action="store_true", help="print the rows as JSON")
    options(command)
    command.set_defaults(run=simulate)
    args = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    return run_job(run, args)


if __name__ == "__main__":
    sys.exit(main())
