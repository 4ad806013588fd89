"""A model as tables of text: its layers, its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sparkdl.nn.containers import Child, Container
from sparkdl.nn.layer import Shape, kind_of
from sparkdl.nn.model import Model

__all__ = ["parameter_table", "summary"]

INDENT = "  "
Row = tuple[str, str, str, str]


def summary(model: Model) -> str:
    """The layers of a model: name, shape of one output sample, parameters, multiply-adds of one sample; and totals.

    The rows of a container are indented below it; its own row shows its output only, so that columns add up.
    """
    net, layout = model.net, model.layout
    rows: list[Row] = [("input", _shape(model.in_shape), "", "")]
    if isinstance(net, Container):
        rows += _rows(net, model.in_shape, "")
    else:
        rows.append(_row(Child(kind_of(type(net)), net, model.in_shape), ""))
    total = ("total", "", f"{layout.size:,}", f"{net.madds(model.in_shape):,}")
    note = f"{layout.num_trainable:,} trainable parameters"
    if layout.size > layout.num_trainable:
        note += f", {layout.size - layout.num_trainable:,} statistics"
    return _table(("layer", "output", "parameters", "multiply-adds"), rows, total, "<<>>") + "\n" + note


def parameter_table(model: Model) -> str:
    """The parameters of a model in the order of its flat vector: name, shape, number of entries, trainable or not."""
    layout = model.layout
    rows: list[Row] = [
        (s.name, _shape(s.shape), f"{s.stop - s.start:,}", "yes" if s.trainable else "no") for s in layout.segments
    ]
    return _table(("parameter", "shape", "size", "trainable"), rows, ("total", "", f"{layout.size:,}", ""), "<<><")


def _rows(container: Container, in_shape: Shape, indent: str) -> Iterator[Row]:
    shown: set[str] = set()
    for child in container.children(in_shape):
        again = child.name in shown  # a shared layer: its parameters are counted once, its work each time
        shown.add(child.name)
        yield _row(child, indent, again)
        if isinstance(child.layer, Container) and not again:
            yield from _rows(child.layer, child.in_shape, indent + INDENT)


def _row(child: Child, indent: str, again: bool = False) -> Row:
    name, layer, in_shape = child
    size = madds = 0
    if again:
        name, madds = f"{name} (shared)", layer.madds(in_shape)
    elif not isinstance(layer, Container):
        size = sum(math.prod(spec.shape) for spec in layer.specs(in_shape).values())
        madds = layer.madds(in_shape)
    return indent + name, _shape(layer.out_shape(in_shape)), _count(size), _count(madds)


def _count(n: int) -> str:
    return f"{n:,}" if n else ""


def _shape(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _table(head: Row, rows: Sequence[Row], total: Row, align: str) -> str:
    """Columns two spaces apart, each as wide as its widest cell, aligned as `align` says ("<" left, ">" right)."""
    widths = [max(map(len, column)) for column in zip(head, *rows, total, strict=True)]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

    def line(cells: Row) -> str:
        return "  ".join(f"{c:{a}{w}}" for c, a, w in zip(cells, align, widths, strict=True)).rstrip()

    return "\n".join([line(head), rule, *map(line, rows), rule, line(total)])
