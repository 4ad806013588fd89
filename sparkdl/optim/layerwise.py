"""LARS and LAMB: rates scaled per tensor, for very large batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparkdl.fields import FRACTION, NON_NEGATIVE, POSITIVE
from sparkdl.optim.adam import adapted, moments
from sparkdl.optim.base import Array, Segment, State
from sparkdl.optim.blocks import blocks, norm, scratch_for, tensors
from sparkdl.optim.rule import Rule, tick

__all__ = ["LAMB", "LARS"]


@dataclass(frozen=True)
class LARS(Rule):
    """velocity <- momentum velocity + r (g + wd w); w <- w - lr velocity; r = trust |w| / (|g| + wd |w|) per tensor.

    r is 1 where |w| or |g| is 0. Excluded tensors (see Rule) have r = 1 and no decay, which is SGD. You et al.,
    arXiv:1708.03888, put lr inside the velocity; outside it, as here and in SGD, is the same while lr is constant.
    """

    lr: float = field(default=0.1, metadata=POSITIVE)
    momentum: float = field(default=0.9, metadata=FRACTION)
    trust: float = field(default=0.001, metadata=POSITIVE)
    weight_decay: float = field(default=0.0005, kw_only=True, metadata=NON_NEGATIVE)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    def step(self, params: Array, grad: Array, state: State, lr: float, segments: Sequence[Segment]) -> None:
        assert params.shape == grad.shape, (params.shape, grad.shape)
        tick(state)
        lr, scratch, velocity = float(lr), scratch_for(params), state["velocity"]
        for span in tensors(params.size, segments, self.excludes):
            decay = 0.0 if span.excluded else self.weight_decay
            ratio = 1.0 if span.excluded else self._ratio(params[span.start : span.stop], grad[span.start : span.stop])
            for at in blocks(span.start, span.stop):
                w, g, v, s = params[at], grad[at], velocity[at], scratch[: at.stop - at.start]
                _add_scaled(g, w, decay, s)
                g *= ratio
                v *= self.momentum
                v += g
                _add_scaled(w, v, -lr, s)

    def _ratio(self, w: Array, g: Array) -> float:
        w_norm, g_norm = norm(w), norm(g)
        return self.trust * w_norm / (g_norm + self.weight_decay * w_norm) if w_norm > 0 and g_norm > 0 else 1.0


@dataclass(frozen=True)
class LAMB(Rule):
    """w <- w - lr (|w| / |r|) r per tensor, where r = mhat / (sqrt(vhat) + eps) + wd w and mhat, vhat are Adam's.

    The ratio is 1 where |w| or |r| is 0. Excluded tensors (see Rule) have ratio 1 and no decay, which is Adam.
    You et al., arXiv:1904.00962.
    """

    lr: float = field(default=0.001, metadata=POSITIVE)
    beta1: float = field(default=0.9, metadata=FRACTION)
    beta2: float = field(default=0.999, metadata=FRACTION)
    eps: float = field(default=1e-6, metadata=POSITIVE)
    weight_decay: float = field(default=0.01, kw_only=True, metadata=NON_NEGATIVE)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v")

    def step(self, params: Array, grad: Array, state: State, lr: float, segments: Sequence[Segment]) -> None:
        assert params.shape == grad.shape, (params.shape, grad.shape)
        t, lr, scratch = tick(state), float(lr), scratch_for(params)
        for span in tensors(params.size, segments, self.excludes):
            decay = 0.0 if span.excluded else self.weight_decay
            for at in blocks(span.start, span.stop):
                m, v, w, r, s = state["m"][at], state["v"][at], params[at], grad[at], scratch[: at.stop - at.start]
                moments(m, v, r, s, self.beta1, self.beta2)
                adapted(m, v, r, t, self.beta1, self.beta2, self.eps, 1.0)  # r takes the gradient's place
                _add_scaled(r, w, decay, s)
            ratio = 1.0 if span.excluded else _ratio(params[span.start : span.stop], grad[span.start : span.stop])
            for at in blocks(span.start, span.stop):
                _add_scaled(params[at], grad[at], -lr * ratio, scratch[: at.stop - at.start])


def _ratio(w: Array, r: Array) -> float:
    w_norm, r_norm = norm(w), norm(r)
    return w_norm / r_norm if w_norm > 0 and r_norm > 0 else 1.0


def _add_scaled(y: Array, x: Array, a: float, s: Array) -> None:
    """Add a x to y, in place; s is scratch."""
    if a:
        np.multiply(x, a, out=s)
        y += s
