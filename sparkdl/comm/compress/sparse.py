"""Few elements, exactly: the largest, those drawn by lot, those beyond a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparkdl.comm.compress.base import Compressor, Reduce, Route, Segment, Summable, finite, poison
from sparkdl.comm.compress.memory import Forgetful, Memory, MomentumResidual, Residual, State
from sparkdl.comm.compress.packing import join, take
from sparkdl.comm.transport.base import Array
from sparkdl.fields import FRACTION, POSITIVE, UNIT, Interval

__all__ = ["DGC", "RandomK", "Threshold", "TopK"]

RATIO = {"within": Interval(0, 1, "(]")}
INDEX = np.uint32
SAMPLE = 4096  # at least so many elements stand for all when DGC seeks its threshold


@dataclass(frozen=True)
class TopK(Compressor):
    """The k = max(1, floor(ratio n)) elements of largest magnitude, as values and indices."""

    route: ClassVar[Route] = "gather"
    ratio: float = field(default=0.01, metadata=RATIO)
    feedback: bool = field(default=True, kw_only=True)

    @property
    def memory(self) -> Memory:
        return Residual() if self.feedback else Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return _pairs_bytes(_count(self.ratio, size), itemsize)

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        return _pairs(v, _largest(np.abs(v), _count(self.ratio, v.size)))

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        _add_pairs(out, message, scale)


@dataclass(frozen=True)
class DGC(Compressor):
    """Deep gradient compression: momentum before the memory, and about ratio n elements of largest magnitude.

    A sample of the elements gives a threshold, and k are chosen of those beyond. Over the first `warm_up` messages the
    ratio falls from 1/4 to `ratio`, by the same factor each time. (Lin et al. 2018, arXiv:1712.01887.) Needs an
    optimizer without momentum.
    """

    route: ClassVar[Route] = "gather"
    ratio: float = field(default=0.001, metadata=RATIO)
    momentum: float = field(default=0.9, metadata=FRACTION)
    warm_up: int = field(default=0, metadata={"within": Interval(0, np.inf, "[)", integer=True)})

    @property
    def memory(self) -> Memory:
        return MomentumResidual(self.momentum)

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {"messages": np.zeros(1, np.int64)}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return _pairs_bytes(_count(self.ratio, size), itemsize)

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        k = _count(self.ratio_at(int(state["messages"][0])), v.size)
        state["messages"] += 1
        magnitude = np.abs(v)
        sampled = max(SAMPLE, v.size // 100)
        if v.size <= 4 * sampled:
            return _pairs(v, _largest(magnitude, k))
        sample = magnitude[rng.integers(v.size, size=sampled)]
        expected = k * sampled / v.size
        rank = min(sampled, math.ceil(expected + 2 * math.sqrt(expected)) + 1)  # rather too many than too few
        indices = np.flatnonzero(magnitude >= np.partition(sample, -rank)[-rank])
        if indices.size > k:
            indices = indices[_largest(magnitude[indices], k)]
        return _pairs(v, indices)

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        _add_pairs(out, message, scale)

    def ratio_at(self, messages: int) -> float:
        """The ratio after so many messages."""
        if messages >= self.warm_up or self.ratio >= 0.25:
            return self.ratio
        return float(0.25 * (self.ratio / 0.25) ** (messages / self.warm_up))


@dataclass(frozen=True)
class RandomK(Summable):
    """k = max(1, floor(ratio n)) elements drawn by lot, the same on all ranks, so that sums need no indices.

    With `feedback` they travel as they are; without it they are scaled by n / k, which is right on average.
    """

    ratio: float = field(default=0.01, metadata=RATIO)
    feedback: bool = field(default=True, kw_only=True)

    @property
    def memory(self) -> Memory:
        return Residual() if self.feedback else Forgetful()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return 8 + itemsize * _count(self.ratio, size) if size else 0

    def rounds(self, v: Array, state: State, rng: np.random.Generator, reduce: Reduce) -> tuple[Array, Array]:
        seed = rng.integers(1 << 62, size=1)
        values = v[self._indices(v.size, int(seed[0]))]
        if not self.feedback:
            values *= v.dtype.type(v.size / values.size)
        own = join(seed, values)
        reduce(values)
        return own, join(seed, values) if finite(values) else poison()

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        seed, rest = take(message, 1, np.int64)
        out[self._indices(out.size, int(seed[0]))] += rest.view(out.dtype) * out.dtype.type(scale)

    def _indices(self, size: int, seed: int) -> Array:
        rng = np.random.default_rng(seed)
        return np.sort(rng.choice(size, _count(self.ratio, size), replace=False, shuffle=False))


@dataclass(frozen=True)
class Threshold(Compressor):
    """+-T wherever |v| >= T, in one word of 32 bits: index and sign (Strom 2015). What is beyond T waits for the next.

    `threshold` is T, in units of the gradient. With a `ratio` above 0 T adapts after each message, by a factor of 2 at
    most, T <- T sqrt(sent / (ratio n)), so that about ratio n elements are sent.
    """

    route: ClassVar[Route] = "gather"
    threshold: float = field(default=0.01, metadata=POSITIVE)
    ratio: float = field(default=0.01, metadata=UNIT)

    @property
    def memory(self) -> Memory:
        return Residual()

    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        return {"threshold": np.full(1, self.threshold)}

    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        return itemsize + 4 * _count(self.ratio or 0.01, size) if size else 0

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        assert v.size < 1 << 31, v.size
        threshold = state["threshold"].astype(v.dtype)
        indices = np.flatnonzero(np.abs(v) >= threshold[0])
        if self.ratio:
            wanted = self.ratio * v.size
            state["threshold"] *= min(2.0, max(0.5, float(np.sqrt(indices.size / wanted))))
            np.maximum(state["threshold"], np.finfo(np.float32).tiny, out=state["threshold"])
        return join(threshold, indices.astype(INDEX) << INDEX(1) | (v[indices] < 0).astype(INDEX))

    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        threshold, words = take(message, 1, out.dtype)
        words = words.view(INDEX)
        step = threshold[0] * out.dtype.type(scale)
        out[words >> INDEX(1)] += np.where(words & INDEX(1), -step, step)


def _count(ratio: float, size: int) -> int:
    return max(1, int(ratio * size)) if size else 0


def _largest(magnitude: Array, k: int) -> Array:
    """The indices, ascending, of k largest elements."""
    if k >= magnitude.size:
        return np.arange(magnitude.size)
    return np.sort(np.argpartition(magnitude, -k)[-k:])


def _pairs_bytes(count: int, itemsize: int) -> int:
    return count * (itemsize + INDEX().itemsize)


def _pairs(v: Array, indices: Array) -> Array:
    assert v.size < 1 << 32, v.size
    return join(v[indices], indices.astype(INDEX))


def _add_pairs(out: Array, message: Array, scale: float) -> None:
    values, indices = take(message, message.size // (out.itemsize + INDEX().itemsize), out.dtype)
    out[indices.view(INDEX)] += values * out.dtype.type(scale)
