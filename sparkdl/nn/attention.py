"""Attention, positions, and the transformer block. Sequences are x (N, T, D).

Where a layer has a `mask_value`, a step all of whose entries equal it does not count: nothing attends to it, it gets no
gradient, and it stays what it is, so that the next layer can skip it too.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparkdl.nn.cost import Cost, sums_of_products, tree
from sparkdl.nn.drawing import SideBySide
from sparkdl.nn.gradients import add_product
from sparkdl.nn.initializers import GlorotUniform, RandomNormal, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.nn.window import check_sequence, counted, marked, positive
from sparkdl.ops.attention import attention, attention_grad
from sparkdl.ops.matmul import matmul

__all__ = ["MultiHeadAttention", "PositionalEncoding", "sinusoids"]


class _Cache(NamedTuple):
    x: Array  # (N T, D)
    qkv: Array  # (3, N, h, T, d), a view of (N, T, 3, h, d)
    P: Array  # (N, h, T, T)
    y: Array  # the heads' outputs side by side (N T, D)
    keep: Array | None


@dataclass(frozen=True)
class MultiHeadAttention(Layer):
    """Self-attention of `heads` heads (Vaswani et al. 2017): x (N, T, D) -> y (N, T, D), D a multiple of heads.

        q, k, v = the thirds of x W + b,   P = softmax(q k^T / sqrt(D / heads)) for each head,   y = (P v) Wo + bo

    W (D, 3 D), b (3 D,), Wo (D, D), bo (D,); biases are absent unless `bias`. With `causal`, step t attends to steps
    0..t only. Steps that equal `mask_value` do not count.
    """

    heads: int
    causal: bool = False
    mask_value: float | None = None
    bias: bool = True
    init: Initializer = GlorotUniform()

    def __post_init__(self) -> None:
        positive("MultiHeadAttention", "heads", self.heads)

    def out_shape(self, in_shape: Shape) -> Shape:
        check_sequence("MultiHeadAttention", in_shape)
        if in_shape[1] % self.heads or in_shape[1] < 1:
            raise ValueError(
                f"MultiHeadAttention(heads={self.heads}): the width D must be a multiple of heads; samples are "
                f"{tuple(in_shape)}."
            )
        return in_shape

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        d = self.out_shape(in_shape)[1]
        specs = {"W": ParamSpec((d, 3 * d), SideBySide(self.init, 3)), "Wo": ParamSpec((d, d), self.init)}
        if self.bias:
            specs |= {"b": ParamSpec((3 * d,), Zeros()), "bo": ParamSpec((d,), Zeros())}
        return specs

    def cost(self, in_shape: Shape) -> Cost:
        """Projections, scores and their factor, softmax, sums of values, the last projection; no step is left out."""
        t, d = self.out_shape(in_shape)
        rows = self.heads * t
        scores = sums_of_products(rows * t, d // self.heads, bias=False).then(Cost(work=rows * t, depth=1))
        softmax = Cost(work=rows * (5 * t - 2), depth=2 * tree(t) + 3)
        values = sums_of_products(t * d, t, bias=False)
        inner = scores.then(softmax).then(values)
        outer = sums_of_products(3 * t * d, d, self.bias).then(inner).then(sums_of_products(t * d, d, self.bias))
        between = 2 * 4 * t * d + 4 * rows * t  # q, k, v and y, scores and shares, written and read
        return priced(self, in_shape, outer.then(Cost(moved=between)))

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, _Cache]:
        keep = counted(x, self.mask_value)
        y, cache = self.attend(p, x, keep)
        return marked(y, keep, self.mask_value), cache

    def attend(self, p: Params, x: Array, keep: Array | None) -> tuple[Array, _Cache]:
        """`forward`, where the steps that count, (N, T) or None for all, are known from elsewhere."""
        if x.ndim != 3 or x.shape[2] != len(p["Wo"]):
            raise ValueError(f"MultiHeadAttention expects x of shape (N, T, {len(p['Wo'])}); got {x.shape}.")
        n, t, d = x.shape
        rows = np.ascontiguousarray(x, p["W"].dtype).reshape(n * t, d)
        qkv = self._heads(matmul(rows, p["W"], bias=p.get("b")), x.shape)
        joined = np.empty((n * t, d), rows.dtype)
        P = attention(qkv[0], qkv[1], qkv[2], keep, self.causal, self._heads(joined, x.shape)[0])
        y = matmul(joined, p["Wo"], bias=p.get("bo"))
        return y.reshape(x.shape), _Cache(rows, qkv, P, joined, keep)

    def backward(self, p: Params, cache: _Cache, dy: Array, g: Params, ctx: Ctx) -> Array:
        x, qkv, P, joined, keep = cache
        n, t, d = dy.shape
        drows = marked(dy, keep, 0).reshape(n * t, d)
        add_product(g["Wo"], joined.T, drows)
        dqkv = np.empty((n * t, 3 * d), x.dtype)
        dheads, (dq, dk, dv) = self._heads(matmul(drows, p["Wo"].T), dy.shape)[0], self._heads(dqkv, dy.shape)
        attention_grad(qkv[0], qkv[1], qkv[2], P, dheads, dq, dk, dv)
        add_product(g["W"], x.T, dqkv)
        if self.bias:
            g["bo"][...] += drows.sum(axis=0)
            g["b"][...] += dqkv.sum(axis=0)
        if not ctx.dx:
            return dy
        return matmul(dqkv, p["W"].T).reshape(dy.shape)

    def _heads(self, rows: Array, shape: Shape) -> Array:
        """(N T, K D) -> (K, N, h, T, D / h), a view; shape = (N, T, D)."""
        n, t, d = shape
        return rows.reshape(n, t, rows.shape[1] // d, self.heads, d // self.heads).transpose(2, 0, 3, 1, 4)


@dataclass(frozen=True)
class PositionalEncoding(Layer):
    """y_t = x_t + P_t: where in the sequence a step stands; x, y (N, T, D).

    P[t, 2i] = sin(t / 10000^(2i / D)), P[t, 2i + 1] = cos of the same (Vaswani et al. 2017), or, if `learned`, a
    parameter P (T, D) drawn by `init`, for sequences of this one length. Steps that equal `mask_value` are left alone.
    """

    learned: bool = False
    mask_value: float | None = None
    init: Initializer = RandomNormal(0.02)

    def out_shape(self, in_shape: Shape) -> Shape:
        check_sequence("PositionalEncoding", in_shape)
        return in_shape

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        return {"P": ParamSpec(self.out_shape(in_shape), self.init)} if self.learned else {}

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array | None]:
        check_sequence("PositionalEncoding", x.shape[1:])
        P = p["P"] if self.learned else sinusoids(x.shape[1], x.shape[2]).astype(x.dtype)
        if P.shape != x.shape[1:]:
            raise ValueError(f"PositionalEncoding learned positions for {P.shape}; got x of shape {x.shape}.")
        keep = counted(x, self.mask_value)
        return marked(x + P, keep, self.mask_value), keep

    def backward(self, p: Params, cache: Array | None, dy: Array, g: Params, ctx: Ctx) -> Array:
        dx = marked(dy, cache, 0)
        if self.learned:
            g["P"][...] += dx.sum(axis=0)
        return dx


@functools.lru_cache(maxsize=8)
def sinusoids(steps: int, width: int) -> Array:
    """P (T, D) of `PositionalEncoding`."""
    angle = np.arange(steps)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    P = np.empty((steps, width))
    P[:, ::2], P[:, 1::2] = np.sin(angle), np.cos(angle[:, : width // 2])
    P.flags.writeable = False
    return P
