"""Spooling without Spark: Arrow batches of this process into the same shards that Spark would make of the same data."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from sparkdl.data.info import DataInfo, conclude
from sparkdl.data.labels import LabelMap
from sparkdl.data.pack import Block, pack_batches
from sparkdl.data.preprocess import Preprocess
from sparkdl.data.schema import DataSpec, Packing, alike, resolve
from sparkdl.data.shard import Handle
from sparkdl.data.writer import BATCH_BYTES, PartWriter
from sparkdl.errors import DataError

__all__ = ["LocalShards", "existing", "read_path", "spool_local"]

BATCH_ROWS = 10_000


class LocalShards:
    """The shards of a fit on this machine's disk; leaving the context deletes them."""

    def __init__(self, handles: tuple[Handle, ...], info: DataInfo, folder: str) -> None:
        self.handles, self.info = handles, info
        self._folder = folder

    def delete(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> LocalShards:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()


def spool_local(
    batches: Iterable[pa.RecordBatch],
    spec: DataSpec,
    parts: int,
    folder: str | os.PathLike[str],
    *,
    valid: Iterable[pa.RecordBatch] | None = None,
    labels: LabelMap | None = None,
    preprocess: Preprocess | None = None,
    spare: int = 0,
) -> LocalShards:
    """Stream batches into `parts` shards, of which the first `spare` stay empty, in a new folder under `folder`.

    valid: validation rows, where `spec` does not split them off. labels, preprocess: of a model to be evaluated or
    trained further; otherwise they are learnt. Memory: one batch and, over all shards, a few BATCH_BYTES.

    Errors: DataError for data that cannot be used; nothing is left behind.
    """
    spec.check_spool(parts, valid is not None)
    place = os.path.join(folder, f"sparkdl-{uuid.uuid4().hex}")
    try:
        with ExitStack() as stack:
            writers = [
                stack.enter_context(PartWriter(part, place, max(BATCH_BYTES // parts, 1 << 20)))
                for part in range(parts)
            ]
            packing, blocks = _pack(batches, spec, (parts, spare), None if valid is None else False)
            if valid is not None:
                blocks = chain(blocks, _pack(valid, spec, (parts, spare), True, packing)[1])
            for block in blocks:
                writers[block.part].add(block)
            handles = tuple(writer.close() for writer in writers)
        return LocalShards(handles, conclude(handles, packing, labels, preprocess, spare), place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _pack(
    batches: Iterable[pa.RecordBatch],
    spec: DataSpec,
    shards: tuple[int, int],
    valid: bool | None,
    like: Packing | None = None,
) -> tuple[Packing, Iterator[Block]]:
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise DataError("the data have no rows. Check the path, the filter and the dates.")
    packing = resolve(spec, first.schema)
    packing = packing if like is None else alike(packing, like)
    parts, spare = shards
    return packing, pack_batches(chain([first], stream), packing, parts, int(bool(valid)), valid, spare)


def read_path(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of the Parquet or CSV file, or of the folder of such files, at `path`; all columns where None are named.

    Folders named `key=value` become columns, as Spark and Hive have it. Files are read one after the other; a DataError
    names the one that is damaged.
    """
    where = existing(path)
    form = "csv" if where.suffix == ".csv" or any(where.glob("**/*.csv")) else "parquet"
    current = str(path)
    try:
        data = ds.dataset(str(path), format=form, partitioning=ds.partitioning(flavor="hive"))
        for fragment in data.get_fragments():
            current = fragment.path
            names = None if columns is None else [c for c in columns if c in data.schema.names]
            yield from fragment.to_batches(schema=data.schema, columns=names, batch_size=BATCH_ROWS)
    except (OSError, pa.ArrowException) as e:
        raise DataError(f"{current} cannot be read: {e}") from e


def existing(path: str | os.PathLike[str]) -> Path:
    """The path of a file or folder. Errors: DataError where there is none."""
    where = Path(path)
    if not where.exists():
        raise DataError(f"{path} does not exist. Check data.train, data.valid and data.test.")
    return where
