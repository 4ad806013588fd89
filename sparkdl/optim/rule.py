"""What the update rules share: base rate, weight decay and its exclusions, slots, and the walk over the vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from sparkdl.fields import NON_NEGATIVE, POSITIVE, check_fields
from sparkdl.optim.base import Array, Optimizer, Segment, State
from sparkdl.optim.blocks import blocks, runs, scratch_for, tensors

__all__ = ["Elementwise", "Rule", "tick"]


@dataclass(frozen=True)
class Rule(Optimizer):
    """`weight_decay` is the strength of the pull towards 0.

    It leaves alone every parameter whose name matches a pattern in `exclude` (`fnmatch`: "*/gamma", "head/*") and,
    unless `exclude_vectors` is False, those of at most one axis: biases and BatchNorm's gamma and beta, as is usual
    in training with large batches (Goyal et al. 2017, arXiv:1706.02677). LARS and LAMB also give these no trust ratio.
    """

    lr: float = field(default=0.01, metadata=POSITIVE)
    weight_decay: float = field(default=0.0, kw_only=True, metadata=NON_NEGATIVE)
    exclude: tuple[str, ...] = field(default=(), kw_only=True)
    exclude_vectors: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)
        patterns: object = self.exclude
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(p, str) for p in patterns):
            kind = type(self).__name__
            raise ValueError(f'{kind}(exclude={patterns!r}): exclude must be a tuple of patterns, such as ("*/b",).')
        object.__setattr__(self, "exclude", tuple(patterns))

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors that the rule keeps beside the parameters."""

    def init(self, params: Array) -> State:
        return {name: np.zeros(params.size, params.dtype) for name in self.slots} | {"t": np.zeros(1, np.int64)}

    def excludes(self, segment: Segment) -> bool:
        """Whether the exclusion list or the rule for vectors takes this parameter out."""
        vector = self.exclude_vectors and len(segment.shape) <= 1
        return vector or any(fnmatchcase(segment.name, pattern) for pattern in self.exclude)


@dataclass(frozen=True)
class Elementwise(Rule):
    """A rule in which each weight sees only its own gradient and slots.

    Any slice of the vector, with the segments that describe it, may therefore be updated on its own.
    """

    @property
    @abstractmethod
    def decoupled(self) -> bool:
        """Whether decay shrinks the weights by lr wd w, outside the rule, or adds wd w to the gradient."""

    @abstractmethod
    def update(self, w: Array, g: Array, slots: State, s: Array, lr: float, t: int) -> None:
        """Update one block of weights and slots in place; g and the scratch block s may be overwritten.

        All (n,), n <= BLOCK; t counts updates from 1.
        """

    def step(self, params: Array, grad: Array, state: State, lr: float, segments: Sequence[Segment]) -> None:
        assert params.shape == grad.shape, (params.shape, grad.shape)
        t, lr, scratch = tick(state), float(lr), scratch_for(params)
        for span in runs(tensors(params.size, segments, self.excludes)):
            for at in blocks(span.start, span.stop):
                w, g, s = params[at], grad[at], scratch[: at.stop - at.start]
                if self.weight_decay and not span.excluded:
                    self._decay(w, g, s, lr)
                self.update(w, g, {name: state[name][at] for name in self.slots}, s, lr, t)

    def _decay(self, w: Array, g: Array, s: Array, lr: float) -> None:
        if self.decoupled:
            w *= 1.0 - lr * self.weight_decay
        else:
            np.multiply(w, self.weight_decay, out=s)
            g += s


def tick(state: State) -> int:
    """Count one update in `state["t"]`, in place, and return the count."""
    state["t"] += 1
    return int(state["t"][0])
