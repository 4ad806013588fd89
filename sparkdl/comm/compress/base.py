"""The contract of a compressor: a vector becomes a short message of bytes, and a message a vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike

from sparkdl.comm.compress.memory import Memory, State
from sparkdl.comm.transport.base import Array
from sparkdl.fields import check_fields

__all__ = ["Compressor", "Reduce", "Route", "Segment", "Summable", "finite", "poison", "poisoned"]

Route = Literal["dense", "reduce", "gather", "two_phase"]
Reduce = Callable[[Array], None]
"""Sums a vector over all ranks, in place."""


class Segment(Protocol):
    """One named tensor's place in the vector, as `optim.Segment`; what compresses matrices needs their shapes."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Compressor(ABC):
    """How a float32 or float64 vector (n,) travels. Subclasses are frozen dataclasses and final; state is explicit.

    A message is bytes (m,), uint8, and says all that decoding needs besides n and dtype. Where a vector holds NaN or an
    infinity, its message decodes to NaN in every element, so that no later check of the result can miss it, and the
    memory stays as it was. An empty vector has an empty message.

    `route` is the way to the sum over all ranks:

    dense: an allreduce of the vector itself.
    reduce: parts of the message are summed by an allreduce as they are (`Summable`).
    gather: all messages go to all ranks.
    two_phase: chunk r of every rank goes to rank r, which decodes, adds up and sends out a message of its sum; what
        that leaves out joins the memory of rank r.
    """

    route: ClassVar[Route]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """What becomes of that which a message leaves out."""

    @abstractmethod
    def slots(self, size: int, dtype: np.dtype[Any], segments: Sequence[Segment]) -> State:
        """Arrays that `pack` needs and changes."""

    @abstractmethod
    def nbytes(self, size: int, itemsize: int, segments: Sequence[Segment] = ()) -> int:
        """Length of a message; where it depends on the values, the length that is aimed at."""

    @abstractmethod
    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        """The message of v (n,), n > 0, all finite; v stays as it is. Slots of `state` may change."""

    @abstractmethod
    def unpack_into(self, out: Array, message: Array, scale: float) -> None:
        """out (n,) += scale D(message), in place, n > 0."""

    def init(self, size: int, dtype: DTypeLike = np.float32, segments: Sequence[Segment] = ()) -> State:
        """The state for vectors (size,) of `dtype`: arrays, to be saved with a checkpoint. Each rank has its own.

        `segments` tell where in the vector which tensor lies. Errors: ValueError for other dtypes.
        """
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"{type(self).__name__} compresses float32 and float64; got {dtype}. Convert the vector.")
        return self.slots(size, dtype, segments) | self.memory.init(size, dtype)

    def encode(self, vec: Array, state: State, rng: np.random.Generator) -> Array:
        """The message of vec and what the memory owes; updates state in place. vec stays as it is."""
        due = self.memory.due(vec, state)
        message = self.message(due, state, rng)
        if not poisoned(message):
            self.memory.keep(vec, due, lambda out: self.add_into(out, message, -1.0), state)
        return message

    def add_into(self, out: Array, message: Array, scale: float = 1.0) -> None:
        """out (n,) += scale D(message), in place; n and dtype are those of the vector that was encoded."""
        if poisoned(message):
            out.fill(np.nan)
        elif out.size:
            with np.errstate(over="ignore", invalid="ignore"):
                self.unpack_into(out, message, scale)

    def message(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        """The message of v itself, with no regard to the memory."""
        if not v.size:
            return np.empty(0, np.uint8)
        if not finite(v):
            return poison(self.nbytes(v.size, v.itemsize))
        return self.pack(v, state, rng)


class Summable(Compressor):
    """A compressor whose messages may be summed, part by part, without decoding them."""

    route: ClassVar[Route] = "reduce"

    @abstractmethod
    def rounds(self, v: Array, state: State, rng: np.random.Generator, reduce: Reduce) -> tuple[Array, Array]:
        """The message of v, and that of the sum over all ranks; both decode to NaN where that sum is not finite.

        `rng` is in the same state on all ranks.
        """

    def pack(self, v: Array, state: State, rng: np.random.Generator) -> Array:
        return self.rounds(v, state, rng, lambda part: None)[0]


def finite(vec: Array) -> bool:
    """Whether vec holds neither NaN nor infinity."""
    return bool(np.isfinite(vec).all())


def poison(nbytes: int = 8) -> Array:
    """The message of a vector that is not finite: bytes 0xFF, which no first value or scale of another has."""
    return np.full(nbytes, 0xFF, np.uint8)


def poisoned(message: Array) -> bool:
    """Whether the message stands for a vector that is not finite."""
    return bool(message.size) and bool((message[:8] == 0xFF).all())
