"""Values that a driver shares with its executors through broadcasts."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any, Generic, TypeVar

import numpy as np
from pyspark import Broadcast, SparkContext, cloudpickle

__all__ = ["Shared", "share"]

T = TypeVar("T")

MAX_KEPT = 8  # unpickled values that a worker keeps


class Shared(Generic[T]):
    """A reference to a broadcast value; pickles small.

    Arrays are broadcast as they are. Other values may hold classes that were defined in a notebook or in the main
    script, which only cloudpickle can carry: they travel as its bytes, and a worker unpickles them once.
    """

    def __init__(self, broadcast: Broadcast[Any], key: int | None) -> None:
        self._broadcast, self._key = broadcast, key

    @property
    def value(self) -> T:
        """The value, on a worker."""
        if self._key is None:
            return self._broadcast.value  # type: ignore[no-any-return]
        if self._key not in _kept:
            _kept[self._key] = pickle.loads(self._broadcast.value)
            while len(_kept) > MAX_KEPT:
                _kept.popitem(last=False)
        return _kept[self._key]  # type: ignore[no-any-return]

    def destroy(self) -> None:
        """Remove the value everywhere, its file on the driver with it."""
        self._broadcast.destroy()


_kept: OrderedDict[int, Any] = OrderedDict()


def share(context: SparkContext, value: T) -> Shared[T]:
    """Broadcast a value."""
    if isinstance(value, np.ndarray):
        return Shared(context.broadcast(value), None)
    dumps: Any = cloudpickle.dumps  # has no annotations
    broadcast: Broadcast[Any] = context.broadcast(dumps(value))
    return Shared(broadcast, int(broadcast._jbroadcast.id()))
