"""Random data of any size, for trials of speed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sparkdl.data.schema import Shape

__all__ = ["synthetic"]

CENTRES, POINTS = 3, 4  # purposes of generators in (seed, purpose, number of the batch)
CHUNK_BYTES = 4 << 20


def synthetic(rows: int, shape: Shape, classes: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Batches of `features` (lists of float32, prod(shape) long) and `label` (int64, 0..classes-1).

    Each class is a Gaussian cloud of unit variance around a centre; the centres are some sqrt(2 D) apart for D
    features, so that any sound network learns to tell the classes apart.
    """
    width = math.prod(shape)
    centres = np.random.default_rng((seed, CENTRES)).standard_normal((classes, width), np.float32)
    chunk = max(1, CHUNK_BYTES // (4 * width))
    for number, at in enumerate(range(0, rows, chunk)):
        n = min(chunk, rows - at)
        rng = np.random.default_rng((seed, POINTS, number))
        label = rng.integers(classes, size=n)
        x = rng.standard_normal((n, width), np.float32) + centres[label]
        lists = pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32) * width), pa.array(x.ravel()))
        yield pa.RecordBatch.from_arrays([lists, pa.array(label)], ["features", "label"])
