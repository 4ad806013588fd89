"""A worker's view of its shard: minibatches as a network takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from sparkdl.data.findings import Array
from sparkdl.data.info import DataInfo
from sparkdl.data.shard import Handle, Rows, Shard

__all__ = ["Batch", "ShardReader"]

Batch = tuple[Array, Array, Array | None]


class ShardReader:
    """Training and validation rows of one shard: x (N, *shape) of the training dtype, y class indices int64 or values
    of the training dtype (N, *target_shape), w (N,) float64 or None.

    Files are mapped at the first use; errors: `ShardMissing`.
    """

    def __init__(self, handle: Handle, info: DataInfo) -> None:
        self.handle, self.info = handle, info
        self.train_rows, self.valid_rows = handle.train.rows, handle.valid.rows

    def train_batch(self, index: Array, change: Callable[[Array], Array] | None = None) -> Batch:
        """The training rows with these places in the shard, 0..train_rows-1; x as stored goes through `change`."""
        if not len(index):
            return self._empty()
        rows = self._train.gather(index)
        return self._batch(rows if change is None else rows._replace(x=change(rows.x)))

    def train_chunks(self, rows: int) -> Iterator[Batch]:
        """All training rows once, in a fixed order, at most `rows` at a time."""
        return map(self._batch, self._train.chunks(rows))

    def valid_chunks(self, rows: int) -> Iterator[Batch]:
        """All validation rows once, in a fixed order, at most `rows` at a time."""
        return map(self._batch, self._valid.chunks(rows))

    def close(self) -> None:
        """Release the files."""
        for name in ("_train", "_valid"):
            if (shard := self.__dict__.pop(name, None)) is not None:
                shard.close()

    @cached_property
    def _train(self) -> Shard:
        return Shard.open(self.handle.train)

    @cached_property
    def _valid(self) -> Shard:
        return Shard.open(self.handle.valid)

    def _batch(self, rows: Rows) -> Batch:
        labels = self.info.labels
        y = labels.encode(rows.y) if labels is not None else rows.y.astype(self.info.spec.dtype)
        return self.info.preprocess(rows.x), y, rows.w

    def _empty(self) -> Batch:
        info = self.info
        y = np.empty((0, *info.target_shape), np.int64 if info.labels is not None else info.spec.dtype)
        return np.empty((0, *info.shape), info.spec.dtype), y, None if info.spec.weight is None else np.empty(0)
