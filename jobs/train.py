"""Train a network as a configuration says.

spark-submit jobs/train.py conf/digits.toml [--set section.key=value ...] [--profile] [--verbose]
"""

from __future__ import annotations

import argparse
import sys

from sparkdl.config import load
from sparkdl.ml import job
from sparkdl.ml.cli import INTERRUPT_CODE, parser, run_job, session
from sparkdl.train import INTERRUPTED


def main(args: argparse.Namespace) -> int:
    """Train, test, save; print the network, the figures, and where everything lies."""
    overrides = [*args.set, *(["training.profile=true"] if args.profile else [])]
    config = load(args.conf, overrides)
    spark = None if config.training.master else session("sparkdl train")
    if args.verbose:
        print(job.settings(config))
    outcome = job.train(config, spark, on_start=lambda task: print(job.tables(task, args.verbose)))
    if outcome.model.profile is not None:
        print(outcome.model.profile.table())
    print(outcome.report())
    return INTERRUPT_CODE if outcome.model.stop_reason == INTERRUPTED else 0


if __name__ == "__main__":
    arguments = parser(__doc__ or "")
    arguments.add_argument("conf", help="the TOML file")
    arguments.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a key")
    arguments.add_argument("--profile", action="store_true", help="show where the time goes, by phase and layer")
    sys.exit(run_job(main, arguments.parse_args()))
