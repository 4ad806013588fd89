"""Networks that are no chain: several inputs and outputs, branches that meet again, layers used more than once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.containers import Child, Container, run_backward, run_forward
from sparkdl.nn.cost import Cost
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape
from sparkdl.nn.merge import MERGES, Merge, merge, merge_cost, merge_grad, merged_shape
from sparkdl.nn.window import one_of

__all__ = ["Graph", "Input", "Node"]

WHOLE = "input"  # the name of the one input that is not declared
Values = dict[str, Array]


class _Cache(NamedTuple):
    shapes: dict[str, Shape]  # of every value, the batch axis included
    merges: dict[str, Any]  # by node
    layers: dict[str, Any]


@dataclass(frozen=True)
class Input:
    """A named part of the samples, of this shape."""

    name: str
    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))


@dataclass(frozen=True)
class Node:
    """One value of a graph: `name` = layer(merge(`inputs`)).

    `inputs` names an input of the graph or an earlier node, or several that are merged as `merge` says: "concat" along
    the last axis, "add", "subtract" (from the first) or "multiply". Without a layer the merged value is the node's.
    `shares` names an earlier node in place of a layer: its layer and parameters are used here too.
    """

    name: str
    inputs: str | Sequence[str]
    layer: Layer | None = None
    merge: Merge = "concat"
    shares: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "/" in self.name:
            raise ValueError(f"Node(name={self.name!r}): a name is a text without a slash.")
        object.__setattr__(self, "inputs", (self.inputs,) if isinstance(self.inputs, str) else tuple(self.inputs))
        one_of("Node", "merge", self.merge, MERGES)
        if not self.inputs:
            raise ValueError(f"Node {self.name!r} needs at least one input.")
        if self.layer is not None and (self.shares is not None or not isinstance(self.layer, Layer)):
            raise ValueError(f"Node {self.name!r}: give either a layer or the name of a node whose layer it shares.")


@dataclass(frozen=True)
class Graph(Container):
    """A directed acyclic graph of layers, its nodes in an order in which each comes after what it reads.

    Without `inputs` the samples are the one input, named "input". Declared inputs share one record: x (N, S) holds
    them one after the other, each flattened, so that data with several columns need nothing of their own. One output
    is y as it is; several are flattened and joined, y (N, S'), which `Joint` takes apart again for a loss each.

    Parameters of a node are named after it; those of a shared layer after the node that has it, once. Their gradients
    add up over the uses, and a buffer becomes the mean of what each use makes of it.
    """

    nodes: Sequence[Node]
    outputs: str | Sequence[str]
    inputs: Sequence[Input] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", (self.outputs,) if isinstance(self.outputs, str) else tuple(self.outputs))
        known = self._input_names()
        names = known + [node.name for node in self.nodes]
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice or not self.nodes or not self.outputs:
            fault = f"{twice[0]!r} names two values" if twice else "needs nodes and outputs"
            raise ValueError(f"Graph: {fault}.")
        layers: list[str] = []
        for node in self.nodes:
            _find(node.inputs, known, f"Node {node.name!r} reads")
            if node.shares is not None:
                _find([node.shares], layers, f"Node {node.name!r} shares the layer of")
            if node.layer is not None:
                layers.append(node.name)
            known.append(node.name)
        _find(self.outputs, known, "Graph gives out")
        used = {name for node in self.nodes for name in node.inputs} | set(self.outputs)
        idle = [node.name for node in self.nodes if node.name not in used]
        if idle:
            raise ValueError(f"Graph: nothing reads node {idle[0]!r}. Make it an output, or leave it out.")

    def children(self, in_shape: Shape) -> Iterator[Child]:
        """One for each use of a layer; uses of a shared layer go by one name."""
        shapes = self._shapes(in_shape)
        layers = self._layers()
        for node in self.nodes:
            if owner := _owner(node):
                yield Child(owner, layers[owner], merged_shape(node.merge, [shapes[name] for name in node.inputs]))

    def out_shape(self, in_shape: Shape) -> Shape:
        shapes = self._shapes(in_shape)
        outs = [shapes[name] for name in self.outputs]
        return outs[0] if len(outs) == 1 else (sum(map(math.prod, outs)),)

    def own_cost(self, in_shape: Shape) -> Cost:
        """What merging takes; its depth is part of that of the paths."""
        shapes, total = self._shapes(in_shape), Cost()
        for node in self.nodes:
            total = total.beside(merge_cost(node.merge, [shapes[name] for name in node.inputs]))
        if len(self.outputs) > 1:
            total = total.beside(Cost(moved=2 * math.prod(self.out_shape(in_shape))))
        return replace(total, depth=0)

    def cost(self, in_shape: Shape) -> Cost:
        """Nodes as soon as what they read is there; parameters that are shared count once."""
        shapes, layers, total = self._shapes(in_shape), self._layers(), self.own_cost(in_shape)
        depths = dict.fromkeys(self._input_names(), 0)
        for node in self.nodes:
            inputs = [shapes[name] for name in node.inputs]
            depths[node.name] = max(depths[name] for name in node.inputs) + merge_cost(node.merge, inputs).depth
            if owner := _owner(node):
                cost = layers[owner].cost(merged_shape(node.merge, inputs))
                depths[node.name] += cost.depth
                total = total.beside(replace(cost, parameters=cost.parameters * (owner == node.name)))
        return replace(total, depth=max(depths[name] for name in self.outputs))

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, _Cache]:
        values, cache, layers = self._split(x), _Cache({}, {}, {}), self._layers()
        cache.shapes.update((name, v.shape) for name, v in values.items())
        left = Counter(name for node in self.nodes for name in node.inputs) + Counter(self.outputs)
        for node in self.nodes:
            y, cache.merges[node.name] = merge(node.merge, [values[name] for name in node.inputs])
            if owner := _owner(node):
                y, cache.layers[node.name] = run_forward(layers[owner], p.get(owner, {}), y, ctx.child(owner))
            values[node.name], cache.shapes[node.name] = y, y.shape
            left.subtract(node.inputs)
            for name in node.inputs:
                if not left[name]:
                    values.pop(name, None)  # nobody reads it any more
        outs = [values[name] for name in self.outputs]
        return outs[0] if len(outs) == 1 else np.concatenate([_flat(y) for y in outs], axis=1), cache

    def backward(self, p: Params, cache: _Cache, dy: Array, g: Params, ctx: Ctx) -> Array:
        d, layers = self._split_outputs(cache.shapes, dy), self._layers()
        grads = _SharedBuffers(self, cache.shapes, g)
        wanted = self._wanted(p, ctx.dx)
        uses = Counter(_owner(node) for node in self.nodes)
        for node in reversed(self.nodes):
            if not wanted[node.name]:
                continue
            dnode, below = d.pop(node.name), any(wanted[name] for name in node.inputs)
            if owner := _owner(node):
                inner, params = ctx.child(owner, below), p.get(owner, {})
                uses[owner] -= 1
                if uses[owner]:  # more is to be added to the gradients of a shared layer
                    inner = replace(inner, ready=None)
                dnode = run_backward(layers[owner], params, cache.layers[node.name], dnode, grads.of(owner), inner)
            if below:
                parts = merge_grad(node.merge, cache.merges[node.name], dnode)
                for name, part in zip(node.inputs, parts, strict=True):
                    _add(d, name, part)
        grads.settle()
        if not ctx.dx:
            return dy
        dxs = [d[name] if name in d else np.zeros(cache.shapes[name], dy.dtype) for name in self._input_names()]
        return np.concatenate([_flat(dx) for dx in dxs], axis=1) if self.inputs else dxs[0]

    def _wanted(self, p: Params, dx: bool) -> dict[str, bool]:
        """Of which values the gradient is wanted: of the inputs' if dx is, and wherever parameters lie before."""
        wanted = dict.fromkeys(self._input_names(), dx)
        for node in self.nodes:
            wanted[node.name] = bool(p.get(_owner(node) or "")) or any(wanted[name] for name in node.inputs)
        return wanted

    def _input_names(self) -> list[str]:
        return [i.name for i in self.inputs] or [WHOLE]

    def _layers(self) -> dict[str, Layer]:
        return {node.name: node.layer for node in self.nodes if node.layer is not None}

    def _shapes(self, in_shape: Shape) -> dict[str, Shape]:
        """The shape of every value. Raises ValueError where two do not go together."""
        size = sum(math.prod(i.shape) for i in self.inputs)
        if self.inputs and tuple(in_shape) != (size,):
            raise ValueError(f"Graph: its inputs take samples of shape ({size},); got {tuple(in_shape)}. Flatten them?")
        shapes: dict[str, Shape] = {i.name: i.shape for i in self.inputs} or {WHOLE: in_shape}
        layers, specs = self._layers(), dict[str, Any]()
        for node in self.nodes:
            try:
                shape = merged_shape(node.merge, [shapes[name] for name in node.inputs])
                if owner := _owner(node):
                    own = {name: tuple(spec.shape) for name, spec in layers[owner].specs(shape).items()}
                    if specs.setdefault(owner, own) != own:
                        raise ValueError(f"shares parameters {specs[owner]}, but needs {own} for samples {shape}.")
                    shape = layers[owner].out_shape(shape)
            except ValueError as e:
                raise ValueError(f"Node {node.name!r}: {e}") from e
            shapes[node.name] = shape
        return shapes

    def _split(self, x: Array) -> Values:
        if not self.inputs:
            return {WHOLE: x}
        ends = np.cumsum([math.prod(i.shape) for i in self.inputs])
        if x.shape[1:] != (ends[-1],):
            raise ValueError(f"Graph: its inputs take x of shape (N, {ends[-1]}); got {x.shape}. Flatten it?")
        parts = np.split(x, ends[:-1], axis=1)
        return {i.name: part.reshape(len(x), *i.shape) for i, part in zip(self.inputs, parts, strict=True)}

    def _split_outputs(self, shapes: Mapping[str, Shape], dy: Array) -> Values:
        """dy by the names of the outputs."""
        d: Values = {}
        widths = [math.prod(shapes[name][1:]) for name in self.outputs]
        parts = [dy] if len(widths) == 1 else np.split(dy, np.cumsum(widths[:-1]), axis=1)
        for name, part in zip(self.outputs, parts, strict=True):
            _add(d, name, part.reshape(shapes[name]))
        return d


class _SharedBuffers:
    """Gradients by node; buffers of shared layers are gathered aside, since each use adds rows * its new value."""

    def __init__(self, graph: Graph, shapes: Mapping[str, Shape], g: Params) -> None:
        uses = Counter(owner for node in graph.nodes if (owner := _owner(node)))
        layers, first = graph._layers(), {node.name: node for node in graph.nodes}
        self.g, self.aside = g, dict[str, Params]()
        self.moved: list[tuple[Array, Array, int]] = []
        for owner in (name for name, n in uses.items() if n > 1):
            node = first[owner]
            shape = merged_shape(node.merge, [shapes[name][1:] for name in node.inputs])
            buffers = {name for name, spec in layers[owner].specs(shape).items() if not spec.trainable}
            if buffers:
                self.aside[owner] = self._without(g[owner], buffers, uses[owner], "")

    def of(self, owner: str) -> Params:
        """Where a use of the owner's layer adds its gradients."""
        return self.aside[owner] if owner in self.aside else self.g.get(owner, {})

    def settle(self) -> None:
        """Add the means over the uses to the buffers' own entries, in place."""
        for target, total, uses in self.moved:
            target += total / uses

    def _without(self, g: Params, buffers: set[str], uses: int, path: str) -> Params:
        tree: dict[str, Any] = {}
        for key, value in g.items():
            if isinstance(value, Mapping):
                tree[key] = self._without(value, buffers, uses, f"{path}{key}/")
            elif path + key in buffers:
                tree[key] = np.zeros_like(value[...])
                self.moved.append((value[...], tree[key], uses))
            else:
                tree[key] = value
        return tree


def _owner(node: Node) -> str | None:
    """The node whose layer this one applies, itself or another; None where it only merges."""
    return node.name if node.layer is not None else node.shares


def _find(names: Sequence[str], known: Sequence[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what} {name!r}, which is not there yet; known so far: {', '.join(known) or 'none'}.")


def _add(d: Values, name: str, part: Array) -> None:
    d[name] = d[name] + part if name in d else part  # not in place: part may be a view of what others hold


def _flat(y: Array) -> Array:
    return y.reshape(len(y), math.prod(y.shape[1:]))
