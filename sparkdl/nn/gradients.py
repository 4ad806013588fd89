"""Where gradients are added up: a place that holds nothing yet takes the first term as it comes.

Clearing the gradients of a large net and adding to them costs as much as an optimizer's update. So a pass may begin
with memory of undefined contents: its places are `Fresh`, and turn into zeros only where a layer adds to them as to an
array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.nn.layer import Array, Params
from sparkdl.ops.matmul import add_matmul, matmul

__all__ = ["Fresh", "add", "add_product", "fresh", "settle"]


class Fresh:
    """The place of one gradient: an array whose contents count only once something has been added."""

    __slots__ = ("array", "empty")

    def __init__(self, array: Array) -> None:
        self.array, self.empty = array, True

    def settled(self) -> Array:
        """The array, zeroed if nothing has been added."""
        if self.empty:
            self.array[...] = 0
            self.empty = False
        return self.array

    def filled(self) -> Array:
        """The array, which the caller overwrites as a whole."""
        self.empty = False
        return self.array

    def __getitem__(self, index: Any) -> Any:
        return self.settled()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.settled()[index] = value


def fresh(g: Params) -> Params:
    """The places of a tree of arrays whose contents do not count."""
    return {name: fresh(value) if isinstance(value, Mapping) else Fresh(value) for name, value in g.items()}


def settle(g: Params) -> None:
    """Zero the places that nothing has been added to, in place."""
    for value in g.values():
        if isinstance(value, Mapping):
            settle(value)
        elif isinstance(value, Fresh):
            value.settled()


def add(into: Any, value: Array) -> None:
    """into += value, in place."""
    if isinstance(into, Fresh) and into.empty:
        np.copyto(into.filled(), value)
    else:
        into[...] += value


def add_product(into: Any, a: Array, b: Array) -> None:
    """into += a b, in place: a (R, K), b (K, C), into contiguous, of R C entries."""
    if isinstance(into, Fresh) and into.empty:
        matmul(a, b, into.filled().reshape(len(a), b.shape[1]))
    else:
        add_matmul(a, b, into[...].reshape(len(a), b.shape[1]))
