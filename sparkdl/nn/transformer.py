"""The transformer block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkdl.nn.attention import MultiHeadAttention
from sparkdl.nn.containers import Child, Container, Sequential, run_backward, run_forward
from sparkdl.nn.cost import Cost
from sparkdl.nn.dense import Dense
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape
from sparkdl.nn.layer_norm import LayerNorm
from sparkdl.nn.rectifier import GELU
from sparkdl.nn.window import check_sequence, counted, marked, positive

__all__ = ["TransformerBlock"]

STAGES = (("norm1", "attention", "dropout1"), ("norm2", "mlp", "dropout2"))


@dataclass(frozen=True)
class TransformerBlock(Container):
    """Attention and a two-layer perceptron of `hidden` units, each with a sum around it: x, y (N, T, D).

        a = x + attention(norm1(x)),   y = a + mlp(norm2(a))        with `pre_norm` (Xiong et al. 2020)
        a = norm1(x + attention(x)),   y = norm2(a + mlp(a))        without (Vaswani et al. 2017)

    `hidden` is 4 D if None; `activation` stands between the two layers of the perceptron. `dropout` acts on what
    attention and perceptron add. `causal` and `mask_value` are those of `MultiHeadAttention`; a step that does not
    count leaves the block as it came.
    """

    heads: int
    hidden: int | None = None
    dropout: float = 0.0
    pre_norm: bool = True
    causal: bool = False
    mask_value: float | None = None
    activation: Layer = GELU()

    def __post_init__(self) -> None:
        positive("TransformerBlock", "heads", self.heads)
        if self.hidden is not None:
            positive("TransformerBlock", "hidden", self.hidden)
        Dropout(self.dropout)  # checks the rate
        if not isinstance(self.activation, Layer):
            raise ValueError(f"TransformerBlock(activation={self.activation!r}): must be a layer, such as GELU().")

    def children(self, in_shape: Shape) -> Iterator[Child]:
        check_sequence("TransformerBlock", in_shape)
        for name, layer in self._parts(in_shape[1]).items():
            if layer != Dropout(0):  # which does nothing, and has nothing to tell
                yield Child(name, layer, in_shape)

    def out_shape(self, in_shape: Shape) -> Shape:
        for _, layer, shape in self.children(in_shape):
            layer.out_shape(shape)
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array | None, dict[str, Any]]]:
        check_sequence("TransformerBlock", x.shape[1:])
        parts, caches, keep = self._parts(x.shape[2]), dict[str, Any](), counted(x, self.mask_value)

        def run(name: str, x: Array) -> Array:
            y: Array
            if name == "attention":  # normalised, a step no longer shows that it does not count
                with ctx.child(name).span("forward"):
                    y, caches[name] = parts[name].attend(p[name], x, keep)
            else:
                y, caches[name] = run_forward(parts[name], p.get(name, {}), x, ctx.child(name))
            return y

        for norm, body, drop in STAGES:
            if self.pre_norm:
                x = x + run(drop, run(body, run(norm, x)))
            else:
                x = run(norm, x + run(drop, run(body, x)))
        return marked(x, keep, self.mask_value), (keep, caches)

    def backward(self, p: Params, cache: tuple[Array | None, dict[str, Any]], dy: Array, g: Params, ctx: Ctx) -> Array:
        keep, caches = cache
        parts = self._parts(dy.shape[2])

        def back(name: str, dy: Array) -> Array:
            return run_backward(parts[name], p.get(name, {}), caches[name], dy, g.get(name, {}), ctx.child(name))

        d = marked(dy, keep, 0)
        for norm, body, drop in reversed(STAGES):
            if self.pre_norm:
                d = d + back(norm, back(body, back(drop, d)))
            else:
                d = back(norm, d)
                d = d + back(body, back(drop, d))
        return d

    def own_cost(self, in_shape: Shape) -> Cost:
        n = math.prod(in_shape)
        return Cost(work=2 * n, depth=2, moved=6 * n)  # two sums

    def _parts(self, width: int) -> dict[str, Any]:
        hidden = 4 * width if self.hidden is None else self.hidden
        return {
            "norm1": LayerNorm(),
            "attention": MultiHeadAttention(self.heads, self.causal),
            "dropout1": Dropout(self.dropout),
            "norm2": LayerNorm(),
            "mlp": Sequential([Dense(hidden), self.activation, Dense(width)]),
            "dropout2": Dropout(self.dropout),
        }
