"""Data of either kind, a DataFrame or Arrow data, as shards on the backend that goes with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from sparkdl.backends import Backend, LocalBackend, ProcessBackend, Shards
from sparkdl.data import DataSpec, LabelMap, Preprocess, read_path, spool_local
from sparkdl.errors import ConfigError

__all__ = ["Master", "backend_of", "spooled"]

Master = Literal["threads", "processes"]


def backend_of(data: Any, workers: int = 0, master: Master | Backend = "threads") -> Backend:
    """Spark for a DataFrame; for Arrow data what master says. workers: 0 for one a slot."""
    if isinstance(data, DataFrame):
        # Imported here: who trains on threads needs no JVM gateway.
        from sparkdl.backends.spark import SparkBackend

        return SparkBackend(data.sparkSession)
    if not isinstance(master, str):
        return master
    return (ProcessBackend if master == "processes" else LocalBackend)(workers or os.cpu_count() or 1)


@contextmanager
def spooled(
    data: Any,
    spec: DataSpec,
    *,
    valid: Any = None,
    labels: LabelMap | None = None,
    preprocess: Preprocess | None = None,
    workers: int = 0,
    master: Master | Backend = "threads",
    spare: int = 0,
) -> Iterator[tuple[Backend, Shards]]:
    """The backend for these data and their shards on it, which are deleted when the context closes.

    data, valid: Spark DataFrames, or pyarrow Tables or paths. workers: number of shards, 0 for one a slot; the
    first `spare` of them get no rows.

    Errors: ConfigError where that leaves none to train.
    """
    given: dict[str, Any] = {"labels": labels, "preprocess": preprocess, "spare": spare}
    if isinstance(data, DataFrame):
        from sparkdl.data.spark import spool

        parts = workers or data.sparkSession.sparkContext.defaultParallelism
        _check_spare(spare, parts)
        with spool(data, spec, parts, valid_df=valid, **given) as shards:
            yield backend_of(data), shards
        return
    workers = workers or os.cpu_count() or 1
    _check_spare(spare, workers)
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        batches, held_out = _batches(data), None if valid is None else _batches(valid)
        with spool_local(batches, spec, workers, folder, valid=held_out, **given) as local:
            yield backend_of(data, workers, master), local


def _check_spare(spare: int, workers: int) -> None:
    if spare >= workers:
        raise ConfigError(
            f"strategy.servers = {spare} dedicated servers of {workers} workers leave none to train. Raise "
            "training.workers, which counts both, or lower strategy.servers."
        )


def _batches(data: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(data, str | os.PathLike):
        return iter(read_path(os.fspath(data)))
    if isinstance(data, pa.Table):
        return iter(data.to_batches())
    raise ConfigError(
        f"Data are a Spark DataFrame, a pyarrow Table, or the path of Parquet or CSV files; got {type(data).__name__}."
    )
