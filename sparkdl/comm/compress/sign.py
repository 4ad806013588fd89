"""One bit for every element, and a memory for what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from sparkdl.comm.compress.base import Compressor, Route, Segment
from sparkdl.comm.compress.memory import Memory, Residual, State
from sparkdl.comm.compress.packing import join, rows_of, take
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT

__all__ = ["OneBit"]


@dataclass(frozen=True)
class OneBit(Compressor):
    """The sign of each element, and of each block what the signs stand for.

    "two_means": the mean of the elements >= 0 and that of those < 0 (Seide et al. 2014, 1-bit SGD). "mean_abs":
    mean|v| sign(v) (Karimireddy et al. 2019, arXiv:1901.09847).
    """

    route: ClassVar[Route] = "two_phase"
    scale: Literal["two_means", "mean_abs"] = "two_means"
    block: int = field(default=2048, metadata=COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale not in ("two_means", "mean_abs"):
            raise ValueError(f'OneBit(scale={self.scale!r}): scale must be "two_means" or "mean_abs".')

    @property
    def memory(self) -> Memory:
        return Residual()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return 2 * itemsize * -(-size // self.block) + -(-size // 8)

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        rows = rows_of(v, self.block)
        counts = np.full(len(rows), float(rows.shape[1]))
        counts[-1] -= rows.size - v.size
        above = np.maximum(rows, 0).sum(axis=1, dtype=np.float64)
        below = np.minimum(rows, 0).sum(axis=1, dtype=np.float64)
        if self.scale == "two_means":
            negatives = np.count_nonzero(rows < 0, axis=1)
            high = above / np.maximum(counts - negatives, 1)
            low = below / np.maximum(negatives, 1)
        else:
            high = (above - below) / counts
            low = -high
        return join(high.astype(v.dtype), low.astype(v.dtype), np.packbits(v >= 0))

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        count = -(-out.size // self.block)
        high, rest = take(message, count, out.dtype)
        low, bits = take(rest, count, out.dtype)
        rows = rows_of(np.unpackbits(bits, count=out.size).view(np.bool_), self.block)
        decoded = np.where(rows, high[:, None], low[:, None]).reshape(-1)[: out.size]
        decoded *= out.dtype.type(scale)
        out += decoded
