"""Normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparkdl.nn.cost import Cost
from sparkdl.nn.initializers import Ones, Zeros
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.ops.activation import relu_grad
from sparkdl.ops.norm import batch_norm, batch_norm_grad, batch_norm_grad_sums, mean_var, moment_sums

__all__ = ["BatchNorm"]


class _Cache(NamedTuple):
    x: Array
    mean: Array
    inv: Array  # 1 / sqrt(var + eps)
    running: tuple[Array, Array]  # the next mean and var
    n: int  # values of a channel in the whole minibatch


@dataclass(frozen=True)
class BatchNorm(Layer):
    """y = gamma (x - mean) / sqrt(var + eps) + beta per channel; x, y (N, ..., C) (Ioffe & Szegedy 2015).

    Training takes mean and (biased) variance over the n values that the batch has of a channel, and moves the buffers:

        running <- momentum running + (1 - momentum) batch

    where `momentum` is the share that is *kept* (PyTorch's momentum is 1 minus ours). The running variance takes the
    unbiased one, n / (n - 1) times the biased; a single value has none and leaves it as it is. Evaluation takes the
    running statistics. gamma, beta, mean, var (C,); gamma, drawn by `init`, and beta are absent unless `affine`. Where
    workers meet within the pass (ctx.sync), the batch is that of all workers.
    """

    momentum: float = 0.9
    eps: float = 1e-5
    affine: bool = True
    init: Initializer = Ones()

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"BatchNorm(momentum={self.momentum}): the share of the old average is in [0, 1].")
        if not 0 < self.eps < np.inf:
            raise ValueError(f"BatchNorm(eps={self.eps}): eps must be finite and above 0.")

    def out_shape(self, in_shape: Shape) -> Shape:
        if not in_shape:
            raise ValueError("BatchNorm expects samples of shape (..., C); got (). Add a channel axis?")
        return in_shape

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        c = self.out_shape(in_shape)[-1:]
        affine = {"gamma": ParamSpec(c, self.init), "beta": ParamSpec(c, Zeros())} if self.affine else {}
        return affine | {"mean": ParamSpec(c, Zeros(), trainable=False), "var": ParamSpec(c, Ones(), trainable=False)}

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, _Cache]:
        return self.normalise(p, x, ctx)

    def normalise(self, p: Params, x: Array, ctx: Ctx, relu: bool = False) -> tuple[Array, _Cache]:
        """`forward`, followed by a ReLU if so asked."""
        running = p["mean"], p["var"]
        if x.ndim < 2 or x.shape[-1:] != running[0].shape:
            raise ValueError(f"BatchNorm expects x of shape (N, ..., {len(p['mean'])}); got {x.shape}.")
        x = np.ascontiguousarray(x, running[0].dtype)
        mean, var = running
        n = x.size // x.shape[-1]
        if ctx.train:
            sums = moment_sums(x)
            if ctx.sync is not None:
                sums, n = _over_workers(sums, n, ctx.sync)
            mean, var = mean_var(sums, n)
            running = self._moved(running, mean, var, n)
        inv = 1 / np.sqrt(var + self.eps)
        gamma, beta = (p["gamma"], p["beta"]) if self.affine else (1, np.zeros_like(mean))
        return batch_norm(x, mean, gamma * inv, beta, relu), _Cache(x, mean, inv, running, n)

    def backward(self, p: Params, cache: _Cache, dy: Array, g: Params, ctx: Ctx) -> Array:
        return self.denormalise(p, cache, dy, g, ctx)

    def denormalise(self, p: Params, cache: _Cache, dy: Array, g: Params, ctx: Ctx, relu: bool = False) -> Array:
        """`backward`, of the ReLU that follows too if so asked."""
        x, mean, inv, running, n = cache
        for name, value in zip(("mean", "var"), running, strict=True):
            g[name][...] += len(x) * value
        dy = np.ascontiguousarray(dy)
        scale, shift = (p["gamma"] * inv, p["beta"]) if self.affine else (inv, np.zeros_like(inv))
        gate = (scale, shift) if relu else None
        sums = batch_norm_grad_sums(x, dy, mean, gate)
        if self.affine:
            g["beta"][...] += sums[0]
            g["gamma"][...] += sums[1] * inv
        if not ctx.dx:
            return dy
        if not ctx.train:
            dy = relu_grad(batch_norm(x, mean, scale, shift), dy) if relu else dy
            return batch_norm(dy, np.zeros_like(mean), scale, np.zeros_like(mean))
        if ctx.sync is not None:
            ctx.sync(sums.reshape(-1))  # a view: messages have one axis
        return batch_norm_grad(x, dy, mean, inv, scale, sums, n, gate)

    def cost(self, in_shape: Shape) -> Cost:
        """In evaluation a factor and an addend for each channel, which all samples share."""
        return priced(self, in_shape, Cost(work=2 * math.prod(self.out_shape(in_shape)), depth=2))

    def _moved(self, running: tuple[Array, Array], mean: Array, var: Array, n: int) -> tuple[Array, Array]:
        """The running statistics after a batch of n values a channel."""
        kept, new = self.momentum, 1 - self.momentum
        if n == 0:
            return running
        old_mean, old_var = running
        moved_var = old_var if n == 1 else kept * old_var + new * (n / (n - 1)) * var
        return kept * old_mean + new * mean, moved_var


def _over_workers(sums: Array, n: int, sync: Callable[[Array], None]) -> tuple[Array, int]:
    """Moment sums (2, C) and count of the whole minibatch, in one message."""
    packed = np.append(sums, float(n))
    sync(packed)
    return packed[:-1].reshape(sums.shape), int(packed[-1])
