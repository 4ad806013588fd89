"""Spooling with Spark: a DataFrame into one shard a worker, on the executors' disks, in one pass over the data.

Two stages with one shuffle between them. The first runs where the input lies: it checks rows, packs them into blocks
of a few MiB and says which shard owns each block. The second writes each shard's blocks to local scratch and yields
one small handle. The handles are persisted; later jobs run over them, and their lineage makes a lost shard anew.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import RDD, StorageLevel, TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sparkdl.data.info import DataInfo, conclude
from sparkdl.data.labels import LabelMap
from sparkdl.data.pack import FLUSH_BYTES, Block, pack_batches
from sparkdl.data.preprocess import Preprocess
from sparkdl.data.schema import DataSpec, Packing, alike, check_columns, resolve
from sparkdl.data.shard import Handle, Piece
from sparkdl.data.wire import from_wire, to_wire
from sparkdl.data.writer import PartWriter
from sparkdl.errors import DataError, TrainingError

__all__ = ["SparkShards", "packing_of", "readable", "settle", "spool"]

log = logging.getLogger(__name__)
_settled = 0  # modules that were loaded when `settle` was last called, in a worker process

BLOCKS = "part int, valid boolean, rows binary, note string"
HANDLES = "handle string"
READ_FAULT = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
PYTHON_FAULT = re.compile(r"^(\w[\w.]*)(?:: (.*?))?(?=\n+\s+at |\n+(?:JVM|Driver) stacktrace|\s*\Z)", re.M | re.S)
JAVA_FAULT = re.compile(r"^(?:Caused by)?: ?[\w.$]+: (.*)$", re.M)


class SparkShards:
    """The shards of a fit on the executors' disks; leaving the context deletes them.

    rdd: one Handle a partition, persisted. handles: the same on the driver, in order.
    """

    def __init__(
        self,
        rdd: RDD[Handle],
        handles: tuple[Handle, ...],
        info: DataInfo,
        folder: str,
        over: Callable[[int, LabelMap | None, Preprocess], SparkShards],
    ) -> None:
        self.rdd, self.handles, self.info = rdd, handles, info
        self._folder, self._over = folder, over

    def delete(self) -> None:
        """Remove the files, by a job that goes where they are unless the driver sees them, and forget the handles."""
        _clean(self.rdd, self._folder, self.handles)

    def rebuild(self) -> None:
        """Write every shard anew, from the shuffle or the source, where a task has not found one where it ran.

        Errors: TrainingError where the rows are no longer the same.
        """
        self.rdd.unpersist(blocking=True)
        self.rdd.persist(StorageLevel.MEMORY_AND_DISK)
        handles = tuple(sorted(self.rdd.collect()))
        for old, new in zip(self.handles, handles, strict=True):
            # Sizes of files may differ: they depend on the order in which blocks arrive.
            if any((a.rows, a.checksum) != (b.rows, b.checksum) for a, b in zip(old[1:3], new[1:3], strict=True)):
                raise TrainingError(
                    f"shard {old.part} was lost, and its source has changed since: {old.train.rows:,} training and "
                    f"{old.valid.rows:,} validation rows then, {new.train.rows:,} and {new.valid.rows:,}, or others, "
                    "now. Start again, on data that stay as they are."
                )
        self.handles = handles

    def over(self, parts: int) -> SparkShards:
        """The same rows, read again, as `parts` shards; labels and scaling stay as they are."""
        return self._over(parts, self.info.labels, self.info.preprocess)

    def __enter__(self) -> SparkShards:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()


def spool(
    df: DataFrame,
    spec: DataSpec,
    parts: int,
    *,
    valid_df: DataFrame | None = None,
    labels: LabelMap | None = None,
    preprocess: Preprocess | None = None,
    spare: int = 0,
) -> SparkShards:
    """Write the rows of df as `parts` shards, of which the first `spare` stay empty, into the executors' scratch space.

    valid_df: validation rows, where `spec` does not split them off. labels, preprocess: of a model to be evaluated or
    trained further; otherwise they are learnt.

    Errors: DataError for data that cannot be used or read, TrainingError where Spark fails; no shard is left behind.
    """
    spec.check_spool(parts, valid_df is not None)
    began, folder = time.monotonic(), f"sparkdl-{uuid.uuid4().hex}"
    rdd: RDD[Any] | None = None
    try:
        packing = packing_of(df, spec)
        packed = _packed(df, packing, parts, spare, None if valid_df is None else False)
        if valid_df is not None:
            second = alike(packing_of(valid_df, spec), packing)
            packed = packed.unionAll(_packed(valid_df, second, parts, spare, True))
        shards = packed.repartitionById(parts, "part").mapInArrow(partial(_write_task, folder), HANDLES)
        rdd = shards.rdd.map(_handle).persist(StorageLevel.MEMORY_AND_DISK)
        handles = tuple(sorted(rdd.collect()))
        info = conclude(handles, packing, labels, preprocess, spare)
    except BaseException as e:
        # Before there are handles, as many tasks as there would have been shards come by most of their places.
        _clean(df.sparkSession.sparkContext.parallelize(range(parts), parts) if rdd is None else rdd, folder)
        if isinstance(e, (Py4JError, PySparkException)):
            raise _own_error(e) from e
        raise
    size = sum(piece.bytes for h in handles for piece in (h.train, h.valid))
    log.info(
        "spooled %s training and %s validation rows into %d shards (%.1f MB) in %.1f s",
        f"{info.train_rows:,}",
        f"{info.valid_rows:,}",
        parts,
        size / 1e6,
        time.monotonic() - began,
    )

    def over(parts: int, labels: LabelMap | None, preprocess: Preprocess) -> SparkShards:
        return spool(df, spec, parts, valid_df=valid_df, labels=labels, preprocess=preprocess, spare=spare)

    return SparkShards(rdd, handles, info, folder, over)


def packing_of(df: DataFrame, spec: DataSpec) -> Packing:
    """The spec resolved against a DataFrame's schema; runs no job."""
    check_columns(spec, df.columns)
    return resolve(spec, to_arrow_schema(StructType([df.schema[name] for name in spec.columns])))


