"""The contract of an optimizer: an update rule over flat vectors that knows neither layers nor communication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

__all__ = ["Array", "Optimizer", "Segment", "State"]

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]


class Segment(Protocol):
    """One named parameter's place in the vector; `nn.layout.Segment` is one. Rules per tensor (decay, trust) use it."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Optimizer(ABC):
    """An update rule. Subclasses are frozen dataclasses of hyper-parameters and are final; state is explicit.

    `lr` is the base rate, which a schedule multiplies.
    """

    lr: float

    @abstractmethod
    def init(self, params: Array) -> State:
        """Zeroed slots for a vector like params (its dtype and size), and the step counter `t` (int64, shape (1,))."""

    @abstractmethod
    def step(self, params: Array, grad: Array, state: State, lr: float, segments: Sequence[Segment]) -> None:
        """Update params and state in place from the mean gradient; grad may be overwritten.

        params, grad (num_trainable,); lr is the schedule's value for this step; segments tell the tensors apart.
        """
