"""Failures of Spark jobs as one clear exception of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sparkdl import errors
from sparkdl.data.spark import readable
from sparkdl.errors import SparkdlError, TrainingError

__all__ = ["is_missing_shard", "own_error", "readable_errors"]

OWN = re.compile(r"^sparkdl\.errors\.(\w+): ", re.MULTILINE)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Raise a failure of a Spark job inside as what the worker raised, or as a TrainingError that tells the cause."""
    try:
        yield
    except (Py4JError, PySparkException) as e:
        raise own_error(e) from e


def own_error(error: Exception) -> Exception:
    """The exception of this package that a Spark failure stands for; others are returned unchanged."""
    if not isinstance(error, Py4JError | PySparkException):
        return error
    kinds = OWN.findall(str(error))
    kind = getattr(errors, kinds[-1], None) if kinds else None
    if isinstance(kind, type) and issubclass(kind, SparkdlError):
        return kind(readable(error))
    return TrainingError(f"a Spark job failed: {readable(error)}")


def is_missing_shard(error: Exception) -> bool:
    """Whether a task did not find its shard where it ran."""
    return "sparkdl.data.shard.ShardMissing" in str(error)
