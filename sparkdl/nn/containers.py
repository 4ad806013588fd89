"""Layers made of layers: in a row, side by side and summed, side by side and joined. They nest at will.

A container times nothing itself; `run_forward` and `run_backward` time its leaves by their full path, so that the
times of a profile add up.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.cost import Cost
from sparkdl.nn.fused import OWNERS, chain
from sparkdl.nn.gradients import settle
from sparkdl.nn.layer import Array, Ctx, Layer, Params, ParamSpec, Shape, kind_of
from sparkdl.nn.norm import BatchNorm

__all__ = ["Child", "Concat", "Container", "Residual", "Sequential", "run_backward", "run_forward"]


class Child(NamedTuple):
    """A sublayer: its name within its container, and the shape of the samples that reach it."""

    name: str
    layer: Layer
    in_shape: Shape


class Container(Layer):
    """A layer made of others. Parameter `W` of the child `dense_0` is named `dense_0/W`."""

    @abstractmethod
    def children(self, in_shape: Shape) -> Iterator[Child]:
        """The sublayers in the order of their forward passes."""

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        return {
            f"{name}/{key}": spec
            for name, layer, shape in self.children(in_shape)
            for key, spec in layer.specs(shape).items()
        }

    def own_cost(self, in_shape: Shape) -> Cost:
        """The cost of what the container does besides its sublayers."""
        return Cost()

    def cost(self, in_shape: Shape) -> Cost:
        """Sublayers one after the other, and what the container adds."""
        total = Cost()
        for _, layer, shape in self.children(in_shape):
            total = total.then(layer.cost(shape))
        return total.then(self.own_cost(in_shape))


def run_forward(layer: Layer, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Any]:
    """`layer.forward`; a leaf's time is kept as `forward/path`."""
    if ctx.clock is None or isinstance(layer, Container):
        return layer.forward(p, x, ctx)
    with ctx.span("forward"):
        return layer.forward(p, x, ctx)


def run_backward(layer: Layer, p: Params, cache: Any, dy: Array, g: Params, ctx: Ctx) -> Array:
    """`layer.backward`; a leaf's time is kept as `backward/path`, and its gradients are reported as complete."""
    if isinstance(layer, Container):
        return layer.backward(p, cache, dy, g, ctx)
    with ctx.span("backward"):
        dx = layer.backward(p, cache, dy, g, ctx)
    settle(g)
    if ctx.ready is not None:
        ctx.ready(ctx.path)
    return dx


@dataclass(frozen=True)
class Sequential(Container):
    """y = f_n(... f_1(x)). The i-th layer is named by its kind and place: `conv2d_0`, `relu_1`. No layers: y = x."""

    layers: Sequence[Layer]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _checked(self, self.layers))

    def children(self, in_shape: Shape) -> Iterator[Child]:
        shape = in_shape
        for name, layer in _named(self.layers):
            yield Child(name, layer, shape)
            shape = layer.out_shape(shape)

    def out_shape(self, in_shape: Shape) -> Shape:
        shape = in_shape
        for layer in self.layers:
            shape = layer.out_shape(shape)
        return shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, list[Any]]:
        caches = []
        for name, layer in self._chain:
            x, cache = run_forward(layer, p.get(name, {}), x, ctx.child(name))
            caches.append(cache)
        return x, caches

    def backward(self, p: Params, cache: list[Any], dy: Array, g: Params, ctx: Ctx) -> Array:
        named = self._chain
        # Where nobody wants dx, the pass ends at the first layer that has parameters, and that one skips its own.
        first = 0 if ctx.dx else next((i for i, (name, _) in enumerate(named) if p.get(name)), len(named))
        for i in reversed(range(first, len(named))):
            name, layer = named[i]
            inner = ctx.child(name, ctx.dx or i > first)
            dy = run_backward(layer, p.get(name, {}), cache[i], dy, g.get(name, {}), inner)
        return dy

    @cached_property
    def _chain(self) -> list[tuple[str, Layer]]:
        return chain(self.layers, (*OWNERS, Residual))


