"""What a compressor remembers of that which it has not sent: error feedback, with and without momentum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.comm.transport.base import Array

__all__ = ["Forgetful", "Memory", "MomentumResidual", "Residual", "State"]

State = dict[str, Array]


class Memory(ABC):
    """Turns a vector into what is due, and keeps what of it a message leaves out. State is explicit: vectors (n,)."""

    @abstractmethod
    def init(self, size: int, dtype: np.dtype[Any]) -> State:
        """Zeroed vectors."""

    @abstractmethod
    def due(self, vec: Array, state: State) -> Array:
        """What is to be sent if vec is added to the memory; neither changes. May be vec itself."""

    @abstractmethod
    def keep(self, vec: Array, due: Array, subtract: Callable[[Array], None], state: State) -> None:
        """Remember, once the message has gone out, what it left of `due`; `subtract(x)` takes off what it says."""

    @abstractmethod
    def flush(self, vec: Array, state: State) -> None:
        """Add to vec all that was not sent, in place, and begin anew."""


@dataclass(frozen=True)
class Forgetful(Memory):
    """Keeps nothing: for what is exact, or unbiased."""

    def init(self, size: int, dtype: np.dtype[Any]) -> State:
        return {}

    def due(self, vec: Array, state: State) -> Array:
        return vec

    def keep(self, vec: Array, due: Array, subtract: Callable[[Array], None], state: State) -> None:
        pass

    def flush(self, vec: Array, state: State) -> None:
        pass


@dataclass(frozen=True)
class Residual(Memory):
    """Error feedback: v = e + g; send C(v); e = v - D(C(v)).

    All that was sent and the last e make up the sum of all g. (Seide et al. 2014; Karimireddy et al. 2019,
    arXiv:1901.09847.)
    """

    def init(self, size: int, dtype: np.dtype[Any]) -> State:
        return {"residual": np.zeros(size, dtype)}

    def due(self, vec: Array, state: State) -> Array:
        due: Array = state["residual"].copy()
        with np.errstate(over="ignore", invalid="ignore"):
            due += vec
        return due

    def keep(self, vec: Array, due: Array, subtract: Callable[[Array], None], state: State) -> None:
        state["residual"][...] = due
        subtract(state["residual"])

    def flush(self, vec: Array, state: State) -> None:
        vec += state["residual"]
        state["residual"].fill(0)


@dataclass(frozen=True)
class MomentumResidual(Memory):
    """Momentum before the memory: u <- m u + g; v <- v + u; send the top of v; u = 0 where it was sent.

    What waits gathers the momentum it would have had, and what was sent does not push on in a stale direction (Lin et
    al. 2018, arXiv:1712.01887). The optimizer behind it has no momentum of its own.
    """

    momentum: float

    def init(self, size: int, dtype: np.dtype[Any]) -> State:
        return {"residual": np.zeros(size, dtype), "momentum": np.zeros(size, dtype)}

    def due(self, vec: Array, state: State) -> Array:
        due: Array = state["momentum"] * vec.dtype.type(self.momentum)
        with np.errstate(over="ignore", invalid="ignore"):
            due += vec
            due += state["residual"]
        return due

    def keep(self, vec: Array, due: Array, subtract: Callable[[Array], None], state: State) -> None:
        residual, u = state["residual"], state["momentum"]
        u *= self.momentum
        u += vec
        residual[...] = due
        subtract(residual)
        u[residual != due] = 0

    def flush(self, vec: Array, state: State) -> None:
        vec += state["residual"]
        state["residual"].fill(0)
        state["momentum"].fill(0)
