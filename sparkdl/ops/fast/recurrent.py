"""Compiled twins of the steps of `sparkdl.ops.recurrent`, in float32: a row passes once through the first-level cache.

Each loop writes to one array, so that it is turned into vector instructions without many tests for overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import Real1, Real2, single_kernel
from sparkdl.ops.fast.elementary import sigmoid, tanh
from sparkdl.ops.recurrent import Array

__all__ = ["gru_step", "gru_step_grad", "lstm_step", "lstm_step_grad"]


def lstm_step(G: Array, a: Array, c: Array, new_c: Array, squashed: Array, h: Array) -> Any:
    """See `sparkdl.ops.recurrent.lstm_step`."""
    if not _serves(G, a, c, new_c, squashed, h):
        return NotImplemented
    return _lstm(G, a, c, new_c, squashed, h)


def lstm_step_grad(gates: Array, c: Array, squashed: Array, dh: Array, dc: Array, dG: Array) -> Any:
    """See `sparkdl.ops.recurrent.lstm_step_grad`."""
    if not _serves(gates, c, squashed, dh, dc, dG):
        return NotImplemented
    return _lstm_grad(gates, c, squashed, dh, dc, dG)


def gru_step(G: Array, a: Array, b: Array, h: Array, q: Array, new_h: Array) -> Any:
    """See `sparkdl.ops.recurrent.gru_step`."""
    if not _serves(G, a, b, h, q, new_h):
        return NotImplemented
    return _gru(G, a, b, h, q, new_h)


def gru_step_grad(gates: Array, h: Array, q: Array, dh: Array, dG: Array, dq: Array, d: Array) -> Any:
    """See `sparkdl.ops.recurrent.gru_step_grad`."""
    if not _serves(gates, h, q, dh, dG, dq, d):
        return NotImplemented
    return _gru_grad(gates, h, q, dh, dG, dq, d)


def _serves(*arrays: Array) -> bool:
    return all(v.dtype == np.float32 and v.flags.c_contiguous for v in arrays)


@single_kernel
def _lstm(G: Real2, a: Real2, c: Real2, new_c: Real2, squashed: Real2, h: Real2) -> None:
    rows, units = c.shape
    for n in range(rows):
        gates, part, new, s, out, old = G[n], a[n], new_c[n], squashed[n], h[n], c[n]
        o, i, f, g = gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units], gates[3 * units :]
        more = part[3 * units :]
        for k in range(3 * units):
            gates[k] = sigmoid(gates[k] + part[k])
        for k in range(units):
            g[k] = tanh(g[k] + more[k])
        for k in range(units):
            new[k] = f[k] * old[k] + i[k] * g[k]
        for k in range(units):
            s[k] = tanh(new[k])
        for k in range(units):
            out[k] = o[k] * s[k]


@single_kernel
def _lstm_grad(gates: Real2, c: Real2, squashed: Real2, dh: Real2, dc: Real2, dG: Real2) -> None:
    rows, units = c.shape
    one = gates.dtype.type(1)
    for n in range(rows):
        row, out, s, old, d, e = gates[n], dG[n], squashed[n], c[n], dh[n], dc[n]
        o, i, f, g = row[:units], row[units : 2 * units], row[2 * units : 3 * units], row[3 * units :]
        do, di, df, dg = out[:units], out[units : 2 * units], out[2 * units : 3 * units], out[3 * units :]
        for k in range(units):
            e[k] += d[k] * o[k] * (one - s[k] * s[k])
        for k in range(units):
            do[k] = d[k] * s[k] * o[k] * (one - o[k])
        for k in range(units):
            di[k] = e[k] * g[k] * i[k] * (one - i[k])
        for k in range(units):
            df[k] = e[k] * old[k] * f[k] * (one - f[k])
        for k in range(units):
            dg[k] = e[k] * i[k] * (one - g[k] * g[k])
        for k in range(units):
            e[k] *= f[k]


@single_kernel
def _gru(G: Real2, a: Real2, b: Real1, h: Real2, q: Real2, new_h: Real2) -> None:
    rows, units = h.shape
    for m in range(rows):
        gates, part, inner, old, out = G[m], a[m], q[m], h[m], new_h[m]
        r, z, n, more = gates[:units], gates[units : 2 * units], gates[2 * units :], part[2 * units :]
        for k in range(2 * units):
            gates[k] = sigmoid(gates[k] + part[k])
        for k in range(units):
            inner[k] = more[k] + b[k]
        for k in range(units):
            n[k] = tanh(n[k] + r[k] * inner[k])
        for k in range(units):
            out[k] = n[k] + z[k] * (old[k] - n[k])


@single_kernel
def _gru_grad(gates: Real2, h: Real2, q: Real2, dh: Real2, dG: Real2, dq: Real2, d: Real2) -> None:
    rows, units = h.shape
    one = gates.dtype.type(1)
    for m in range(rows):
        row, out, to_u, old, inner, e, di = gates[m], dG[m], d[m], h[m], q[m], dh[m], dq[m]
        r, z, n = row[:units], row[units : 2 * units], row[2 * units :]
        dr, dz, dn, to_inner = out[:units], out[units : 2 * units], out[2 * units :], to_u[2 * units :]
        for k in range(units):
            dn[k] = e[k] * (one - z[k]) * (one - n[k] * n[k])
        for k in range(units):
            dz[k] = e[k] * (old[k] - n[k]) * z[k] * (one - z[k])
        for k in range(units):
            di[k] = dn[k] * r[k]
        for k in range(units):
            dr[k] = di[k] * inner[k] * (one - r[k])
        for k in range(units):
            e[k] *= z[k]
        for k in range(2 * units):
            to_u[k] = out[k]
        for k in range(units):
            to_inner[k] = di[k]
