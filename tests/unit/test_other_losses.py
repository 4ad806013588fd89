"""Margins, directions, distributions, reconstructions and joint losses: by hand, against torch, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, rel_entr, softmax

from sparkdl.nn import (
    MAE,
    MSE,
    Array,
    BinaryCrossEntropy,
    BinaryHinge,
    CosineDistance,
    Ctx,
    Dense,
    Graph,
    Hinge,
    Huber,
    Input,
    Joint,
    KLDivergence,
    Loss,
    Model,
    Node,
    Reconstruction,
    Sequential,
    SoftmaxCrossEntropy,
    Tanh,
    Triplet,
)
from sparkdl.train.metrics import MSE as SquaredError
from sparkdl.train.metrics import Accuracy, MetricSet, default_metrics

RNG = np.random.default_rng(101)


def values(loss: Loss, z: Any, y: Any, w: Any = None) -> tuple[float, float, list[Any]]:
    total, weight, dz = loss(np.array(z, float), np.array(y), None if w is None else np.array(w, float))
    return total, weight, dz.tolist()


def test_hinge_by_hand() -> None:
    # Of class 0: the margin of 1 is missed by class 1 by 0.5, and not by class 2.
    assert values(Hinge(), [[2.0, 1.5, 1.0, -1.0]], [0]) == (0.5 / 4, 1.0, [[-0.25, 0.25, 0, 0]])
    assert values(Hinge(squared=True), [[2.0, 1.5, 1.0, -1.0]], [0]) == (0.25 / 4, 1.0, [[-0.25, 0.25, 0, 0]])
    assert values(Hinge(0.25), [[2.0, 1.5, 1.0, -1.0]], [0], [3.0]) == (0.0, 3.0, [[0, 0, 0, 0]])


def test_binary_hinge_by_hand() -> None:
    assert values(BinaryHinge(), [[0.5], [0.5], [2.0]], [1, 0, 1]) == (0.5 + 1.5, 3.0, [[-1], [1], [0]])
    assert values(BinaryHinge(squared=True), [[0.5], [0.5]], [1, 0]) == (0.25 + 2.25, 2.0, [[-1], [3]])


def test_triplet_by_hand() -> None:
    z = [[0.0, 0, 3, 4, 0, 2], [0.0, 0, 1, 0, 9, 0]]  # distances 5 and 2; 1 and 9
    loss, weight, dz = values(Triplet(), z, [0, 0])
    assert (loss, weight) == (5 - 2 + 1, 2.0)
    np.testing.assert_allclose(dz, [[-0.6, -0.8 + 1, 0.6, 0.8, 0, -1], [0] * 6], atol=1e-12)
    loss, _, dz = values(Triplet(squared=True), z, [0, 0])
    assert loss == 25 - 4 + 1
    assert dz == [[-6, -8 + 4, 6, 8, 0, -4], [0] * 6]
    assert values(Triplet(), np.zeros((1, 3, 2)), [0]) == (1.0, 1.0, np.zeros((1, 3, 2)).tolist())


def test_cosine_distance_by_hand() -> None:
    loss, weight, dz = values(
        CosineDistance(), [[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], [[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]]
    )
    assert (loss, weight) == (pytest.approx(0 + 1 + 1), 3.0)
    np.testing.assert_allclose(dz[:2], [[0, 0], [0, -1]], atol=1e-12)
    assert values(CosineDistance(), [[1.0]], [[-5.0]])[0] == 2


def test_kl_divergence_is_that_of_scipy() -> None:
    z, y = RNG.standard_normal((5, 4)), RNG.dirichlet(np.ones(4), 5)
    y[0] = [0, 1, 0, 0]
    loss, weight, dz = KLDivergence()(z, y, None)
    assert loss == pytest.approx(rel_entr(y, softmax(z, axis=1)).sum(), rel=1e-12)
    assert weight == 5
    np.testing.assert_allclose(dz, softmax(z, axis=1) - y, rtol=1e-12, atol=1e-14)
    assert KLDivergence()(np.log(y[1:]), y[1:], None)[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["hinge", "hinge-squared", "triplet", "cosine", "kl"])
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    z = RNG.standard_normal((6, 12 if name == "triplet" else 4))
    labels, directions, shares = RNG.integers(0, 4, 6), RNG.standard_normal((6, 4)), RNG.dirichlet(np.ones(4), 6)
    tz = torch.tensor(z, requires_grad=True)
    loss, y, theirs = {
        "hinge": (Hinge(0.7), labels, lambda: f.multi_margin_loss(tz, torch.tensor(labels), margin=0.7)),
        "hinge-squared": (Hinge(squared=True), labels, lambda: f.multi_margin_loss(tz, torch.tensor(labels), p=2)),
        "triplet": (Triplet(0.5), labels, lambda: f.triplet_margin_loss(*tz.split(4, dim=1), margin=0.5, eps=0)),
        "cosine": (
            CosineDistance(),
            directions,
            lambda: (1 - f.cosine_similarity(tz, torch.tensor(directions))).mean(),
        ),
        "kl": (
            KLDivergence(),
            shares,
            lambda: f.kl_div(tz.log_softmax(1), torch.tensor(shares), reduction="batchmean"),
        ),
    }[name]
    expected = theirs()
    expected.backward()
    total, weight, dz = loss(z, y, None)
    assert total / weight == pytest.approx(expected.item(), rel=1e-10)
    np.testing.assert_allclose(dz / weight, tz.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_reconstruction_compares_the_halves() -> None:
    loss, weight, dz = values(Reconstruction(), [[1.0, 2.0, 3.0, 5.0]], [0])
    assert (loss, weight, dz) == (4 + 9, 2.0, [[-4, -6, 0, 0]])
    z = np.array([[0.5, -2.0, 1.0, 0.0]])
    loss, weight, dz = Reconstruction(BinaryCrossEntropy())(z, np.zeros(1), None)
    assert loss == pytest.approx(-np.log(expit(0.5)) - np.log(1 - expit(-2.0)), rel=1e-12)
    np.testing.assert_allclose(dz, [[expit(0.5) - 1, expit(-2.0), 0, 0]], rtol=1e-12)
    np.testing.assert_allclose(Reconstruction(BinaryCrossEntropy()).link(z), [[expit(0.5), expit(-2.0), 1, 0]])


def fit(model: Model, x: Array, y: Array, steps: int, rate: float) -> tuple[float, float]:
    """The mean loss before and after some steps of gradient descent."""
    vec = model.init(np.random.default_rng(0), np.float64)
    history = []
    for _ in range(steps):
        grad = np.zeros_like(vec)
        sums, _ = model.accumulate(vec, grad, x, y, None, Ctx(train=True))
        vec -= rate / sums.weight * grad
        history.append(sums.loss / sums.weight)
    return history[0], history[-1]


def test_an_auto_encoder_learns_its_input() -> None:
    nodes = [Node("code", "input", Sequential([Dense(2), Tanh()])), Node("decoded", "code", Dense(6))]
    model = Model(Graph(nodes, ("decoded", "input")), Reconstruction(), (6,))
    x = 0.3 * RNG.standard_normal((40, 2)) @ RNG.standard_normal((2, 6))  # of two dimensions
    first, last = fit(model, x, np.zeros(40), 600, 1.0)
    assert last < 0.05 * first


def test_triplets_pull_like_to_like() -> None:
    nodes = [Node("a", "x", Dense(2)), Node("p", "y", shares="a"), Node("n", "z", shares="a")]
    inputs = [Input(name, (3,)) for name in "xyz"]
    model = Model(Graph(nodes, ("a", "p", "n"), inputs), Triplet(), (9,))
    kinds = RNG.integers(0, 2, 50)
    rows = [RNG.standard_normal((50, 3)) + 2 * k[:, None] for k in (kinds, kinds, 1 - kinds)]
    first, last = fit(model, np.concatenate(rows, axis=1), np.zeros(50), 100, 0.05)
    assert last < 0.7 * first


def test_joint_is_the_sum_of_the_means() -> None:
    parts = [SoftmaxCrossEntropy(), MSE(), Huber(0.5)]
    shapes, weights = [(3,), (2, 2), (1,)], (1.0, 0.5, 2.0)
    joint, z = Joint(parts, shapes, weights), RNG.standard_normal((5, 8))
    targets = [RNG.integers(0, 3, 5), RNG.standard_normal((5, 2, 2)), RNG.standard_normal((5, 1))]
    y, w = np.column_stack([t.reshape(5, -1) for t in targets]), 0.5 + RNG.random(5)
    total, weight, dz = joint(z, y, w)
    expected, slopes = 0.0, []
    for loss, shape, t, c, at in zip(parts, shapes, targets, weights, ([0, 3], [3, 7], [7, 8]), strict=True):
        value, divisor, d = loss(z[:, slice(*at)].reshape(5, *shape), t, w)
        expected += c * value / divisor
        slopes.append(c * d.reshape(5, -1) / divisor)
    assert total / weight == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(dz / weight, np.concatenate(slopes, axis=1), rtol=1e-12)
    linked = joint.link(z)
    np.testing.assert_allclose(linked[:, :3], softmax(z[:, :3], axis=1), rtol=1e-12)
    assert np.array_equal(linked[:, 3:], z[:, 3:])
    assert Joint(parts, shapes)(z, y, w)[0] == Joint(parts, shapes, (1, 1, 1))(z, y, w)[0]


@pytest.mark.parametrize("loss", [Triplet(), Reconstruction(), Joint([MSE()], [(2,)])], ids=lambda v: type(v).__name__)
def test_no_metric_goes_with_what_is_not_compared(loss: Loss) -> None:
    assert default_metrics(loss) == ()
    assert MetricSet(loss, (), (6,)).names == ("loss",)
    with pytest.raises(ValueError, match=rf"No metric goes with {type(loss).__name__}"):
        MetricSet(loss, (SquaredError(),), (6,))


@pytest.mark.parametrize("loss", [Hinge(), BinaryHinge()], ids=lambda v: type(v).__name__)
def test_accuracy_goes_with_margins(loss: Loss) -> None:
    (metric,) = default_metrics(loss)
    assert isinstance(metric, Accuracy)
    binary = isinstance(loss, BinaryHinge)
    metrics = MetricSet(loss, (metric,), (1,) if binary else (3,))
    acc, y = metrics.zeros(), np.array([1, 0, 1])
    z = np.array([[0.1], [0.1], [3.0]]) if binary else np.array([[0.0, 1, 0], [0, 0, 1], [0, 2, 1]])
    metrics.update(acc, z, y, None)
    assert metrics.results(acc)["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hinge(-1), r"Hinge\(margin=-1\): the margin must be finite and at least 0"),
        (lambda: Triplet(np.nan), r"Triplet\(margin=nan\)"),
        (lambda: BinaryHinge(np.inf), r"BinaryHinge\(margin=inf\)"),
        (lambda: CosineDistance(0), r"CosineDistance\(eps=0\)"),
        (lambda: Hinge()(np.ones((2, 3)), np.array([0, 3]), None), "row 1 has 3"),
        (lambda: Hinge()(np.ones((2, 3)), np.array([0.0, 1.0]), None), "Hinge needs integer labels"),
        (lambda: Hinge().check((1,)), r"Hinge needs outputs of shape \(K,\) with K >= 2"),
        (lambda: BinaryHinge()(np.ones((2, 1)), np.array([0, -1]), None), "takes targets 0 and 1; got -1"),
        (lambda: KLDivergence()(np.ones((2, 2)), np.array([[0.5, 0.5], [0.5, 0.6]]), None), "row 1 is"),
        (lambda: KLDivergence()(np.ones((1, 2)), np.array([[-0.5, 1.5]]), None), "that sum to 1; row 0"),
        (lambda: KLDivergence()(np.ones((1, 2)), np.array([[np.nan, 1.0]]), None), "row 0"),
        (lambda: KLDivergence().check((1,)), "K >= 2"),
        (lambda: CosineDistance().check((3,), target_shape=(2,)), r"the net gives \(3,\) a row, the target has \(2,\)"),
        (lambda: Triplet().check((4,)), r"Triplet needs outputs of shape \(3 D,\)"),
        (lambda: Triplet().check((2, 3)), r"Triplet needs outputs of shape \(3 D,\)"),
        (lambda: Triplet().check((6,), target_shape=(6,)), "Triplet reads no targets"),
        (lambda: Reconstruction().check((3,)), r"outputs of shape \(2 S,\)"),
        (lambda: Reconstruction(SoftmaxCrossEntropy()), "compares entry by entry"),  # type: ignore[arg-type]
        (lambda: Joint([], []), "a shape and a weight for each loss"),
        (lambda: Joint([MSE()], [(1,), (2,)]), "got 1 losses, 2 shapes, 1 weights"),
        (lambda: Joint([MSE()], [(1,)], [-1]), "must be finite and at least 0"),
        (lambda: Joint([SoftmaxCrossEntropy()], [(1,)]), "SoftmaxCrossEntropy needs outputs"),
        (lambda: Joint([MAE()], [(2,)]).check((3,)), r"needs outputs of shape \(2,\).*got \(3,\)"),
        (lambda: Joint([MAE()], [(2,)]).check((2,), target_shape=(1,)), r"needs targets of shape \(2,\).*got \(1,\)"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
