"""How several arrays (N, ...) become one, and how its gradient goes back to each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from sparkdl.nn.cost import Cost, tree
from sparkdl.nn.layer import Array, Shape

__all__ = ["MERGES", "Merge", "merge", "merge_cost", "merge_grad", "merged_shape"]

Merge = Literal["concat", "add", "subtract", "multiply"]
MERGES: tuple[str, ...] = get_args(Merge)


def merged_shape(how: str, shapes: Sequence[Shape]) -> Shape:
    """The shape of a merged sample. Raises ValueError where the shapes do not go together."""
    if len(shapes) == 1:
        return shapes[0]
    shown = ", ".join(str(tuple(s)) for s in shapes)
    if how == "concat":
        if not all(shapes) or len({tuple(s[:-1]) for s in shapes}) > 1:
            raise ValueError(f'"concat" joins along the last axis, so the other axes must agree; got {shown}.')
        return (*shapes[0][:-1], sum(s[-1] for s in shapes))
    if len({tuple(s) for s in shapes}) > 1:
        raise ValueError(f'"{how}" works entry by entry, so the shapes must agree; got {shown}.')
    return shapes[0]


def merge_cost(how: str, shapes: Sequence[Shape]) -> Cost:
    """The cost of one merged sample; a single value is passed on for nothing."""
    n, k = math.prod(merged_shape(how, shapes)), len(shapes)
    if k == 1:
        return Cost()
    return Cost(moved=2 * n) if how == "concat" else Cost(work=(k - 1) * n, depth=tree(k), moved=(k + 1) * n)


def merge(how: str, xs: Sequence[Array]) -> tuple[Array, Any]:
    """y, joined along the last axis, summed, the first less all others, or multiplied; and what `merge_grad` needs."""
    if len(xs) == 1:
        return xs[0], 1
    if how == "concat":
        return np.concatenate(xs, axis=-1), [x.shape[-1] for x in xs]
    y = xs[0].copy()
    for x in xs[1:]:
        {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[how](y, x, out=y)
    return y, list(xs) if how == "multiply" else len(xs)


def merge_grad(how: str, cache: Any, dy: Array) -> list[Array]:
    """The gradient of each of what was merged."""
    if isinstance(cache, int) and cache == 1:
        return [dy]
    if how == "concat":
        return np.split(dy, np.cumsum(cache[:-1]), axis=-1)
    if how == "multiply":
        return [dy * math.prod(x for j, x in enumerate(cache) if j != i) for i in range(len(cache))]
    return [dy if how == "add" or i == 0 else -dy for i in range(cache)]
