"""Less memory for more time: a block whose inside is computed again in the backward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sparkdl.nn.containers import Child, Container, run_backward, run_forward
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape

__all__ = ["Checkpointed"]

Cache = tuple[Array, np.random.Generator | None]  # the input, and the source of randomness as it was before it


@dataclass(frozen=True)
class Checkpointed(Container):
    """y = block(x). Of the forward pass only x is kept; backward runs it once more (Chen et al. 2016).

    The second run draws the same random numbers, so dropout masks are the same, and reads the same parameters and
    buffers, so the gradients are those of the block itself. n equal layers in blocks of sqrt(n) hold 2 sqrt(n) inputs
    in place of n, for about a third more time.
    """

    block: Layer

    def __post_init__(self) -> None:
        if not isinstance(self.block, Layer):
            raise ValueError(
                f"Checkpointed takes one layer; got {self.block!r}. Write Checkpointed(Sequential([...]))."
            )

    def children(self, in_shape: Shape) -> Iterator[Child]:
        yield Child("block", self.block, in_shape)

    def out_shape(self, in_shape: Shape) -> Shape:
        return self.block.out_shape(in_shape)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Cache]:
        before = copy.deepcopy(ctx.rng)
        y, _ = run_forward(self.block, p.get("block", {}), x, ctx.child("block"))
        return y, (x, before)

    def backward(self, p: Params, cache: Cache, dy: Array, g: Params, ctx: Ctx) -> Array:
        x, before = cache
        inner = ctx.child("block", ctx.dx)
        again = replace(inner, rng=copy.deepcopy(before))  # the cache stays fit for another backward pass
        _, kept = run_forward(self.block, p.get("block", {}), x, again)
        return run_backward(self.block, p.get("block", {}), kept, dy, g.get("block", {}), inner)
