"""Compiled update rules give the bits of the NumPy ones: replicas may differ in what is installed."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue import OPTIMIZERS, OptimizerCase

from sparkdl.compiled import compiling

pytest.importorskip("numba")


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in OPTIMIZERS])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits(case: OptimizerCase, dtype: str) -> None:
    ends = []
    for on in (False, True):
        rng = np.random.default_rng(0)
        params = rng.standard_normal(1003).astype(dtype)
        state = case.optimizer.init(params)
        with compiling(on):
            for _ in range(5):
                grad = rng.standard_normal(1003).astype(dtype)
                case.optimizer.step(params, grad, state, 0.013, ())
        ends.append((params, state))
    (plain, slots), (fast, fast_slots) = ends
    assert plain.tobytes() == fast.tobytes()
    assert {n: a.tobytes() for n, a in slots.items()} == {n: a.tobytes() for n, a in fast_slots.items()}
