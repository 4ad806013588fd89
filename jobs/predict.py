"""Score data with a trained model: all input columns, and `prediction` and `probability`.

spark-submit jobs/predict.py MODEL IN OUT [--format csv] [--overwrite] [--verbose]
"""

from __future__ import annotations

import argparse
import sys

import sparkdl
from sparkdl.ml import job
from sparkdl.ml.cli import parser, run_job, session


def main(args: argparse.Namespace) -> int:
    """Score and write Parquet."""
    spark = session("sparkdl predict")
    model = sparkdl.load(args.model)
    scored = model.transform(job.read(spark, args.data, args.format))
    job.write(scored, args.out, args.overwrite)
    print(f"predictions: {args.out}")
    return 0


if __name__ == "__main__":
    arguments = parser(__doc__ or "")
    arguments.add_argument("model", help="the folder that training wrote")
    arguments.add_argument("data", metavar="in", help="rows with the feature columns of the training data")
    arguments.add_argument("out", help="the folder to write Parquet files to")
    arguments.add_argument("--format", help="of the data, where the path does not tell")
    arguments.add_argument("--overwrite", action="store_true", help="replace what is in OUT")
    sys.exit(run_job(main, arguments.parse_args()))
