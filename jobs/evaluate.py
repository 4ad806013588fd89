"""Print the loss and metrics of a trained model over labelled data.

spark-submit jobs/evaluate.py MODEL DATA [--format csv] [--json FILE] [--verbose]
"""

from __future__ import annotations

import argparse
import json
import sys

import sparkdl
from sparkdl.ml import job
from sparkdl.ml.cli import parser, run_job, session
from sparkdl.ml.trained import files_at
from sparkdl.train.files import write_json


def main(args: argparse.Namespace) -> int:
    """Evaluate and print one figure a line."""
    spark = session("sparkdl evaluate")
    model = sparkdl.load(args.model)
    metrics = model.evaluate(job.read(spark, args.data, args.format))
    for name, value in metrics.items():
        print(f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {json.dumps(value)}")
    if args.json is not None:
        write_json(files_at(args.json), args.json, metrics)
    return 0


if __name__ == "__main__":
    arguments = parser(__doc__ or "")
    arguments.add_argument("model", help="the folder that training wrote")
    arguments.add_argument("data", help="labelled rows with the columns of the training data")
    arguments.add_argument("--format", help="of the data, where the path does not tell")
    arguments.add_argument("--json", metavar="FILE", help="write the figures there too")
    sys.exit(run_job(main, arguments.parse_args()))
