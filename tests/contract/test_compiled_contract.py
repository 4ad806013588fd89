"""With compiled twins every layer, loss and optimizer is what it is without: outputs, gradients, weights, state."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from sparkdl.compiled import compiling
from sparkdl.nn import Array, Ctx, Layout, ParamSpec, Zeros
from tests.catalogue import LAYERS, LOSSES, OPTIMIZERS, LayerCase, LossCase, OptimizerCase

pytest.importorskip("numba")

from sparkdl.ops.fast import matmul as products

TOLERANCE = {"f4": 2e-5, "f8": 1e-12}


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices as small as those of the catalogue are multiplied by the kernel."""
    monkeypatch.setattr(products, "LEAST_WORK", 0)
    monkeypatch.setattr(products, "LEAST_TERMS", 1)
    monkeypatch.setattr(products, "multiplies_alone", lambda: True)


class Result(NamedTuple):
    y: Array
    dx: Array
    g: Array


def shifted(array: Array, entries: int) -> Array:
    """A copy that lies so many entries beyond what the allocator aligns."""
    buffer = np.empty(entries + array.size, array.dtype)[entries:]
    buffer[:] = array.reshape(-1)
    return buffer.reshape(array.shape)


def run(case: LayerCase, dtype: str, rows: int, train: bool, compiled: bool, shift: int = 0) -> Result:
    rng = np.random.default_rng(11)
    layout = Layout(case.layer.specs(case.in_shape))
    params = layout.init(rng, np.float64)
    params += 0.1 * rng.standard_normal(params.shape)
    params[layout.num_trainable :] = 0.5 + rng.random(layout.size - layout.num_trainable)
    x = case.make_x(rng, (rows, *case.in_shape)).astype(dtype)
    dy = rng.standard_normal((rows, *case.layer.out_shape(case.in_shape))).astype(dtype)
    x, dy, params, g = (shifted(a.astype(dtype), shift) for a in (x, dy, params, np.zeros(layout.size)))
    for array in (x, dy, params):
        array.flags.writeable = False
    with compiling(compiled):
        p = layout.tree(params)
        y, cache = case.layer.forward(p, x, Ctx(train=train, rng=np.random.default_rng(3)))
        dx = case.layer.backward(p, cache, dy, layout.tree(g), Ctx(train=train))
    return Result(y, dx, g)


def run_loss(case: LossCase, dtype: str, rows: int, weighted: bool, compiled: bool, shift: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(13)
    z = shifted((3 * rng.standard_normal((rows, *case.out_shape))).astype(dtype), shift)
    y, w = case.make_targets(rng, rows), shifted(rng.random(rows), shift)
    for array in (z, y, w):
        array.flags.writeable = False
    with compiling(compiled):
        return case.loss(z, y, w if weighted else None)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [0, 1, 6])
@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_compiled_layers_are_the_plain_ones(case: LayerCase, rows: int, dtype: str) -> None:
    for train in (True, False):
        plain, compiled = (run(case, dtype, rows, train, on) for on in (False, True))
        for expected, got in zip(plain, compiled, strict=True):
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [0, 1, 6])
@pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.id)
def test_compiled_losses_are_the_plain_ones(case: LossCase, rows: int, dtype: str) -> None:
    for weighted in (True, False):
        plain, compiled = (run_loss(case, dtype, rows, weighted, on) for on in (False, True))
        for expected, got in zip(plain, compiled, strict=True):
            assert np.asarray(got).dtype == np.asarray(expected).dtype
            np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", OPTIMIZERS, ids=lambda case: case.id)
def test_compiled_optimizers_are_the_plain_ones(case: OptimizerCase, dtype: str) -> None:
    rng, segments = np.random.default_rng(12), Layout({"W": ParamSpec((30, 7), Zeros()), "b": ParamSpec((3,), Zeros())})
    start, grads = rng.standard_normal(213).astype(dtype), rng.standard_normal((4, 213)).astype(dtype)
    results = []
    for compiled in (False, True):
        params, state = start.copy(), case.optimizer.init(start)
        with compiling(compiled):
            for grad in grads:
                case.optimizer.step(params, grad.copy(), state, 0.1, segments.trainable_segments)
        results.append({"params": params, **state})
    plain, fast = results
    assert plain.keys() == fast.keys()
    for name, expected in plain.items():
        assert fast[name].dtype == expected.dtype
        np.testing.assert_allclose(
            fast[name], expected, rtol=20 * TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=name
        )


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_bits_do_not_hang_on_where_arrays_lie(case: LayerCase) -> None:
    first, *others = (run(case, "f4", 6, True, True, shift) for shift in (0, 1, 7))
    for other in others:
        for expected, got in zip(first, other, strict=True):
            assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.id)
def test_bits_of_losses_do_not_hang_on_where_arrays_lie(case: LossCase) -> None:
    (first_loss, _, first_dz), *others = (run_loss(case, "f4", 6, True, True, shift) for shift in (0, 1, 7))
    for loss, _, dz in others:
        assert (loss, dz.tobytes()) == (first_loss, first_dz.tobytes())
