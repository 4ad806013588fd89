"""A model as tables of text: its layers, what they cost, its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparkdl.nn.containers import Child, Container
from sparkdl.nn.cost import Cost
from sparkdl.nn.layer import Shape, kind_of
from sparkdl.nn.model import Model

__all__ = ["parameter_table", "summary"]

INDENT = "  "
ITEM_BYTES = 4  # of a float32
Row = tuple[str, ...]


def summary(model: Model, cost: bool = False) -> str:
    """The layers of a model: name, shape of one output sample, parameters, multiply-adds of one sample; and totals.

    With `cost` further columns show what `Cost` tells of one sample: operations, depth, and the bytes that move and
    that the parameters take, in float32. The rows of a container are indented below it; its own row shows only what it
    does itself, so that columns add up, save depths where branches run side by side.
    """
    net, layout = model.net, model.layout
    head: Row = ("layer", "output", "parameters", "multiply-adds")
    if cost:
        head += ("operations", "depth", "bytes moved", "parameter bytes")
    rows: list[Row] = [("input", _shape(model.in_shape), *[""] * (len(head) - 2))]
    if isinstance(net, Container):
        rows += _rows(net, model.in_shape, "", cost)
    else:
        rows.append(_row(Child(kind_of(type(net)), net, model.in_shape), "", cost))
    total = ("total", "", *(f"{n:,}" for n in _numbers(net.cost(model.in_shape), cost)))
    note = f"{layout.num_trainable:,} trainable parameters"
    if layout.size > layout.num_trainable:
        note += f", {layout.size - layout.num_trainable:,} statistics"
    return _table(head, rows, total, "<<" + ">" * (len(head) - 2)) + "\n" + note


def parameter_table(model: Model) -> str:
    """The parameters of a model in the order of its flat vector: name, shape, number of entries, trainable or not."""
    layout = model.layout
    rows: list[Row] = [
        (s.name, _shape(s.shape), f"{s.stop - s.start:,}", "yes" if s.trainable else "no") for s in layout.segments
    ]
    return _table(("parameter", "shape", "size", "trainable"), rows, ("total", "", f"{layout.size:,}", ""), "<<><")


def _rows(container: Container, in_shape: Shape, indent: str, cost: bool) -> Iterator[Row]:
    shown: set[str] = set()
    for child in container.children(in_shape):
        again = child.name in shown  # a shared layer: its parameters are counted once, its work each time
        shown.add(child.name)
        yield _row(child, indent, cost, again)
        if isinstance(child.layer, Container) and not again:
            yield from _rows(child.layer, child.in_shape, indent + INDENT, cost)


def _row(child: Child, indent: str, cost: bool, again: bool = False) -> Row:
    name, layer, in_shape = child
    if again:
        name, own = f"{name} (shared)", replace(layer.cost(in_shape), parameters=0)
    else:
        own = layer.own_cost(in_shape) if isinstance(layer, Container) else layer.cost(in_shape)
    counts = (f"{n:,}" if n else "" for n in _numbers(own, cost))
    return (indent + name, _shape(layer.out_shape(in_shape)), *counts)


def _numbers(cost: Cost, all_of_it: bool) -> list[int]:
    """What the columns show."""
    numbers = [cost.parameters, cost.madds]
    if all_of_it:
        numbers += [cost.work, cost.depth, ITEM_BYTES * cost.moved, ITEM_BYTES * cost.parameters]
    return numbers


def _shape(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _table(head: Row, rows: Sequence[Row], total: Row, align: str) -> str:
    """Columns two spaces apart, each as wide as its widest cell, aligned as `align` says ("<" left, ">" right)."""
    widths = [max(map(len, column)) for column in zip(head, *rows, total, strict=True)]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

    def line(cells: Row) -> str:
        return "  ".join(f"{c:{a}{w}}" for c, a, w in zip(cells, align, widths, strict=True)).rstrip()

    return "\n".join([line(head), rule, *map(line, rows), rule, line(total)])
