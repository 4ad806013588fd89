"""Relatives of ReLU, and activations of one formula each. None has parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkdl.nn.layer import Array, Ctx, Layer, Params, Shape
from sparkdl.ops import activation as act
from sparkdl.ops.gelu import gelu, gelu_grad, gelu_tanh, gelu_tanh_grad

__all__ = ["ELU", "GELU", "Arctan", "Arctanh", "LeakyReLU", "Log", "LogSigmoid", "SiLU", "Softplus"]


@dataclass(frozen=True)
class LeakyReLU(Layer):
    """y = x where x > 0, else slope x (Maas et al. 2013). x, y (N, ...). The derivative at 0 is `slope`."""

    slope: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.slope < math.inf:
            raise ValueError(f"LeakyReLU(slope={self.slope}): the slope must be finite and at least 0.")

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.leaky_relu(x, self.slope)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.leaky_relu_grad(cache, dy, self.slope)


@dataclass(frozen=True)
class ELU(Layer):
    """y = x where x > 0, else alpha (e^x - 1) (Clevert et al. 2016). x, y (N, ...)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"ELU(alpha={self.alpha}): alpha must be finite and at least 0.")

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.elu(x, self.alpha)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.elu_grad(cache, dy, self.alpha)


@dataclass(frozen=True)
class GELU(Layer):
    """y = x P(Z <= x), Z standard normal (Hendrycks & Gimpel 2016). x, y (N, ...).

    With `tanh` the probability is approximated by (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, which is cheaper
    and within 5e-4.
    """

    tanh: bool = False

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array, Array]]:
        y, share = (gelu_tanh if self.tanh else gelu)(x)
        return y, (x, share)

    def backward(self, p: Params, cache: tuple[Array, Array], dy: Array, g: Params, ctx: Ctx) -> Array:
        return (gelu_tanh_grad if self.tanh else gelu_grad)(*cache, dy)


@dataclass(frozen=True)
class SiLU(Layer):
    """y = x / (1 + e^-x), also called swish (Elfwing et al. 2018). x, y (N, ...)."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, tuple[Array, Array]]:
        y, s = act.silu(x)
        return y, (x, s)

    def backward(self, p: Params, cache: tuple[Array, Array], dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.silu_grad(*cache, dy)


@dataclass(frozen=True)
class Softplus(Layer):
    """y = log(1 + e^x), without overflow. x, y (N, ...)."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.log1pexp(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.softplus_grad(cache, dy)


@dataclass(frozen=True)
class LogSigmoid(Layer):
    """y = log(1 / (1 + e^-x)), without overflow. x, y (N, ...)."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        y = act.log_sigmoid(x)
        return y, y

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.log_sigmoid_grad(cache, dy)


@dataclass(frozen=True)
class Log(Layer):
    """y = log x. x, y (N, ...); x > 0, or y is -inf or NaN. For any x there is `LogSigmoid`."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        return act.log(x), x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.log_grad(cache, dy)


@dataclass(frozen=True)
class Arctan(Layer):
    """y = arctan x. x, y (N, ...)."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        return act.arctan(x), x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.arctan_grad(cache, dy)


@dataclass(frozen=True)
class Arctanh(Layer):
    """y = arctanh x, the inverse of tanh. x, y (N, ...); |x| < 1, or y is infinite or NaN. For any x: `Arctan`."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, Array]:
        return act.arctanh(x), x

    def backward(self, p: Params, cache: Array, dy: Array, g: Params, ctx: Ctx) -> Array:
        return act.arctanh_grad(cache, dy)
