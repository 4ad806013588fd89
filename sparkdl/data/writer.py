"""Blocks of packed rows into the files of one shard."""

from __future__ import annotations

import os
import uuid

import numpy as np
import pyarrow as pa

from sparkdl.data.pack import Block, joined
from sparkdl.data.shard import Handle, Piece
from sparkdl.data.stats import Stats

__all__ = ["BATCH_BYTES", "PartWriter", "ShardWriter"]

BATCH_BYTES = 16 << 20  # of a record batch: what a writer holds before it writes
ENDS = ("train", "valid")


class ShardWriter:
    """Streams packed rows into one uncompressed Arrow file, in record batches of about BATCH_BYTES.

    The file appears under `path` when it is complete; without rows there is none.
    """

    def __init__(self, path: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._path, self._aside = path, path + ".part"
        self._batch_bytes = batch_bytes
        self._pending: list[pa.RecordBatch] = []
        self._held = self._rows = self._checksum = 0
        self._schema: pa.Schema | None = None
        self._file: pa.OSFile | None = None
        self._out: pa.RecordBatchFileWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows. Those whose shapes differ from the first ones' are left out: the statistics tell of them."""
        self._schema = self._schema or rows.schema
        if rows.schema != self._schema:
            return
        self._pending.append(rows)
        self._held += rows.nbytes
        self._rows += rows.num_rows
        self._checksum += int(rows.column("h").to_numpy().sum(dtype=np.uint64))
        if self._held >= self._batch_bytes:
            self._flush()

    def close(self) -> Piece:
        """Complete the file."""
        if not self._rows:
            return Piece("", 0, 0, 0)
        self._flush()
        self._shut()
        os.replace(self._aside, self._path)
        return Piece(self._path, self._rows, os.path.getsize(self._path), self._checksum % 2**64)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._shut()
        for path in (self._aside, self._path):
            if os.path.exists(path):
                os.remove(path)

    def _flush(self) -> None:
        if self._out is None:
            self._file = pa.OSFile(self._aside, "wb")
            self._out = pa.ipc.new_file(self._file, self._schema)
        if self._pending:
            large = min(rows.nbytes for rows in self._pending) >= self._batch_bytes // 4
            for rows in self._pending if large else [joined(self._pending)]:
                self._out.write_batch(rows)
        self._pending.clear()
        self._held = 0

    def _shut(self) -> None:
        if self._out is not None and self._file is not None:
            self._out.close()
            self._file.close()
            self._out = self._file = None


class PartWriter:
    """Writes one shard: training and validation rows apart, and the notes that come with them.

    A context manager: an exception inside leaves no file behind. Names are never used twice, so that a task that is
    tried again, or runs twice, cannot spoil a file that is being read.
    """

    def __init__(self, part: int, folder: str, batch_bytes: int = BATCH_BYTES) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        name = os.path.join(folder, f"shard-{part:05d}-{uuid.uuid4().hex[:12]}")
        self.part = part
        self._files = {valid: ShardWriter(f"{name}.{end}.arrow", batch_bytes) for valid, end in enumerate(ENDS)}
        self._stats = Stats()

    def add(self, block: Block) -> None:
        """Take one block."""
        if block.note is not None:
            self._stats.merge(Stats.from_json(block.note))
        if block.rows is not None:
            self._files[block.valid].write(block.rows)

    def close(self) -> Handle:
        """Complete the shard."""
        return Handle(self.part, self._files[False].close(), self._files[True].close(), self._stats.to_json())

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for file in self._files.values():
                file.discard()
