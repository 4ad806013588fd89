"""Numbers that count the operations done with them, and know how many of those wait for each other."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

__all__ = ["Counter", "Number", "dot", "largest", "numbers", "sigmoid", "together", "total", "values"]


@dataclass
class Counter:
    """Operations done so far."""

    work: int = 0


@dataclass(frozen=True)
class Number:
    """A value, and the length of the longest chain of operations that led to it."""

    value: float
    counter: Counter
    depth: int = 0

    def __add__(self, other: Any) -> Number:
        return self._new(lambda a, b: a + b, other)

    def __sub__(self, other: Any) -> Number:
        return self._new(lambda a, b: a - b, other)

    def __mul__(self, other: Any) -> Number:
        return self._new(lambda a, b: a * b, other)

    def __truediv__(self, other: Any) -> Number:
        return self._new(lambda a, b: a / b, other)

    def max(self, other: Number) -> Number:
        """The larger of two."""
        return self._new(max, other)

    def apply(self, f: Callable[[float], float]) -> Number:
        """An elementary function, or a whole activation, as one operation."""
        return self._new(lambda a, _: f(a), 0.0)

    def _new(self, f: Callable[[float, float], float], other: Any) -> Number:
        value, depth = (other.value, other.depth) if isinstance(other, Number) else (other, 0)
        self.counter.work += 1
        return Number(f(self.value, value), self.counter, 1 + max(self.depth, depth))


def numbers(a: np.ndarray, counter: Counter) -> np.ndarray:
    """An array of fresh numbers."""
    return np.array([Number(float(v), counter) for v in a.ravel()], object).reshape(a.shape)


def together(*arrays: Any) -> list[Any]:
    """The arrays, their numbers ready only when all of them are: where a layer, or a step, begins."""
    last = max(n.depth for a in arrays for n in np.ravel(np.array(a, object)))
    return [
        np.array([replace(n, depth=last) for n in np.ravel(np.array(a, object))], object).reshape(np.shape(a))
        for a in arrays
    ]


def values(a: np.ndarray) -> np.ndarray:
    """The values of an array of numbers."""
    return np.array([n.value for n in a.ravel()]).reshape(a.shape)


def reduce(f: Callable[[Number, Number], Number], terms: Iterable[Number]) -> Number:
    """One number of many, always from the two that are ready first: no order is done sooner."""
    ties = itertools.count()
    heap = [(n.depth, next(ties), n) for n in terms]
    heapq.heapify(heap)
    while len(heap) > 1:
        new = f(heapq.heappop(heap)[2], heapq.heappop(heap)[2])
        heapq.heappush(heap, (new.depth, next(ties), new))
    return heap[0][2]


total = partial(reduce, lambda a, b: a + b)
largest = partial(reduce, lambda a, b: a.max(b))


def dot(a: Iterable[Number], b: Iterable[Number], *more: Number) -> Number:
    """sum a b, and what else is to be added."""
    return total([x * y for x, y in zip(a, b, strict=True)] + list(more))


def sigmoid(n: Number) -> Number:
    """1 / (1 + e^-n), as one operation."""
    return n.apply(lambda v: 1 / (1 + math.exp(-v)))
