"""What the jobs share: one readable message and an exit code for every failure, and the session they run in."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from sparkdl.backends.spark_errors import own_error
from sparkdl.errors import SparkdlError

__all__ = ["INTERRUPT_CODE", "options", "parser", "run_job", "session"]

INTERRUPT_CODE = 130  # as shells report a process that Ctrl-C ended


def parser(description: str) -> argparse.ArgumentParser:
    """An argument parser with the options that every job has."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options(found)
    return found


def options(found: argparse.ArgumentParser) -> None:
    """Add the options that every job and command has."""
    found.add_argument("--verbose", action="store_true", help="log in detail, and show errors with their traceback")


def session(name: str) -> SparkSession:
    """The Spark session of a job; spark-submit has said where it runs."""
    spark = SparkSession.builder.appName(name).getOrCreate()
    spark.sparkContext.setLogLevel("OFF" if not logging.getLogger().isEnabledFor(logging.INFO) else "WARN")
    return spark


def run_job(main: Callable[[argparse.Namespace], int], args: argparse.Namespace, argv: Sequence[str] = ()) -> int:
    """Run a job and return its exit code: 0 done, 2 wrong configuration, 3 wrong data, 1 anything else, 130 stopped.

    A failure is one message on stderr; --verbose adds where it came from.
    """
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        return main(args)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPT_CODE
    except Exception as e:
        error = own_error(e)
        if args.verbose:
            logging.getLogger(__name__).exception("the job failed")
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, SparkdlError) else 1
