"""The contract of a layer: a frozen description that holds no arrays.

Parameters come in, caches go out. A layer pickles small, is safe in threads, and tests in isolation.
"""

from __future__ import annotations

import functools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from sparkdl.nn.cost import Cost

__all__ = ["Array", "Clock", "Ctx", "Initializer", "Layer", "ParamSpec", "Params", "Shape", "kind_of", "priced"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Initializer = Callable[[np.random.Generator, Shape], Array]
Params = Mapping[str, Any]  # name -> array, or name of a sublayer -> Params


class ParamSpec(NamedTuple):
    """Shape and initial value of one parameter. One that is not trainable is a *buffer* (running statistics)."""

    shape: Shape
    init: Initializer
    trainable: bool = True


class Clock(Protocol):
    """Where a profile is kept: `span(name)` times what runs inside it."""

    def span(self, name: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Ctx:
    """What a pass needs besides arrays: training or not, the source of randomness, and, when profiling, a clock.

    `ready(path)` hears in the backward pass that the gradients of the layer at `path` are complete. `sync(sums)` adds
    up an array over all workers that share the minibatch, in place: every one of them calls it, in the same order.
    `outer(g, x, dy)` may take over to add x^T dy to the gradient g (D, units) of a weight matrix, for x (R, D) and dy
    (R, units), and says whether it does: a layer asks it in the backward pass, and where nobody does adds the product.
    `path` says where in the net the pass stands; it is kept up only for a clock or for `ready`. `dx` tells a backward
    pass whether the gradient of the layer's input is wanted; where it is not, what `backward` returns has no meaning.
    """

    train: bool = False
    rng: np.random.Generator | None = None
    clock: Clock | None = None
    path: str = ""
    ready: Callable[[str], None] | None = None
    sync: Callable[[Array], None] | None = None
    outer: Callable[[Any, Array, Array], bool] | None = None
    dx: bool = True

    def child(self, name: str, dx: bool = True) -> Ctx:
        """The context of the sublayer `name`: this one with a longer path, and `dx` as its container needs it."""
        path = self.path
        if self.clock is not None or self.ready is not None:
            path = f"{path}/{name}" if path else name
        return self if (path, dx) == (self.path, self.dx) else replace(self, path=path, dx=dx)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Time the enclosed work as `name/path` when a profile is kept; free otherwise."""
        if self.clock is None:
            return nullcontext()
        return self.clock.span(f"{name}/{self.path}" if self.path else name)


class Layer(ABC):
    """One differentiable function with named parameters. Subclasses are frozen dataclasses and are final.

    Arrays are channels last, `x (N, ...)`, with the batch axis first; shapes in `out_shape` and `specs` leave it out.

    `forward` never changes a parameter. `backward` adds into `g`, whose entries stand beside those of `p`:
    for a trainable parameter the *sum* of the samples' gradients, for a buffer (`trainable=False`)
    `rows * new value`. Both are then right after any sum over shards: the mean gradient is g / weight, and the
    buffer's next value is g / rows, the mean of what the shards would have made of it.
    """

    @abstractmethod
    def out_shape(self, in_shape: Shape) -> Shape:
        """Shape of one output sample. Raises ValueError with both shapes and a remedy where `in_shape` does not fit."""

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        """Parameters by name; a container joins the names of its sublayers with "/"."""
        return {}

    @abstractmethod
    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Any]:
        """x (N, *in_shape) -> (y (N, *out_shape), cache: exactly what backward needs)."""

    @abstractmethod
    def backward(self, p: Params, cache: Any, dy: Array, g: Params, ctx: Ctx) -> Array:
        """dy (N, *out_shape) -> dx (N, *in_shape); adds into g. Unless `ctx.dx`, it may return anything."""

    def cost(self, in_shape: Shape) -> Cost:
        """The cost of one sample's forward pass: one operation for each entry of y, unless the layer knows better."""
        return priced(self, in_shape, Cost(work=math.prod(self.out_shape(in_shape)), depth=1))

    def madds(self, in_shape: Shape) -> int:
        """Multiply-adds of one sample's forward pass; element-wise work counts as none."""
        return self.cost(in_shape).madds


def priced(layer: Layer, in_shape: Shape, operations: Cost) -> Cost:
    """The operations and the memory of a layer that reads x and its parameters, and writes y."""
    size = sum(math.prod(spec.shape) for spec in layer.specs(in_shape).values())
    moved = math.prod(in_shape) + size + math.prod(layer.out_shape(in_shape))
    return operations.then(Cost(moved=moved, parameters=size))


@functools.cache
def kind_of(cls: type) -> str:
    """The name of a layer class in configurations and parameter names: `MaxPool2D` -> `max_pool2d`."""
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z])", "_", cls.__name__).lower()
