"""Normalisation of each sample by itself: the same in training and evaluation, without statistics to keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparkdl.nn.cost import Cost, tree
from sparkdl.nn.initializers import Ones, Zeros
from sparkdl.nn.layer import Array, Ctx, Layer, Params, ParamSpec, Shape, priced
from sparkdl.nn.window import positive
from sparkdl.ops.layer_norm import group_norm, group_norm_grad, layer_norm, layer_norm_grad

__all__ = ["GroupNorm", "LayerNorm"]


class _Cache(NamedTuple):
    x: Array  # (R, D) or (N, P, C)
    mean: Array
    inv: Array  # 1 / sqrt(var + eps)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """y = gamma (x - mean) / sqrt(var + eps) + beta over the last axis; x, y (N, ..., D) (Ba et al. 2016).

    mean and (biased) variance are those of each row (D,) by itself. gamma, beta (D,), absent unless `affine`. To
    normalise an image or sequence as a whole, take GroupNorm(1).
    """

    eps: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        _check_eps(self)

    def out_shape(self, in_shape: Shape) -> Shape:
        return _with_channels(self, in_shape)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        return _affine(self, in_shape)

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, _Cache]:
        gamma, beta = _scale(self, p, x)
        rows = np.ascontiguousarray(x, gamma.dtype).reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y, mean, inv = layer_norm(rows, gamma, beta, self.eps)
        return y.reshape(x.shape), _Cache(rows, mean, inv)

    def backward(self, p: Params, cache: _Cache, dy: Array, g: Params, ctx: Ctx) -> Array:
        x, mean, inv = cache
        dx, dgamma, dbeta = layer_norm_grad(x, dy.reshape(x.shape), _scale(self, p, x)[0], mean, inv)
        _add(self, g, dgamma, dbeta)
        return dx.reshape(dy.shape)

    def cost(self, in_shape: Shape) -> Cost:
        width = self.out_shape(in_shape)[-1]
        return _cost(self, in_shape, math.prod(in_shape[:-1]), width)


@dataclass(frozen=True)
class GroupNorm(Layer):
    """y = gamma (x - mean) / sqrt(var + eps) + beta; x, y (N, ..., C), C a multiple of `groups` (Wu & He 2018).

    mean and (biased) variance are taken, for each sample, over all positions and the channels of one of `groups` equal
    slices: GroupNorm(1) normalises the sample as a whole, groups = C each channel by itself (instance normalisation).
    gamma, beta (C,), absent unless `affine`.
    """

    groups: int = 32
    eps: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        positive("GroupNorm", "groups", self.groups)
        _check_eps(self)

    def out_shape(self, in_shape: Shape) -> Shape:
        if _with_channels(self, in_shape)[-1] % self.groups:
            raise ValueError(
                f"GroupNorm(groups={self.groups}): the channels must be a multiple of groups; samples are "
                f"{tuple(in_shape)}."
            )
        return in_shape

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        return _affine(self, self.out_shape(in_shape))

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, _Cache]:
        self.out_shape(x.shape[1:])
        gamma, beta = _scale(self, p, x)
        pixels = np.ascontiguousarray(x, gamma.dtype).reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])
        y, mean, inv = group_norm(pixels, self.groups, gamma, beta, self.eps)
        return y.reshape(x.shape), _Cache(pixels, mean, inv)

    def backward(self, p: Params, cache: _Cache, dy: Array, g: Params, ctx: Ctx) -> Array:
        x, mean, inv = cache
        gamma, _ = _scale(self, p, x)
        dx, dgamma, dbeta = group_norm_grad(x, dy.reshape(x.shape), self.groups, gamma, mean, inv)
        _add(self, g, dgamma, dbeta)
        return dx.reshape(dy.shape)

    def cost(self, in_shape: Shape) -> Cost:
        return _cost(self, in_shape, self.groups, math.prod(self.out_shape(in_shape)) // self.groups)


def _cost(layer: LayerNorm | GroupNorm, in_shape: Shape, rows: int, n: int) -> Cost:
    """`rows` times n numbers: mean, x - mean, mean of its squares, sqrt(var + eps), the quotient; gamma and beta."""
    work, depth = rows * (5 * n + 2), 2 * tree(n) + 7
    return priced(layer, in_shape, Cost(work=work + 2 * rows * n * layer.affine, depth=depth + 2 * layer.affine))


def _check_eps(layer: LayerNorm | GroupNorm) -> None:
    if not 0 < layer.eps < math.inf:
        raise ValueError(f"{type(layer).__name__}(eps={layer.eps}): eps must be finite and above 0.")


def _with_channels(layer: Layer, in_shape: Shape) -> Shape:
    if not in_shape:
        raise ValueError(f"{type(layer).__name__} expects samples of shape (..., C); got (). Add a channel axis?")
    return in_shape


def _affine(layer: LayerNorm | GroupNorm, in_shape: Shape) -> dict[str, ParamSpec]:
    c = _with_channels(layer, in_shape)[-1:]
    return {"gamma": ParamSpec(c, Ones()), "beta": ParamSpec(c, Zeros())} if layer.affine else {}


def _scale(layer: LayerNorm | GroupNorm, p: Params, x: Array) -> tuple[Array, Array]:
    """gamma, beta for x (N, ..., C); ones and zeros in its dtype where the layer has none."""
    if not layer.affine:
        dtype = np.result_type(x.dtype, np.float32)  # integers are normalised too
        return np.ones(x.shape[-1], dtype), np.zeros(x.shape[-1], dtype)
    if x.ndim < 2 or p["gamma"].shape != x.shape[-1:]:
        raise ValueError(f"{type(layer).__name__} expects x of shape (N, ..., {len(p['gamma'])}); got {x.shape}.")
    return p["gamma"], p["beta"]


def _add(layer: LayerNorm | GroupNorm, g: Params, dgamma: Array, dbeta: Array) -> None:
    """Add the gradients into g, in place."""
    if layer.affine:
        g["gamma"][...] += dgamma
        g["beta"][...] += dbeta
