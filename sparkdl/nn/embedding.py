"""Vectors for integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparkdl.nn.cost import Cost
from sparkdl.nn.initializers import RandomNormal
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape
from sparkdl.nn.window import positive
from sparkdl.ops.embedding import embed, embed_grad

__all__ = ["Embedding"]


@dataclass(frozen=True)
class Embedding(Layer):
    """y = E[x]: x (N, ...) of integers in 0..size-1 -> y (N, ..., dim); E (size, dim).

    x may come in any dtype, since a model hands its input on in that of the parameters: float32 holds integers up to
    2^24 exactly, and a larger table is refused with it. Any other number raises, negative ones too. Where
    x = `padding_idx`, y is 0 and the table gets no gradient; a recurrent or attention layer with `mask_value=0` skips
    such steps. x has no gradient: dx = 0.
    """

    size: int
    dim: int
    padding_idx: int | None = None
    init: Initializer = RandomNormal(1.0)

    def __post_init__(self) -> None:
        positive("Embedding", "size", self.size)
        positive("Embedding", "dim", self.dim)
        if self.padding_idx is not None and not 0 <= self.padding_idx < self.size:
            raise ValueError(f"Embedding(padding_idx={self.padding_idx}): must be an index in 0..{self.size - 1}.")

    def out_shape(self, in_shape: Shape) -> Shape:
        return (*in_shape, self.dim)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        return {"E": ParamSpec((self.size, self.dim), self.init)}

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        at = self._indices(x)
        y = embed(p["E"], at.reshape(-1)).reshape(*x.shape, self.dim)
        if self.padding_idx is not None:
            y[at == self.padding_idx] = 0
        return y, at

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        at, drows = cache.reshape(-1), dy.reshape(cache.size, self.dim)
        if self.padding_idx is not None:
            kept = at != self.padding_idx
            at, drows = at[kept], drows[kept]
        embed_grad(g["E"][...], at, drows)
        return np.broadcast_to(np.zeros((), dy.dtype), cache.shape)

    def cost(self, in_shape: Shape) -> Cost:
        """No operations: of the table, only the rows that are looked up move."""
        rows = math.prod(in_shape)
        return Cost(moved=rows + 2 * rows * self.dim, parameters=self.size * self.dim)

    def _indices(self, x: Array) -> Array:
        exact = x.dtype.kind in "iu" or self.size <= 2 ** (np.finfo(x.dtype).nmant + 1)
        if not exact:
            raise ValueError(
                f"Embedding(size={self.size}): {x.dtype} tells integers apart up to 2^{np.finfo(x.dtype).nmant + 1} "
                f"only. Train in float64, or hash the indices into fewer rows."
            )
        with np.errstate(invalid="ignore"):  # NaN and infinities are found below
            at = x.astype(np.intp)
        bad = np.flatnonzero(~((at == x) & (at >= 0) & (at < self.size)))
        if bad.size:
            raise ValueError(
                f"Embedding(size={self.size}) takes integers in 0..{self.size - 1}; got {x.flat[bad[0]]} "
                f"({bad.size} of {x.size} are none). Map the values first, or raise size?"
            )
        return at
