"""What one recurrent layer computes over some steps of time: the parts that SimpleRNN, GRU and LSTM do not share.

A cell holds no arrays. Sequences are x (T, N, D) -> h (T, N, H), time first; a state is a tuple of arrays (N, H).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.nn.cost import Cost, sums_of_products
from sparkdl.nn.drawing import SideBySide
from sparkdl.nn.gradients import add_product
from sparkdl.nn.initializers import Zeros
from sparkdl.nn.layer import Array, Initializer, Params, ParamSpec, Shape
from sparkdl.ops.matmul import add_matmul, matmul
from sparkdl.ops.recurrent import gru, gru_grad, lstm, lstm_grad, rnn, rnn_grad

__all__ = ["Cell", "ElmanCell", "GRUCell", "LSTMCell", "State"]

State = tuple[Array, ...]


@dataclass(frozen=True)
class Cell(ABC):
    """One layer in one direction: W (D, K H) for the input, U (H, K H) for the state, b (K H,) unless `bias` is off.

    K gates stand side by side; each is drawn by the initializers as a matrix of its own.
    """

    units: int
    bias: bool
    init: Initializer
    recurrent_init: Initializer

    gates = 1
    states = 1

    def specs(self, width: int) -> dict[str, ParamSpec]:
        """The parameters for inputs of `width` entries."""
        k, h = self.gates, self.units
        specs = {
            "W": ParamSpec((width, k * h), SideBySide(self.init, k)),
            "U": ParamSpec((h, k * h), SideBySide(self.recurrent_init, k)),
        }
        return specs | (self.biases() if self.bias else {})

    def biases(self) -> dict[str, ParamSpec]:
        """The parameters that `bias` adds."""
        return {"b": ParamSpec((self.gates * self.units,), Zeros())}

    @abstractmethod
    def cost(self, width: int) -> Cost:
        """Operations of one step of one sample with an input of `width` entries; no memory counted."""

    def rest(self, rows: int, dtype: Any) -> State:
        """The state before the first step: zeros."""
        return tuple(np.zeros((rows, self.units), dtype) for _ in range(self.states))

    @abstractmethod
    def forward(self, p: Params, x: Array, state: State, keep: Array | None) -> tuple[Array, State, Any]:
        """(h (T, N, H), the state after the last step, cache)."""

    @abstractmethod
    def backward(
        self, p: Params, cache: Any, dy: Array, dstate: State, keep: Array | None, g: Params, dx: bool = True
    ) -> tuple[Array, State]:
        """(dx (T, N, D), gradient of the first state) of dy (T, N, H) and of the last state's; adds into g.

        Without `dx` anything may come in its place.
        """


@dataclass(frozen=True)
class ElmanCell(Cell):
    """h_t = tanh(x_t W + h_{t-1} U + b)."""

    def cost(self, width: int) -> Cost:
        return sums_of_products(self.units, width + self.units, self.bias).then(Cost(work=self.units, depth=1))

    def forward(self, p: Params, x: Array, state: State, keep: Array | None) -> tuple[Array, State, Any]:
        h = rnn(_project(x, p), p["U"], state[0], keep)
        return h[1:], _last(h), (x, h)

    def backward(
        self, p: Params, cache: Any, dy: Array, dstate: State, keep: Array | None, g: Params, dx: bool = True
    ) -> tuple[Array, State]:
        x, h = cache
        dG, dh = rnn_grad(h, p["U"], dy, dstate[0], keep)
        add_product(g["U"], _flat(h[:-1]).T, _flat(dG))
        return _project_grad(x, dG, p, g, dx), (dh,)


@dataclass(frozen=True)
class LSTMCell(Cell):
    """The long short-term memory; gates o, i, f, g."""

    gates = 4
    states = 2

    def cost(self, width: int) -> Cost:
        gates = sums_of_products(4 * self.units, width + self.units, self.bias)
        return gates.then(Cost(work=9 * self.units, depth=5))  # 4 gates; f c + i g, o tanh c

    def biases(self) -> dict[str, ParamSpec]:
        return {"b": ParamSpec((4 * self.units,), _forget_nothing)}

    def forward(self, p: Params, x: Array, state: State, keep: Array | None) -> tuple[Array, State, Any]:
        G = _project(x, p)
        h, c, squashed = lstm(G, p["U"], state[0], state[1], keep)
        return h[1:], _last(h, c), (x, G, h, c, squashed)

    def backward(
        self, p: Params, cache: Any, dy: Array, dstate: State, keep: Array | None, g: Params, dx: bool = True
    ) -> tuple[Array, State]:
        x, gates, h, c, squashed = cache
        dG, dh, dc = lstm_grad(gates, p["U"], c, squashed, dy, dstate[0], dstate[1], keep)
        add_product(g["U"], _flat(h[:-1]).T, _flat(dG))
        return _project_grad(x, dG, p, g, dx), (dh, dc)


@dataclass(frozen=True)
class GRUCell(Cell):
    """The gated recurrent unit; gates r, z, n. `bU` (H,) is the bias within the reset."""

    gates = 3

    def cost(self, width: int) -> Cost:
        h = self.units
        of_input, of_state = (sums_of_products(h, n, self.bias) for n in (width, h))
        gates = sums_of_products(2 * h, width + h, self.bias).beside(of_input).beside(of_state)
        return gates.then(Cost(work=8 * h, depth=7))  # r, z, n; r q and a sum; n + z (h - n)

    def biases(self) -> dict[str, ParamSpec]:
        return {"b": ParamSpec((3 * self.units,), Zeros()), "bU": ParamSpec((self.units,), Zeros())}

    def forward(self, p: Params, x: Array, state: State, keep: Array | None) -> tuple[Array, State, Any]:
        G = _project(x, p)
        h, q = gru(G, p["U"], p.get("bU"), state[0], keep)
        return h[1:], _last(h), (x, G, h, q)

    def backward(
        self, p: Params, cache: Any, dy: Array, dstate: State, keep: Array | None, g: Params, dx: bool = True
    ) -> tuple[Array, State]:
        x, gates, h, q = cache
        dG, dq, dh = gru_grad(gates, p["U"], h, q, dy, dstate[0], keep)
        before, after = _flat(h[:-1]).T, 2 * self.units
        add_matmul(before, _flat(dG)[:, :after], g["U"][:, :after])
        add_matmul(before, _flat(dq), g["U"][:, after:])
        if self.bias:
            g["bU"][...] += _flat(dq).sum(axis=0)
        return _project_grad(x, dG, p, g, dx), (dh,)


def _forget_nothing(rng: np.random.Generator, shape: Shape) -> Array:
    """Zeros, but ones for the forget gate: the memory starts open (Jozefowicz et al. 2015)."""
    b = np.zeros((4, shape[0] // 4))
    b[2] = 1
    return b.reshape(shape)


def _flat(a: Array) -> Array:
    return a.reshape(a.shape[0] * a.shape[1], a.shape[2])


def _last(*states: Array) -> State:
    """The states after the last step: copies, which do not keep those of all steps alive."""
    return tuple(a[-1].copy() for a in states)


def _project(x: Array, p: Params) -> Array:
    """x W + b for all steps in one product."""
    G = matmul(_flat(x), p["W"], bias=p.get("b"))
    return G.reshape(*x.shape[:2], G.shape[1])


def _project_grad(x: Array, dG: Array, p: Params, g: Params, wanted: bool) -> Array:
    """dx if it is wanted; adds the gradients of W and b into g."""
    rows = _flat(dG)
    add_product(g["W"], _flat(x).T, rows)
    if "b" in p:
        g["b"][...] += rows.sum(axis=0)
    if not wanted:
        return dG
    return matmul(rows, p["W"].T).reshape(x.shape)
