"""Recurrences over time and their gradients (back-propagation through time).

Time comes first: what belongs to the steps is G (T, N, K H), the input's part x_t W + b of K gates' pre-activations.
States are kept with the first one in front, h, c (T + 1, N, H). U (H, K H) carries the state over; gates stand side by
side. `keep` (T, N, 1), or None for all, says which steps count: over the others the state passes unchanged.

Only what depends on the step before is computed step by step, one product with U and few element-wise operations in
memory that is reused; the products with the input and with the gradients of U and W are left to one call each over all
steps (the caller's).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import twin
from sparkdl.ops.matmul import add_matmul, matmul

__all__ = [
    "gru",
    "gru_grad",
    "gru_step",
    "gru_step_grad",
    "lstm",
    "lstm_grad",
    "lstm_step",
    "lstm_step_grad",
    "rnn",
    "rnn_grad",
]

Array = np.ndarray[Any, np.dtype[Any]]


def rnn(G: Array, U: Array, h0: Array, keep: Array | None) -> Array:
    """h_t = tanh(G_t + h_{t-1} U): h (T + 1, N, H) (Elman 1990)."""
    h, a = _states(G, h0), np.empty_like(h0)
    for t in range(len(G)):
        matmul(h[t], U, a)
        a += G[t]
        np.tanh(a, out=h[t + 1])
        _pass_over(keep, t, h)
    return h


def rnn_grad(h: Array, U: Array, dy: Array, dh: Array, keep: Array | None) -> tuple[Array, Array]:
    """dy (T, N, H) of h_1.., dh (N, H) of the last one from elsewhere -> dG (T, N, H), dh of h_0."""
    dG, back = 1 - h[1:] * h[1:], np.ascontiguousarray(U.T)
    dh = dh.copy()
    for t in reversed(range(len(dG))):
        dh += dy[t]
        carried = _held_back(keep, t, dh)
        dG[t] *= dh
        matmul(dG[t], back, dh)
        _give_back(carried, dh)
    return dG, dh


def lstm(G: Array, U: Array, h0: Array, c0: Array, keep: Array | None) -> tuple[Array, Array, Array]:
    """With gates o, i, f = sigmoid, g = tanh of their slices, in this order, of G_t + h_{t-1} U,

        c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)

    (Hochreiter & Schmidhuber 1997; Gers et al. 2000): h, c (T + 1, N, H) and tanh(c_1..) (T, N, H). The gates are
    written over G, in place.
    """
    h, c, squashed = _states(G, h0), _states(G, c0), np.empty((len(G), *h0.shape), h0.dtype)
    a = np.empty((len(h0), U.shape[1]), h0.dtype)
    for t in range(len(G)):
        matmul(h[t], U, a)
        lstm_step(G[t], a, c[t], c[t + 1], squashed[t], h[t + 1])
        _pass_over(keep, t, c)
        _pass_over(keep, t, h)
    return h, c, squashed


@twin("sparkdl.ops.fast.recurrent")
def lstm_step(G: Array, a: Array, c: Array, new_c: Array, squashed: Array, h: Array) -> None:
    """The gates of G + a (N, 4 H) over G; the next c, its tanh and the next h (N, H): all in place."""
    units = c.shape[1]
    G += a
    _sigmoid(G[:, : 3 * units])
    o, i, f, g = _gates(G, units)
    np.tanh(g, out=g)
    np.multiply(f, c, out=new_c)
    np.multiply(i, g, out=h)
    new_c += h
    np.tanh(new_c, out=squashed)
    np.multiply(o, squashed, out=h)


def lstm_grad(
    gates: Array, U: Array, c: Array, squashed: Array, dy: Array, dh: Array, dc: Array, keep: Array | None
) -> tuple[Array, Array, Array]:
    """dy (T, N, H) of h_1.., dh, dc (N, H) of the last states from elsewhere -> dG (T, N, 4 H), dh, dc of h_0, c_0."""
    dG, back = np.empty(gates.shape, gates.dtype), np.ascontiguousarray(U.T)
    dh, dc = dh.copy(), dc.copy()
    for t in reversed(range(len(dG))):
        dh += dy[t]
        h_carried, c_carried = _held_back(keep, t, dh), _held_back(keep, t, dc)
        lstm_step_grad(gates[t], c[t], squashed[t], dh, dc, dG[t])
        matmul(dG[t], back, dh)
        _give_back(h_carried, dh)
        _give_back(c_carried, dc)
    return dG, dh, dc


@twin("sparkdl.ops.fast.recurrent")
def lstm_step_grad(gates: Array, c: Array, squashed: Array, dh: Array, dc: Array, dG: Array) -> None:
    """dG (N, 4 H) of one step, and dc (N, H) of the c before it in place of the one after, in place."""
    units = dh.shape[1]
    more = squashed * squashed  # of h by c: o (1 - tanh(c)^2)
    np.subtract(1, more, out=more)
    more *= gates[:, :units]
    more *= dh
    dc += more
    _lstm_slopes(gates, c, squashed, dG)
    step = dG.reshape(len(dh), 4, units)
    step[:, 0] *= dh
    step[:, 1:] *= dc[:, None]
    dc *= gates[:, 2 * units : 3 * units]


def gru(G: Array, U: Array, b: Array | None, h0: Array, keep: Array | None) -> tuple[Array, Array]:
    """With gates r, z = sigmoid of their slices of G_t + h_{t-1} U, n = tanh(G_t + r q) and q = h_{t-1} U + b of n's,

        h_t = (1 - z) n + z h_{t-1}

    (Cho et al. 2014, in the form where r acts after the product): h (T + 1, N, H) and q (T, N, H); b (H,) or None. The
    gates r, z, n are written over G, in place.
    """
    units = h0.shape[1]
    h, q = _states(G, h0), np.empty((len(G), *h0.shape), h0.dtype)
    a, bias = np.empty((len(h0), 3 * units), h0.dtype), np.zeros(units, h0.dtype) if b is None else b
    for t in range(len(G)):
        matmul(h[t], U, a)
        gru_step(G[t], a, bias, h[t], q[t], h[t + 1])
        _pass_over(keep, t, h)
    return h, q


@twin("sparkdl.ops.fast.recurrent")
def gru_step(G: Array, a: Array, b: Array, h: Array, q: Array, new_h: Array) -> None:
    """The gates of G, a (N, 3 H) over G; q and the next h (N, H): all in place."""
    units = h.shape[1]
    sigmoids = G[:, : 2 * units]
    sigmoids += a[:, : 2 * units]
    _sigmoid(sigmoids)
    r, z, n = _gates(G, units)
    np.add(a[:, 2 * units :], b, out=q)
    np.multiply(r, q, out=new_h)
    n += new_h
    np.tanh(n, out=n)
    np.subtract(h, n, out=new_h)
    new_h *= z
    new_h += n


def gru_grad(
    gates: Array, U: Array, h: Array, q: Array, dy: Array, dh: Array, keep: Array | None
) -> tuple[Array, Array, Array]:
    """dy (T, N, H) of h_1.., dh (N, H) of the last one from elsewhere -> dG (T, N, 3 H), dq (T, N, H), dh of h_0.

    What reaches U is dG with the slice of n replaced by dq = r times it.
    """
    units = dh.shape[1]
    dG, dq = np.empty(gates.shape, gates.dtype), np.empty(q.shape, q.dtype)
    dh, d, back = dh.copy(), np.empty((len(dh), 3 * units), dh.dtype), np.ascontiguousarray(U.T)
    for t in reversed(range(len(dG))):
        dh += dy[t]
        carried = _held_back(keep, t, dh)
        gru_step_grad(gates[t], h[t], q[t], dh, dG[t], dq[t], d)
        add_matmul(d, back, dh)
        _give_back(carried, dh)
    return dG, dq, dh


@twin("sparkdl.ops.fast.recurrent")
def gru_step_grad(gates: Array, h: Array, q: Array, dh: Array, dG: Array, dq: Array, d: Array) -> None:
    """dG, d (N, 3 H), dq (N, H) of one step, and z dh in place of dh (N, H); d is what reaches U. All in place."""
    units = dh.shape[1]
    r, z, n = _gates(gates, units)
    dr, dz, dn = _gates(dG, units)
    new = np.subtract(1, z, out=dq)
    np.multiply(n, n, out=dn)  # dh (1 - z) (1 - n^2)
    np.subtract(1, dn, out=dn)
    dn *= new
    dn *= dh
    np.subtract(h, n, out=dz)  # dh (h - n) z (1 - z)
    dz *= new
    dz *= z
    dz *= dh
    np.multiply(dn, r, out=dq)
    np.subtract(1, r, out=dr)  # dn q r (1 - r)
    dr *= q
    dr *= dq
    d[:, : 2 * units], d[:, 2 * units :] = dG[:, : 2 * units], dq
    dh *= z


def _states(G: Array, first: Array) -> Array:
    states = np.empty((len(G) + 1, *first.shape), first.dtype)
    states[0] = first
    return states


def _gates(a: Array, units: int) -> list[Array]:
    """Views of the gates of a (..., K H)."""
    return [a[..., k : k + units] for k in range(0, a.shape[-1], units)]


def _lstm_slopes(gates: Array, c: Array, squashed: Array, out: Array) -> None:
    """What each pre-activation's gradient is a multiple of, into out (N, 4 H): of dh for o, of dc for i, f and g."""
    units = squashed.shape[1]
    _, i, _, g = _gates(gates, units)
    sigmoids = out[:, : 3 * units]
    np.subtract(1, gates[:, : 3 * units], out=sigmoids)
    sigmoids *= gates[:, : 3 * units]
    to_o, to_i, to_f, to_g = _gates(out, units)
    to_o *= squashed
    to_i *= g
    to_f *= c
    np.multiply(g, g, out=to_g)
    np.subtract(1, to_g, out=to_g)
    to_g *= i


def _sigmoid(a: Array) -> None:
    """1 / (1 + e^-a), in place; where e^-a overflows, 0."""
    np.negative(a, out=a)
    with np.errstate(over="ignore"):
        np.exp(a, out=a)
    a += 1
    np.divide(1, a, out=a)


def _pass_over(keep: Array | None, t: int, states: Array) -> None:
    """Where step t does not count, put the state before it in place of the one after, in place."""
    if keep is not None:
        np.copyto(states[t + 1], states[t], where=~keep[t])


def _held_back(keep: Array | None, t: int, d: Array) -> Array | None:
    """Move the gradient of rows whose step t does not count out of d, in place, and return it."""
    if keep is None:
        return None
    carried: Array = np.where(keep[t], 0, d)
    d *= keep[t]
    return carried


def _give_back(carried: Array | None, d: Array) -> None:
    if carried is not None:
        d += carried
