"""Recurrent layers: stacked, in one or both directions of time, with masked steps, cut or recomputed gradients."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sparkdl.nn.cells import Cell, ElmanCell, GRUCell, LSTMCell, State
from sparkdl.nn.cost import Cost
from sparkdl.nn.initializers import GlorotUniform, Orthogonal
from sparkdl.nn.layer import Array, Ctx, Initializer, Layer, Params, ParamSpec, Shape, priced
from sparkdl.nn.window import check_sequence, counted, positive

__all__ = ["GRU", "LSTM", "SimpleRNN"]


class _Piece(NamedTuple):
    """Steps [start, stop) of a stack: the states that enter it, and its cells' caches unless they are recomputed."""

    start: int
    stop: int
    states: list[State]
    caches: list[Any] | None


class _Pass(NamedTuple):
    """One stack of cells run over x (T, N, D) in one direction."""

    x: Array
    keep: Array | None
    pieces: list[_Piece]


@dataclass(frozen=True)
class _Recurrent(Layer):
    """What the recurrent layers share: everything but the cell. `LSTM` explains the options."""

    units: int
    layers: int = 1
    bidirectional: bool = False
    return_sequences: bool = False
    mask_value: float | None = None
    truncate: int | None = None
    recompute: bool = False
    bias: bool = True
    init: Initializer = GlorotUniform()
    recurrent_init: Initializer = Orthogonal()

    def __post_init__(self) -> None:
        name = type(self).__name__
        positive(name, "units", self.units)
        positive(name, "layers", self.layers)
        if self.truncate is not None:
            positive(name, "truncate", self.truncate)

    @property
    @abstractmethod
    def _cell(self) -> Cell:
        """What one layer computes in one direction."""

    def out_shape(self, in_shape: Shape) -> Shape:
        check_sequence(type(self).__name__, in_shape)
        if in_shape[0] < 1:
            raise ValueError(f"{type(self).__name__} needs sequences of at least one step; samples are {in_shape}.")
        width = self._width
        return (in_shape[0], width) if self.return_sequences else (width,)

    def specs(self, in_shape: Shape) -> dict[str, ParamSpec]:
        self.out_shape(in_shape)
        specs = {}
        for layer in range(self.layers):
            for name in self._names(layer):
                own = self._cell.specs(in_shape[1] if layer == 0 else self._width)
                specs.update({f"{name}/{key}": spec for key, spec in own.items()})
        return specs

    def cost(self, in_shape: Shape) -> Cost:
        """Steps wait for each other, layers too: forward in time layer l + 1 follows layer l step by step."""
        self.out_shape(in_shape)
        steps, total, depths = in_shape[0], Cost(), list[int]()
        for layer in range(self.layers):
            step = self._cell.cost(self._width if layer else in_shape[1])
            total = total.beside(step.times(steps * (1 + self.bidirectional)))
            depths.append(step.depth)
        depth = steps * sum(depths) if self.bidirectional else sum(depths) + (steps - 1) * max(depths)
        between = 2 * (self.layers - 1) * steps * self._width
        return priced(self, in_shape, replace(total, depth=depth, moved=between))

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, list[list[_Pass]]]:
        W = p["l0"]["W"]
        if x.ndim != 3 or x.shape[2] != len(W):
            raise ValueError(f"{type(self).__name__} expects x of shape (N, T, {len(W)}); got {x.shape}.")
        self.out_shape(x.shape[1:])
        seq = np.ascontiguousarray(x.transpose(1, 0, 2), W.dtype)
        counts = counted(seq, self.mask_value)
        keep = None if counts is None else counts[:, :, None]
        caches, last = [], []
        for group in self._groups():
            runs = [self._run(p, names, seq, keep) for names in group]
            seq = runs[0][0] if len(runs) == 1 else np.concatenate([runs[0][0], runs[1][0][::-1]], axis=2)
            last = [state for _, state, _ in runs]
            caches.append([run for _, _, run in runs])
        if not self.return_sequences:
            return np.concatenate(last, axis=1), caches
        if keep is not None:
            seq = np.where(keep, seq, seq.dtype.type(self.mask_value))
        return seq.transpose(1, 0, 2), caches

    def backward(self, p: Params, cache: list[list[_Pass]], dy: Array, g: Params, ctx: Ctx) -> Array:
        d = dy.transpose(1, 0, 2) if self.return_sequences else None
        for i, (group, runs) in reversed(list(enumerate(zip(self._groups(), cache, strict=True)))):
            dxs, dx = [], ctx.dx or i > 0
            for k, (names, run) in enumerate(zip(group, runs, strict=True)):
                part = slice(k * self.units, (k + 1) * self.units)
                dlast = dy[:, part] if d is None and i == len(cache) - 1 else None
                dseq = None if d is None else d[:: -1 if k else 1, :, part]
                dxs.append(self._run_back(p, names, run, dseq, dlast, g, dx))
            if not dx:
                return dy
            d = dxs[0] if len(dxs) == 1 else dxs[0] + dxs[1]
        assert d is not None
        return d.transpose(1, 0, 2)

    @property
    def _width(self) -> int:
        return (2 if self.bidirectional else 1) * self.units

    def _names(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"] if self.bidirectional else [f"l{layer}"]

    def _groups(self) -> list[list[list[str]]]:
        """Groups run one after the other; a group is a stack of cells by name for each direction.

        Forward in time all layers are one stack, so that a recomputed piece starts from its states alone. A layer in
        both directions needs all of time from the one below.
        """
        if not self.bidirectional:
            return [[[f"l{i}" for i in range(self.layers)]]]
        return [[[name] for name in self._names(i)] for i in range(self.layers)]

    def _run(self, p: Params, names: Sequence[str], x: Array, keep: Array | None) -> tuple[Array, Array, _Pass]:
        """The stack's outputs (T, N, H), in its own direction of time; its last state's h; what backward needs."""
        if names[0].endswith("_reverse"):
            x, keep = x[::-1].copy(), None if keep is None else keep[::-1]
        states = [self._cell.rest(x.shape[1], x.dtype) for _ in names]
        ys, pieces = [], []
        for start, stop in self._bounds(len(x)):
            entering, valid = states, None if keep is None else keep[start:stop]
            y, states, caches = self._forward(p, names, x[start:stop], states, valid)
            ys.append(y)
            pieces.append(_Piece(start, stop, entering, None if self.recompute else caches))
        return ys[0] if len(ys) == 1 else np.concatenate(ys), states[-1][0], _Pass(x, keep, pieces)

    def _run_back(
        self, p: Params, names: Sequence[str], run: _Pass, dy: Array | None, dlast: Array | None, g: Params, dx: bool
    ) -> Array:
        """dx (T, N, D) in x's order, of dy (T, N, H) in the stack's direction and of its last h; None for zeros.

        Without `dx` anything may come in its place.
        """
        x, keep, pieces = run
        dxs, cell = [], self._cell
        dstates = [cell.rest(x.shape[1], x.dtype) for _ in names]
        if dlast is not None:
            dstates[-1] = (dlast, *dstates[-1][1:])
        if dy is None:
            dy = np.broadcast_to(np.zeros((), x.dtype), (*x.shape[:2], self.units))
        for start, stop, states, caches in reversed(pieces):
            valid = None if keep is None else keep[start:stop]
            if caches is None:
                caches = self._forward(p, names, x[start:stop], states, valid)[2]
            d = dy[start:stop]
            for i in reversed(range(len(names))):
                shown, name = d if valid is None else d * valid, names[i]
                d, dstates[i] = cell.backward(p[name], caches[i], shown, dstates[i], valid, g[name], dx or i > 0)
            dxs.append(d)
            if self.truncate and start % self.truncate == 0:
                dstates = [cell.rest(x.shape[1], x.dtype) for _ in names]
        whole = dxs[0] if len(dxs) == 1 else np.concatenate(dxs[::-1])
        return whole[::-1] if names[0].endswith("_reverse") else whole

    def _forward(
        self, p: Params, names: Sequence[str], x: Array, states: list[State], keep: Array | None
    ) -> tuple[Array, list[State], list[Any]]:
        """Some steps of a stack: outputs, the states after them, the cells' caches."""
        caches, after = [], []
        for name, state in zip(names, states, strict=True):
            h, end, cache = self._cell.forward(p[name], x, state, keep)
            x = h if keep is None else h * keep
            after.append(end)
            caches.append(cache)
        return x, after, caches

    def _bounds(self, steps: int) -> list[tuple[int, int]]:
        """Where the steps are cut: wherever gradients are, and into pieces of about sqrt(T) if they are recomputed."""
        lengths = [self.truncate or steps, math.ceil(math.sqrt(steps)) if self.recompute else steps]
        cuts = sorted({0, steps} | {at for length in lengths for at in range(0, steps, length)})
        return list(itertools.pairwise(cuts))


@dataclass(frozen=True)
class SimpleRNN(_Recurrent):
    """The recurrent layer of Elman (1990): h_t = tanh(x_t W + h_{t-1} U + b); x (N, T, D) -> y (N, H) or (N, T, H).

    W (D, H), U (H, H), b (H,). The options are those of `LSTM`.
    """

    @property
    def _cell(self) -> Cell:
        return ElmanCell(self.units, self.bias, self.init, self.recurrent_init)


@dataclass(frozen=True)
class GRU(_Recurrent):
    """The gated recurrent unit (Cho et al. 2014): x (N, T, D) -> y (N, H) or (N, T, H), see `LSTM` for the options.

        r, z = sigmoid(x_t W + h_{t-1} U + b),   n = tanh(x_t W + b + r (h_{t-1} U + bU)),   h_t = (1 - z) n + z h_{t-1}

    each with its slice of W (D, 3 H), U (H, 3 H), b (3 H,) in the order r, z, n; bU (H,). The reset acts after the
    product with U, as in cuDNN, PyTorch and Keras.
    """

    @property
    def _cell(self) -> Cell:
        return GRUCell(self.units, self.bias, self.init, self.recurrent_init)


@dataclass(frozen=True)
class LSTM(_Recurrent):
    """The long short-term memory (Hochreiter & Schmidhuber 1997): x (N, T, D) -> y (N, H) or (N, T, H).

        o, i, f = sigmoid(x_t W + h_{t-1} U + b),   g = tanh(x_t W + h_{t-1} U + b)
        c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)

    each with its slice of W (D, 4 H), U (H, 4 H), b (4 H,) in the order o, i, f, g; H = `units`. b starts at 1 for f,
    else at 0. All states start at 0.

    y is the output of the last step, or of all with `return_sequences`. `bidirectional` puts the outputs of a second
    pass, backward in time, beside it: y has 2 H entries, and the backward pass ends at the first step. `layers` are
    stacked, each over the outputs of the one below. A step where all entries of x equal `mask_value` does not count:
    the state passes over it, its output is the mark again, and "the last step" is the last that counts.

    Gradients run through all of time, unless `truncate` cuts them every so many steps from the start of each
    direction. With `recompute` only the states at every sqrt(T)-th step are kept, and what lies between is computed
    again in the backward pass: about a third more time for memory that grows with sqrt(T), besides the sequences that
    go in and come out (of each layer, if bidirectional) (Chen et al. 2016).

    Parameters of layer l are `l{l}/W`, `l{l}/U`, `l{l}/b`, those of its backward pass `l{l}_reverse/...`; biases are
    absent unless `bias`. `init` draws W, `recurrent_init` U, gate by gate.
    """

    @property
    def _cell(self) -> Cell:
        return LSTMCell(self.units, self.bias, self.init, self.recurrent_init)