def readable(error: BaseException) -> str:
    """The cause of a failed job in a sentence or two: the Python worker's error or the JVM's, without stack traces."""
    text = str(error)
    _, trace, tail = text.rpartition("Traceback (most recent call last):")
    if trace and (match := PYTHON_FAULT.search(tail)):
        name, message = match.groups()
        return str(message or name).strip()
    causes = JAVA_FAULT.findall(text)
    cause = causes[-1].strip() if causes else text.strip().split("\n\n")[0]
    if file := READ_FAULT.search(text):
        return f"{file[1]} cannot be read; is it damaged, or not complete? ({cause})"
    return cause


def _own_error(error: Exception) -> Exception:
    """Spark's exception as one of this package's."""
    text = str(error)
    user = isinstance(error, PySparkException) and not isinstance(error, PythonException)
    if user or f"{DataError.__module__}.{DataError.__name__}" in text or READ_FAULT.search(text):
        return DataError(readable(error))
    return TrainingError(f"Spark could not prepare the data: {readable(error)}")


def _columns(df: DataFrame, spec: DataSpec) -> DataFrame:
    """The columns that are read, as c0, c1, ...: Spark's mapInArrow does not take every name that a column may have."""
    quoted = ("`" + name.replace("`", "``") + "`" for name in spec.columns)
    return df.select(*(col(name).alias(f"c{i}") for i, name in enumerate(quoted)))


def _packed(df: DataFrame, packing: Packing, parts: int, spare: int, valid: bool | None) -> DataFrame:
    return _columns(df, packing.spec).mapInArrow(partial(_pack_task, packing, parts, spare, valid), BLOCKS)


def _pack_task(
    packing: Packing, parts: int, spare: int, valid: bool | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """First stage: rows -> blocks, several of which travel together where there are many shards."""
    context = TaskContext.get()
    assert context is not None
    held: list[Block] = []
    size = 0
    named = (pa.RecordBatch.from_arrays(batch.columns, packing.spec.columns) for batch in batches)
    for block in pack_batches(named, packing, parts, context.partitionId(), valid, spare):
        held.append(block)
        size += 0 if block.rows is None else block.rows.nbytes
        if size >= FLUSH_BYTES or block.note is not None:
            yield _blocks_batch(held)
            held, size = [], 0
    settle()


def _blocks_batch(blocks: list[Block]) -> pa.RecordBatch:
    part, valid, rows, note = zip(*blocks, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(part, pa.int32()),
            pa.array(valid, pa.bool_()),
            pa.array([None if r is None else to_wire(r) for r in rows], pa.binary()),
            pa.array(note, pa.string()),
        ],
        ["part", "valid", "rows", "note"],
    )


def _write_task(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Second stage: the blocks of one shard -> its files and handle."""
    context = TaskContext.get()
    assert context is not None
    with PartWriter(context.partitionId(), _scratch(folder)) as writer:
        for batch in batches:
            for part, valid, rows, note in zip(*batch.columns, strict=True):
                assert part.as_py() == writer.part, (part, writer.part)
                buffer = rows.as_buffer()
                block = None if buffer is None else from_wire(buffer)
                writer.add(Block(writer.part, valid.as_py(), block, note.as_py()))
        handle = writer.close()
    settle()
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(handle)])], ["handle"])


def _handle(row: tuple[str]) -> Handle:
    settle()
    part, train, valid, stats = json.loads(row[0])
    return Handle(part, Piece(*train), Piece(*valid), stats)


def settle() -> None:
    """Exempt what a worker process has loaded from garbage collection, again whenever there are more modules.

    Spark's daemon collects garbage after every task, which takes 30 ms where pandas and pyarrow are loaded, and as long
    again where numba is, which comes with the first minibatch: more than all else that a small task costs.
    """
    global _settled
    if len(sys.modules) > _settled:
        gc.collect()
        gc.freeze()
        _settled = len(sys.modules)


def _scratch(folder: str) -> str:
    """This executor's place for the fit's files: the scratch space that Spark itself clears when the executor ends."""
    spark_dirs = os.environ.get("SPARK_LOCAL_DIRS", "")
    return os.path.join(spark_dirs.split(",")[0] or tempfile.gettempdir(), folder)


def _clean(rdd: RDD[Any], folder: str, handles: tuple[Handle, ...] = ()) -> None:
    """Remove the fit's files wherever its tasks ran; a failure is logged, for Spark's own clearing up comes later."""
    places = {place for handle in handles for place in _places(handle)}
    try:
        if places and all(map(os.path.isdir, places)):  # executors on this machine
            _remove(places)
        else:
            rdd.foreach(partial(_remove_here, folder))
        rdd.unpersist()
    except Exception as e:
        log.warning("shards in folders %s remain until their executors end: %s", folder, readable(e))


def _remove_here(folder: str, item: Any) -> None:
    _remove({_scratch(folder), *(_places(item) if isinstance(item, Handle) else ())})


def _places(handle: Handle) -> set[str]:
    return {os.path.dirname(piece.path) for piece in (handle.train, handle.valid) if piece.path}


def _remove(places: Iterable[str]) -> None:
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
