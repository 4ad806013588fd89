"""Training on images that change from epoch to epoch, and on mixtures of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data import Augmentation, ColorJitter, DataSpec, Flip, RandomCrop
from sparkdl.errors import ConfigError
from sparkdl.ml import TrainedModel, fit
from sparkdl.nn import MSE, Array, Dense, Flatten, Loss, Sequential, SoftmaxCrossEntropy
from sparkdl.optim import SGD
from sparkdl.train import Training
from sparkdl.train.mixup import Mixture, mixture

SPEC = DataSpec(("pixels",), "label", shape=(4, 5, 3), scale=1 / 255)
RNG = np.random.default_rng(3)
TABLE = pa.table({"pixels": list(RNG.integers(0, 256, (40, 60), np.uint8)), "label": RNG.integers(0, 2, 40)})


def train(workers: int, augment: tuple[Augmentation, ...] = (), **settings: Any) -> TrainedModel:
    training = Training(epochs=3, batch_size=8, augment=augment, **settings)
    return fit(TABLE, Sequential([Flatten(), Dense(2)]), SPEC, optimizer=SGD(0.1), training=training, workers=workers)


def test_rows_change_alike_on_any_number_of_workers() -> None:
    steps = (RandomCrop(1), Flip(), ColorJitter())
    plain, one, three = train(1), train(1, steps), train(3, steps)
    np.testing.assert_allclose(one.params, three.params, rtol=1e-4, atol=1e-6)
    assert not np.allclose(one.params, plain.params, atol=1e-3)


def test_what_leaves_images_as_they_are_changes_nothing() -> None:
    steps = (RandomCrop(0), Flip(0))
    assert np.array_equal(train(2, steps).params, train(2).params)


def test_samples_that_are_no_images_are_refused_before_training() -> None:
    table = pa.table({"pixels": [[1.0, 2.0]] * 4, "label": [0, 1, 0, 1]})
    with pytest.raises(ConfigError, match=r"training.augment is for images \(H, W, C\); samples have shape \(2,\)"):
        fit(table, Dense(2), DataSpec(("pixels",), "label"), training=Training(augment=(Flip(),)))


def test_mixup_trains_another_model_and_the_same_one_twice() -> None:
    first, second = train(2, mixup=0.5), train(2, mixup=0.5)
    assert np.array_equal(first.params, second.params)
    assert not np.allclose(first.params, train(2).params, atol=1e-3)


def test_mixtures_of_rows() -> None:
    of = mixture(0.4, 0, 1, np.arange(10, 16))
    assert sorted(of.partner) == list(range(6))
    assert (of.partner != np.arange(6)).all()
    assert ((of.share >= 0) & (of.share <= 1)).all()
    x = RNG.random((6, 2, 3)).astype(np.float32)
    mixed = of.inputs(x)
    assert mixed.dtype == np.float32
    for i, j in enumerate(of.partner):
        np.testing.assert_allclose(mixed[i], of.share[i] * x[i] + (1 - of.share[i]) * x[j], rtol=1e-6)
    again = mixture(0.4, 0, 1, np.arange(12, 16))
    assert np.array_equal(again.share, of.share[2:])  # a row's own, whoever else is there
    assert len(mixture(0.4, 0, 1, np.arange(0)).share) == 0
    assert mixture(0.4, 0, 1, np.array([3])).partner.tolist() == [0]


def test_shares_follow_the_beta_distribution() -> None:
    share = mixture(0.5, 0, 0, np.arange(4000)).share
    assert abs(share.mean() - 0.5) < 0.03
    assert abs(share.var() - 1 / 8) < 0.01  # 1 / (4 (2 alpha + 1))


@pytest.mark.parametrize(
    ("loss", "y", "targets"),
    [
        (SoftmaxCrossEntropy(), np.array([0, 2, 1]), np.eye(3)[[0, 2, 1]]),
        (MSE(), RNG.random((3, 3)), None),
    ],
)
@pytest.mark.parametrize("w", [None, np.array([1.0, 2.0, 0.5])])
def test_the_loss_of_mixtures(loss: Loss, y: Array, targets: Array | None, w: Array | None) -> None:
    """By the definition, one row at a time; cross-entropy also as that of the mixed distribution."""
    of, z = Mixture(np.array([1.0, 0.25, 0.0]), np.array([1, 2, 0])), RNG.standard_normal((3, 3))
    total, weight, dz = of.loss(loss, z, y, w)
    weights = np.ones(3) if w is None else w
    expected, expected_weight, expected_dz = 0.0, 0.0, np.zeros((3, 3))
    for i, (share, j) in enumerate(zip(of.share, of.partner, strict=True)):
        for k, part in ((i, share), (j, 1 - share)):
            value, n, d = loss(z[i : i + 1], y[k : k + 1], None)
            expected, expected_weight = expected + part * weights[k] * value, expected_weight + part * weights[k] * n
            expected_dz[i] += part * weights[k] * d[0]
    np.testing.assert_allclose([total, weight], [expected, expected_weight])
    np.testing.assert_allclose(dz, expected_dz)
    if targets is not None and w is None:
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        soft = of.share[:, None] * targets + (1 - of.share[:, None]) * targets[of.partner]
        assert total == pytest.approx(-(soft * log_p).sum())
