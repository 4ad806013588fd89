"""Scaled dot-product attention (Vaswani et al. 2017), several heads at once.

q, k, v, y (N, h, T, d), P (N, h, T, T), keep (N, T) or None for all keys:

    P = softmax(q k^T / sqrt(d)) over the keys that count,   y = P v

With `causal`, query t sees the keys 0..t only. A query that sees no key gets y = 0. Work goes on in blocks of samples
whose scores fit the cache; any strides will do as long as the last axis is contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparkdl.compiled import twin

__all__ = ["attention", "attention_grad", "scores_grad", "to_probabilities"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_ELEMENTS = 1 << 16  # scores in one block


def attention(q: Array, k: Array, v: Array, keep: Array | None, causal: bool, out: Array) -> Array:
    """Writes y into out (N, h, T, d), in place; returns P."""
    n, heads, steps, d = q.shape
    P = np.empty((n, heads, steps, steps), q.dtype)
    later = np.triu(np.ones((steps, steps), bool), 1) if causal else None
    for rows in _blocks(P):
        S = P[rows]
        np.matmul(q[rows], k[rows].transpose(0, 1, 3, 2), out=S)
        if keep is not None:
            np.copyto(S, -np.inf, where=~keep[rows, None, None])
        if later is not None:
            np.copyto(S, -np.inf, where=later)
        to_probabilities(S, 1 / math.sqrt(d))
        np.matmul(S, v[rows], out=out[rows])
    return P


def attention_grad(q: Array, k: Array, v: Array, P: Array, dy: Array, dq: Array, dk: Array, dv: Array) -> None:
    """Writes the gradients of q, k, v into dq, dk, dv, in place.

    With dP = dy v^T: dS = P (dP - <dP, P>) / sqrt(d), dq = dS k, dk = dS^T q, dv = P^T dy.
    """
    for rows in _blocks(P):
        p, d = P[rows], dy[rows]
        np.matmul(p.transpose(0, 1, 3, 2), d, out=dv[rows])
        S = d @ v[rows].transpose(0, 1, 3, 2)
        scores_grad(S, p, 1 / math.sqrt(q.shape[3]))
        np.matmul(S, k[rows], out=dq[rows])
        np.matmul(S.transpose(0, 1, 3, 2), q[rows], out=dk[rows])


@twin("sparkdl.ops.fast.softmax")
def to_probabilities(S: Array, scale: float) -> None:
    """S (..., T) <- softmax(scale S), in place; 0 throughout a row that is -inf throughout."""
    top = S.max(axis=-1, keepdims=True)
    np.copyto(top, 0, where=top == -np.inf)  # where nothing counts, every e^S below is 0
    S -= top
    S *= scale
    np.exp(S, out=S)
    total = S.sum(axis=-1, keepdims=True)
    np.copyto(total, 1, where=total == 0)
    S /= total


@twin("sparkdl.ops.fast.softmax")
def scores_grad(S: Array, P: Array, scale: float) -> None:
    """S <- scale P (S - <S, P>), in place: from the gradient of the probabilities P (..., T) to that of the scores."""
    S -= np.einsum("nhqk,nhqk->nhq", S, P)[..., None]
    S *= P
    S *= scale


def _blocks(P: Array) -> Iterator[slice]:
    """Samples, a few at a time."""
    step = max(1, BLOCK_ELEMENTS // max(1, P[:1].size))
    for start in range(0, len(P), step):
        yield slice(start, start + step)