@dataclass(frozen=True)
class Residual(Container):
    """y = body(x) + shortcut(x); without a shortcut, y = body(x) + x (He et al. 2016)."""

    body: Layer
    shortcut: Layer | None = None

    def __post_init__(self) -> None:
        _checked(self, [layer for _, layer in self._parts()])

    def children(self, in_shape: Shape) -> Iterator[Child]:
        for name, layer in self._parts():
            yield Child(name, layer, in_shape)

    def out_shape(self, in_shape: Shape) -> Shape:
        body = self.body.out_shape(in_shape)
        shortcut = in_shape if self.shortcut is None else self.shortcut.out_shape(in_shape)
        if tuple(body) != tuple(shortcut):
            raise ValueError(
                f"Residual adds its body's output to its shortcut's, so their shapes must agree; for samples of shape "
                f"{tuple(in_shape)} the body gives {tuple(body)}, the shortcut {tuple(shortcut)}. "
                f"Give it a shortcut, such as a 1x1 convolution, with the body's stride and filters."
            )
        return body

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, list[Any]]:
        ys, caches = zip(*(run_forward(f, p.get(k, {}), x, ctx.child(k)) for k, f in self._parts()), strict=True)
        other = x if self.shortcut is None else ys[1]
        return np.add(ys[0], other, out=ys[0] if _owns(self.body) else None), list(caches)

    def backward(self, p: Params, cache: list[Any], dy: Array, g: Params, ctx: Ctx) -> Array:
        dxs = [
            run_backward(f, p.get(k, {}), c, dy, g.get(k, {}), ctx.child(k, ctx.dx))
            for (k, f), c in zip(self._parts(), cache, strict=True)
        ]
        if not ctx.dx:
            return dy
        return dxs[0] + (dy if self.shortcut is None else dxs[1])

    def own_cost(self, in_shape: Shape) -> Cost:
        n = math.prod(self.out_shape(in_shape))
        return Cost(work=n, depth=1, moved=3 * n)

    def cost(self, in_shape: Shape) -> Cost:
        return _side_by_side(self, in_shape)

    def _parts(self) -> list[tuple[str, Layer]]:
        return [("body", self.body)] + ([] if self.shortcut is None else [("shortcut", self.shortcut)])


@dataclass(frozen=True)
class Concat(Container):
    """y = [f_1(x), ..., f_n(x)] joined along the last axis. Branches are named as in Sequential."""

    branches: Sequence[Layer]

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", _checked(self, self.branches))
        if not self.branches:
            raise ValueError("Concat needs at least one branch.")

    def children(self, in_shape: Shape) -> Iterator[Child]:
        for name, layer in _named(self.branches):
            yield Child(name, layer, in_shape)

    def out_shape(self, in_shape: Shape) -> Shape:
        shapes = [tuple(f.out_shape(in_shape)) for f in self.branches]
        if not all(shapes) or len({s[:-1] for s in shapes}) > 1:
            raise ValueError(
                f"Concat joins its branches along the last axis, so their other axes must agree; for samples of shape "
                f"{tuple(in_shape)} they give {', '.join(map(str, shapes))}. Make their strides and padding match."
            )
        return (*shapes[0][:-1], sum(s[-1] for s in shapes))

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[list[Any], list[int]]]:
        ys, caches = [], []
        for name, layer in _named(self.branches):
            y, cache = run_forward(layer, p.get(name, {}), x, ctx.child(name))
            ys.append(y)
            caches.append(cache)
        return np.concatenate(ys, axis=-1), (caches, [y.shape[-1] for y in ys])

    def backward(self, p: Params, cache: tuple[list[Any], list[int]], dy: Array, g: Params, ctx: Ctx) -> Array:
        caches, widths = cache
        parts = np.split(dy, np.cumsum(widths[:-1]), axis=-1)
        dxs = [
            run_backward(f, p.get(k, {}), c, part, g.get(k, {}), ctx.child(k, ctx.dx))
            for (k, f), c, part in zip(_named(self.branches), caches, parts, strict=True)
        ]
        if not ctx.dx:
            return dy
        dx = dxs[0]
        for other in dxs[1:]:
            dx = dx + other  # not in place: an identity branch returns a view of dy
        return dx

    def own_cost(self, in_shape: Shape) -> Cost:
        return Cost(moved=2 * math.prod(self.out_shape(in_shape)))

    def cost(self, in_shape: Shape) -> Cost:
        return _side_by_side(self, in_shape)


def _side_by_side(container: Container, in_shape: Shape) -> Cost:
    """Sublayers at the same time, then what the container adds."""
    total = Cost()
    for _, layer, shape in container.children(in_shape):
        total = total.beside(layer.cost(shape))
    return total.then(container.own_cost(in_shape))


def _owns(body: Layer) -> bool:
    """Whether a body's y is a new array that no cache holds."""
    while isinstance(body, Sequential) and body.layers:
        body = body.layers[-1]
    return isinstance(body, (*OWNERS, BatchNorm))


def _checked(owner: Layer, layers: Any) -> tuple[Layer, ...]:
    """The layers as a tuple, once each is known to be a Layer."""
    kind = type(owner).__name__
    if isinstance(layers, Layer) or not isinstance(layers, Iterable):
        raise ValueError(f"{kind} takes a list of layers; got {layers!r}. Write {kind}([...]).")
    parts: tuple[Any, ...] = tuple(layers)
    for layer in parts:
        if not isinstance(layer, Layer):
            hint = f" Write {layer.__name__}()?" if isinstance(layer, type) else ""
            raise ValueError(f"{kind} is made of layers; got {layer!r}.{hint}")
    return parts


def _named(layers: Sequence[Layer]) -> list[tuple[str, Layer]]:
    return [(f"{kind_of(type(layer))}_{i}", layer) for i, layer in enumerate(layers)]
