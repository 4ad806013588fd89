"""Names and shapes of a model's parameters as views of one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.layer import Array, Params, ParamSpec

__all__ = ["Layout", "Segment"]


class Segment(NamedTuple):
    """One parameter's place in the flat vector: `vec[start:stop].reshape(shape)`."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    trainable: bool


class Layout:
    """The flat vector `[trainable | buffers]`: segments in the order of `specs`, trainable ones first.

    `size` counts all entries, `num_trainable` those that an optimizer sees, `trainable_segments` tells them apart.
    """

    def __init__(self, specs: Mapping[str, ParamSpec]) -> None:
        ordered = sorted(specs.items(), key=lambda item: not item[1].trainable)  # stable: keeps the layers' order
        segments, at = [], 0
        for name, spec in ordered:
            stop = at + math.prod(spec.shape)
            segments.append(Segment(name, at, stop, tuple(spec.shape), spec.trainable))
            at = stop
        self.segments = tuple(segments)
        self.size = at
        self.trainable_segments = tuple(s for s in segments if s.trainable)
        self.num_trainable = max((s.stop for s in self.trainable_segments), default=0)
        self._specs = dict(ordered)

    def views(self, vec: Array) -> dict[str, Array]:
        """Parameter name -> view of vec (at least `size` long; views share its memory)."""
        return {s.name: vec[s.start : s.stop].reshape(s.shape) for s in self.segments}

    def tree(self, vec: Array) -> Params:
        """The same views nested by layer: `tree["dense_0"]["W"]`, as `Layer.forward` takes them."""
        root: dict[str, Any] = {}
        for s in self.segments:
            *path, leaf = s.name.split("/")
            node = root
            for part in path:
                node = node.setdefault(part, {})
            node[leaf] = vec[s.start : s.stop].reshape(s.shape)
        return root

    def init(self, rng: np.random.Generator, dtype: Any = np.float32) -> Array:
        """A new vector with every parameter drawn from its initializer, in the order of the segments."""
        vec = np.empty(self.size, dtype)
        for name, view in self.views(vec).items():
            spec = self._specs[name]
            view[...] = spec.init(rng, spec.shape)
        return vec

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, in vector order; what a golden file pins."""
        return {s.name: s.shape for s in self.segments}
