"""Softmax over the last axis, z (..., K), and its relatives. All are shifted by the row's maximum: none overflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = ["cross_entropy", "log_softmax", "log_softmax_grad", "logsumexp", "softmax", "softmax_grad"]

Array = np.ndarray[Any, np.dtype[Any]]


def logsumexp(z: Array) -> Array:
    """y = log sum_k e^z_k. z (..., K) -> y (...)."""
    top = z.max(axis=-1)
    y: Array = top + np.log(np.exp(z - top[..., None]).sum(axis=-1))
    return y


@twin("sparkdl.ops.fast.softmax")
def softmax(z: Array) -> Array:
    """y_k = e^z_k / sum_j e^z_j. z, y (..., K)."""
    y: Array = np.exp(z - z.max(axis=-1, keepdims=True))
    y /= y.sum(axis=-1, keepdims=True)
    return y


def softmax_grad(y: Array, dy: Array) -> Array:
    """dz = y (dy - <y, dy>), the product with the full Jacobian diag(y) - y y^T. y, dy, dz (..., K)."""
    # A constant added to dy leaves dz unchanged. Taking dy's first entry off makes dz of a constant dy exactly 0,
    # where rounding in sum(y) would otherwise leave a remainder.
    d = dy - dy[..., :1]
    dz: Array = y * (d - (y * d).sum(axis=-1, keepdims=True))
    return dz


@twin("sparkdl.ops.fast.softmax")
def log_softmax(z: Array) -> Array:
    """y_k = z_k - log sum_j e^z_j. z, y (..., K)."""
    y: Array = z - z.max(axis=-1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=-1, keepdims=True))
    return y


def log_softmax_grad(y: Array, dy: Array) -> Array:
    """dz = dy - e^y sum_k dy_k. y, dy, dz (..., K)."""
    dz: Array = dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)
    return dz


@twin("sparkdl.ops.fast.softmax")
def cross_entropy(z: Array, y: Array, a: Array, w: Array, u: Array | None) -> tuple[float, Array]:
    """-sum_n (a_n log p_n,y_n + w_n sum_k u_k log p_nk), p = softmax(z), and its gradient by z.

    z, dz (N, K), y (N,) in 0..K-1, float64 a, w (N,) and u (K,), None for zeros: dz = p sum_k q - q against the target
    q_nk = a_n 1(k = y_n) + w_n u_k.
    """
    at, log_p = np.arange(len(z)), log_softmax(z)
    loss, total = -float(a @ log_p[at, y]), a
    if u is not None:
        loss -= float(w @ (log_p @ u))
        total = a + w * u.sum()
    dz = np.exp(log_p) * total.astype(z.dtype)[:, None]
    dz[at, y] -= a
    if u is not None:
        dz -= np.outer(w, u)
    return loss, dz
