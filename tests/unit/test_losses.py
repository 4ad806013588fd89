"""Losses against closed forms, PyTorch where it is installed, and the corners that lose others their numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from sparkdl.compiled import compiling
from sparkdl.nn import MAE, MSE, Array, BinaryCrossEntropy, Huber, Loss, SoftmaxCrossEntropy

LN2 = math.log(2)


def column(*values: float) -> Array:
    return np.array(values)[:, None]


# ---- softmax cross-entropy


def test_cross_entropy_of_equal_logits_is_log_k() -> None:
    loss, weight, dz = SoftmaxCrossEntropy()(np.zeros((3, 4)), np.array([0, 1, 3]), None)
    assert loss == pytest.approx(3 * math.log(4), rel=1e-12)
    assert weight == 3.0
    np.testing.assert_allclose(dz, 0.25 - np.eye(4)[[0, 1, 3]], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_certain_and_wrong_prediction_has_a_finite_loss(dtype: type) -> None:
    loss, _, dz = SoftmaxCrossEntropy()(np.array([[0.0, 5000.0]], dtype), np.array([0]), None)
    assert loss == 5000.0
    assert dz.tolist() == [[-1, 1]]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("classes", [2, 7, 16, 33, 100, 1000])
@pytest.mark.parametrize("smooth", [0.0, 0.2])
def test_many_classes_with_logits_far_apart(classes: int, smooth: float, compiled: bool) -> None:
    rng = np.random.default_rng(classes)
    z, y, w = (30 * rng.standard_normal((9, classes))).astype(np.float32), rng.integers(0, classes, 9), rng.random(9)
    log_p = scipy.special.log_softmax(z.astype(np.float64), axis=1)
    q = w[:, None] * ((1 - smooth) * np.eye(classes)[y] + smooth / classes)
    if compiled:
        pytest.importorskip("numba")
    with compiling(compiled):
        loss, _, dz = SoftmaxCrossEntropy(label_smoothing=smooth)(z, y, w)
    assert loss == pytest.approx(-(q * log_p).sum(), rel=1e-5)
    np.testing.assert_allclose(dz, np.exp(log_p) * q.sum(axis=1, keepdims=True) - q, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_logit_that_is_not_a_number_shows(compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba")
    z = np.array([[0, np.nan, 1], [1, 2, 3]], np.float32)
    with compiling(compiled):
        loss, _, dz = SoftmaxCrossEntropy()(z, np.array([0, 0]), None)
    assert math.isnan(loss)
    assert np.isnan(dz).all(axis=1).tolist() == [True, False]


def test_a_shard_of_ignored_labels_counts_for_nothing() -> None:
    loss = SoftmaxCrossEntropy(ignore_index=-100)
    ignored = loss(np.ones((2, 3)), np.array([-100, -100]), np.array([1.0, 2.0]))
    assert ignored[:2] == (0.0, 0.0)
    assert ignored[2].tolist() == [[0, 0, 0], [0, 0, 0]]
    other = loss(np.zeros((1, 3)), np.array([1]), None)
    assert (ignored[0] + other[0]) / (ignored[1] + other[1]) == pytest.approx(math.log(3))


def test_ignored_rows_may_hold_anything() -> None:
    z = np.array([[np.nan, np.inf], [0.0, 0.0]])
    loss, weight, dz = SoftmaxCrossEntropy(ignore_index=9, label_smoothing=0.1)(z, np.array([9, 1]), None)
    assert (loss, weight) == (pytest.approx(LN2), 1.0)
    np.testing.assert_allclose(dz, [[0, 0], [0.5 - 0.05, 0.5 - 0.95]])


def test_a_class_may_be_the_ignored_one() -> None:
    assert SoftmaxCrossEntropy(ignore_index=0)(np.zeros((2, 2)), np.array([0, 1]), None)[:2] == (pytest.approx(LN2), 1)


@pytest.mark.parametrize(
    ("loss", "label", "message"),
    [
        (SoftmaxCrossEntropy(), 3, r"classes 0\.\.2; row 1 has 3 \(1 of 2 rows"),
        (SoftmaxCrossEntropy(), -1, r"classes 0\.\.2; row 1 has -1"),
        (SoftmaxCrossEntropy(ignore_index=-1), -2, r"classes 0\.\.2 or ignore_index = -1; row 1 has -2"),
    ],
)
def test_a_label_out_of_range_is_named(loss: SoftmaxCrossEntropy, label: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss(np.zeros((2, 3)), np.array([0, label]), None)


@pytest.mark.parametrize("y", [np.array([0.0, 1.0]), np.array([[0], [1]]), np.eye(2), np.array([True, False])])
def test_labels_are_one_integer_a_row(y: Array) -> None:
    with pytest.raises(ValueError, match="SoftmaxCrossEntropy"):
        SoftmaxCrossEntropy()(np.zeros((2, 2)), y, None)


def test_weights_smoothing_and_ignored_rows_follow_the_formula() -> None:
    rng = np.random.default_rng(0)
    z, y, w, c, e = rng.standard_normal((6, 3)), np.array([0, 1, 2, 7, 1, 7]), rng.random(6), [0.2, 3.0, 1.0], 0.3
    log_p = scipy.special.log_softmax(z, axis=1)
    loss = weight = 0.0
    for n in (0, 1, 2, 4):
        loss += w[n] * ((1 - e) * c[y[n]] * -log_p[n, y[n]] + e / 3 * sum(c[k] * -log_p[n, k] for k in range(3)))
        weight += w[n] * c[y[n]]
    got = SoftmaxCrossEntropy(ignore_index=7, class_weights=c, label_smoothing=e)(z, y, w)
    assert got[:2] == pytest.approx((loss, weight), rel=1e-12)
    assert not got[2][[3, 5]].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("class_weights", [None, (0.2, 0.0, 3.0, 1.0)], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignore_index", [None, 2, -5])
def test_cross_entropy_is_pytorchs(
    smoothing: float, class_weights: tuple[float, ...] | None, ignore_index: int | None
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    z, y = rng.standard_normal((9, 4)), rng.integers(0, 4, 9)
    if ignore_index == -5:
        y[::3] = -5
    loss, weight, dz = SoftmaxCrossEntropy(ignore_index, class_weights, smoothing)(z, y, None)
    zt = torch.tensor(z, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        zt,
        torch.tensor(y),
        weight=None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64),
        ignore_index=-100 if ignore_index is None else ignore_index,
        label_smoothing=smoothing,
    )
    theirs.backward()
    assert loss / weight == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(dz / weight, zt.grad.numpy(), rtol=1e-9, atol=1e-15)


def test_links_give_probabilities() -> None:
    z = np.array([[0.0, math.log(3)]])
    np.testing.assert_allclose(SoftmaxCrossEntropy().link(z), [[0.25, 0.75]])
    np.testing.assert_allclose(BinaryCrossEntropy().link(z), [[0.5, 0.75]])
    assert MSE().link(z) is z


# ---- binary cross-entropy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binary_cross_entropy_at_large_logits(dtype: type) -> None:
    loss, weight, dz = BinaryCrossEntropy()(column(100, -50).astype(dtype), np.array([0, 1]), None)
    assert (loss, weight) == (150.0, 2.0)
    assert dz.ravel().tolist() == [1, -1]


def test_the_gradient_of_a_mean_of_eight() -> None:
    z, y = np.zeros((8, 1)), np.full(8, 0.5)
    z[3], y[3] = -50, 1
    _, weight, dz = BinaryCrossEntropy()(z, y, None)
    assert (dz / weight)[3].item() == -0.125


def test_binary_cross_entropy_keeps_small_losses() -> None:
    assert BinaryCrossEntropy()(column(50.0), np.array([1]), None)[0] == pytest.approx(math.exp(-50), rel=1e-12)


@pytest.mark.parametrize("target", [-0.3, 1.5, 2, float("nan")])
def test_binary_targets_are_probabilities(target: float) -> None:
    with pytest.raises(ValueError, match=rf"targets in \[0, 1\]; got {target:.1f}|got nan"):
        BinaryCrossEntropy()(column(0.0, 0.0), np.array([1.0, target]), None)


def test_binary_cross_entropy_of_soft_multi_labels_follows_the_formula() -> None:
    rng = np.random.default_rng(2)
    z, y, w = rng.standard_normal((4, 3)), rng.random((4, 3)), rng.random(4)
    p = 1 / (1 + np.exp(-z))
    loss, weight, dz = BinaryCrossEntropy()(z, y, w)
    assert loss == pytest.approx(-(w @ (y * np.log(p) + (1 - y) * np.log(1 - p))).sum(), rel=1e-12)
    assert weight == pytest.approx(3 * w.sum())
    np.testing.assert_allclose(dz, w[:, None] * (p - y), rtol=1e-12)


# ---- values


@pytest.mark.parametrize(
    ("loss", "total", "slopes"),
    [
        (MSE(), 4 + 0.25 + 0, [-4, 1, 0]),
        (MAE(), 2 + 0.5 + 0, [-1, 1, 0]),
        (Huber(), 1.5 + 0.125 + 0, [-1, 0.5, 0]),
        (Huber(delta=4.0), 2 + 0.125 + 0, [-2, 0.5, 0]),
    ],
    ids=repr,
)
def test_residuals_of_minus_two_a_half_and_none(loss: Loss, total: float, slopes: list[float]) -> None:
    z, y = column(1.0, 3.5, 7.0), np.array([3, 3, 7])  # integer targets serve as well
    got = loss(z, y, None)
    assert got[:2] == (total, 3.0)
    assert got[2].ravel().tolist() == slopes


def test_a_vector_of_targets_never_broadcasts_against_a_column() -> None:
    z, y = column(1.0, 2.0), np.array([0.0, 1.0])
    loss, weight, _ = MSE()(z, y, None)
    assert loss / weight == 1.0  # broadcasting would give 1.5
    assert MSE()(z, y[:, None], None)[0] == loss
    with pytest.raises(ValueError, match=r"the net gives \(2,\) a row, the target has \(\)"):
        MSE()(np.zeros((2, 2)), y, None)


def test_the_mean_is_over_entries_weighted_by_row() -> None:
    loss, weight, dz = MSE()(np.array([[1.0, 3.0], [5.0, 5.0]]), np.zeros((2, 2)), np.array([2.0, 0.0]))
    assert (loss, weight) == (2 * (1 + 9), 2 * 2)
    assert dz.tolist() == [[4, 12], [0, 0]]


@pytest.mark.parametrize("loss", [MSE(), MAE(), Huber(0.7), BinaryCrossEntropy()], ids=repr)
def test_value_losses_are_pytorchs(loss: Loss) -> None:
    torch = pytest.importorskip("torch")
    theirs = {
        MSE: torch.nn.MSELoss(),
        MAE: torch.nn.L1Loss(),
        Huber: torch.nn.HuberLoss(delta=0.7),
        BinaryCrossEntropy: torch.nn.BCEWithLogitsLoss(),
    }[type(loss)]
    rng = np.random.default_rng(3)
    z, y = 2 * rng.standard_normal((5, 3)), rng.random((5, 3))
    zt = torch.tensor(z, requires_grad=True)
    mean = theirs(zt, torch.tensor(y))
    mean.backward()
    total, weight, dz = loss(z, y, None)
    assert total / weight == pytest.approx(mean.item(), rel=1e-12)
    np.testing.assert_allclose(dz / weight, zt.grad.numpy(), rtol=1e-9)


def test_sums_of_float32_are_taken_in_float64() -> None:
    rows = 1 << 16
    z = np.full((rows, 1), 0.1, np.float32)
    loss, _, _ = MAE()(z, np.zeros(rows, np.float32), None)
    assert loss == pytest.approx(rows * float(np.float32(0.1)), rel=1e-14)


# ---- arguments and fit


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftmaxCrossEntropy(label_smoothing=1.5), r"label_smoothing=1.5.*\[0, 1\]"),
        (lambda: SoftmaxCrossEntropy(label_smoothing=float("nan")), r"label_smoothing=nan"),
        (lambda: SoftmaxCrossEntropy(class_weights=(1, -1)), "class_weights=.*must be finite and at least 0"),
        (lambda: SoftmaxCrossEntropy(class_weights=(1, float("inf"))), "class_weights"),
        (lambda: Huber(0), "delta must be finite and above 0"),
        (lambda: Huber(float("inf")), "delta must be finite and above 0"),
    ],
)
def test_arguments_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("out_shape", [(), (1,), (2, 3), (4, 4, 10)])
def test_classes_need_one_logit_each(out_shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs outputs of shape \(K,\) with K >= 2"):
        SoftmaxCrossEntropy().check(out_shape)


def test_outputs_must_match_the_number_of_classes() -> None:
    SoftmaxCrossEntropy().check((10,), classes=10, target_shape=())
    with pytest.raises(ValueError, match=r"with K = 10, the number of classes; the net gives \(12,\).*Dense\(10\)"):
        SoftmaxCrossEntropy().check((12,), classes=10)


def test_class_weights_must_match_the_outputs() -> None:
    with pytest.raises(ValueError, match="has 2 class_weights for 3 outputs"):
        SoftmaxCrossEntropy(class_weights=[1, 2]).check((3,))


def test_one_hot_targets_are_pointed_out() -> None:
    with pytest.raises(ValueError, match=r"y \(N,\); got \(N, 3\).*argmax of one-hot"):
        SoftmaxCrossEntropy().check((3,), target_shape=(3,))


def test_values_must_match_entry_by_entry() -> None:
    MSE().check((1,), target_shape=())
    MSE().check((2, 3), target_shape=(2, 3))
    MSE().check((5,))
    with pytest.raises(ValueError, match=r"the net gives \(3,\) a row, the target has \(\).*Dense\(1\)"):
        MSE().check((3,), target_shape=())
    with pytest.raises(ValueError, match=r"BinaryCrossEntropy.*the target has \(4,\).*Dense\(4\)"):
        BinaryCrossEntropy().check((1,), target_shape=(4,))


def test_targets_and_links_are_declared() -> None:
    assert (SoftmaxCrossEntropy.target, SoftmaxCrossEntropy.from_logits) == ("classes", True)
    assert (BinaryCrossEntropy.target, BinaryCrossEntropy.from_logits) == ("values", True)
    assert {(c.target, c.from_logits) for c in (MSE, MAE, Huber)} == {("values", False)}
