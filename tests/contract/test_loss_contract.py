"""What every loss promises, over the catalogue: a sum over rows, its gradient, weights, dtypes, persistence."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from sparkdl.nn import Array
from sparkdl.nn.codec import decode_loss, encode
from tests.catalogue import LOSSES, LossCase

ROWS = 6
each_loss = pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.id)


def batch(case: LossCase, rows: int = ROWS) -> tuple[Array, Array, Array]:
    """Outputs, targets, sample weights."""
    rng = np.random.default_rng(11)
    return 2 * rng.standard_normal((rows, *case.out_shape)), case.make_targets(rng, rows), 0.5 + rng.random(rows)


@each_loss
@pytest.mark.parametrize("weighted", [True, False])
def test_dz_is_the_gradient_of_the_sum(case: LossCase, weighted: bool) -> None:
    z, y, w = batch(case)
    w = w if weighted else None
    v, eps = np.random.default_rng(2).standard_normal(z.shape), 1e-6
    v[..., z.shape[-1] - case.constant :] = 0
    up, down = (case.loss(z + e * v, y, w)[0] for e in (eps, -eps))
    numeric, analytic = (up - down) / (2 * eps), np.vdot(case.loss(z, y, w)[2], v)
    assert abs(numeric - analytic) <= 1e-6 * max(1.0, abs(numeric)), f"numeric {numeric!r}, analytic {analytic!r}"


@each_loss
def test_sums_add_up_over_parts(case: LossCase) -> None:
    z, y, w = batch(case)
    loss, weight, dz = case.loss(z, y, w)
    parts = [case.loss(z[at], y[at], w[at]) for at in (slice(0, 1), slice(1, 1), slice(1, ROWS))]
    np.testing.assert_allclose(loss, sum(p[0] for p in parts), rtol=1e-12)
    np.testing.assert_allclose(weight, sum(p[1] for p in parts), rtol=1e-12)
    np.testing.assert_allclose(dz, np.concatenate([p[2] for p in parts]), rtol=1e-12)


@each_loss
def test_no_rows(case: LossCase) -> None:
    z, y, w = batch(case, 0)
    for weights in (w, None):
        loss, weight, dz = case.loss(z, y, weights)
        assert (loss, weight, dz.shape) == (0.0, 0.0, (0, *case.out_shape))


@each_loss
def test_a_weight_counts_a_row_that_often(case: LossCase) -> None:
    z, y, _ = batch(case)
    times = np.array([0, 1, 2, 3, 1, 0])
    loss, weight, dz = case.loss(z, y, times.astype(float))
    repeated = case.loss(np.repeat(z, times, axis=0), np.repeat(y, times, axis=0), None)
    np.testing.assert_allclose((loss, weight), repeated[:2], rtol=1e-12)
    assert not dz[times == 0].any()


@each_loss
def test_no_weights_are_weights_of_one(case: LossCase) -> None:
    z, y, _ = batch(case)
    for got, expected in zip(case.loss(z, y, None), case.loss(z, y, np.ones(ROWS)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@each_loss
@pytest.mark.parametrize("weighted", [True, False])
def test_float32_stays_float32_and_sums_are_float64(case: LossCase, weighted: bool) -> None:
    z, y, w = batch(case)
    y = y.astype(np.float32) if case.loss.target == "values" else y
    loss, weight, dz = case.loss(z.astype(np.float32), y, w.astype(np.float32) if weighted else None)
    assert (type(loss), type(weight), dz.dtype) == (float, float, np.float32)
    exact = case.loss(z, y, w if weighted else None)
    np.testing.assert_allclose(loss, exact[0], rtol=1e-5)
    np.testing.assert_allclose(dz, exact[2], rtol=1e-4, atol=1e-6)
    assert case.loss.link(z.astype(np.float32)).dtype == np.float32


@each_loss
def test_inputs_are_left_alone(case: LossCase) -> None:
    z, y, w = batch(case)
    copies = [a.copy() for a in (z, y, w)]
    for a in (z, y, w):
        a.flags.writeable = False
    case.loss(z, y, w)
    case.loss.link(z)
    assert all(np.array_equal(a, b) for a, b in zip((z, y, w), copies, strict=True))


@each_loss
def test_targets_of_another_shape_are_refused(case: LossCase) -> None:
    z, y, _ = batch(case)
    for wrong in (y[:-1], np.stack([y, y], axis=-1)):
        with pytest.raises(ValueError, match=type(case.loss).__name__):
            case.loss(z, wrong, None)


@each_loss
def test_weights_of_another_shape_are_refused(case: LossCase) -> None:
    z, y, w = batch(case)
    for wrong in (w[:, None], w[:-1], w[:1]):
        with pytest.raises(ValueError, match=r"Sample weights must have shape \(6,\)"):
            case.loss(z, y, wrong)


@each_loss
def test_check_takes_what_fits_and_link_keeps_shapes(case: LossCase) -> None:
    z, y, _ = batch(case)
    case.loss.check(case.out_shape, target_shape=y.shape[1:])
    assert case.loss.link(z).shape == z.shape
    with pytest.raises(ValueError, match=type(case.loss).__name__):
        case.loss.check(case.out_shape, target_shape=(7, 5))


@each_loss
def test_losses_are_small_values_and_data(case: LossCase) -> None:
    assert pickle.loads(pickle.dumps(case.loss)) == case.loss
    assert hash(case.loss) == hash(pickle.loads(pickle.dumps(case.loss)))
    assert decode_loss(json.loads(json.dumps(encode(case.loss)))) == case.loss
