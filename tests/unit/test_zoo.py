"""The networks of the zoo: parameter counts known from elsewhere, options on and off, refusals, and that they learn."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from sparkdl.nn import BatchNorm, Ctx, Dropout, Layer, Layout, Model, Sequential, SoftmaxCrossEntropy
from sparkdl.nn.codec import decode_layer, encode
from sparkdl.nn.zoo import ZOO, cnn, lenet5, mlp


def size(net: Layer, in_shape: tuple[int, ...]) -> int:
    return Layout(net.specs(in_shape)).size


def kinds(net: Layer) -> list[type]:
    assert isinstance(net, Sequential)
    return [type(layer) for layer in net.layers]


@pytest.mark.parametrize("side", [28, 32])
def test_lenet5_has_the_parameters_of_the_literature(side: int) -> None:
    # 156 + 2,416 + 48,120 + 10,164 + 850, whether the frame is in the image or in the padding.
    assert size(lenet5((side, side, 1), 10), (side, side, 1)) == 61_706


def test_mlp_is_a_chain_of_dense_layers() -> None:
    assert size(mlp((8, 8), 10, hidden=(32, 16)), (8, 8)) == 64 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10
    assert size(mlp((5,), 3, hidden=()), (5,)) == 5 * 3 + 3


def test_cnn_halves_the_image_with_each_convolution() -> None:
    expected = (9 * 32 + 32) + (9 * 32 * 64 + 64) + (7 * 7 * 64 * 128 + 128) + (128 * 10 + 10)
    assert size(cnn((28, 28, 1), 10), (28, 28, 1)) == expected
    normed = cnn((28, 28, 1), 10, batch_norm=True)
    assert size(normed, (28, 28, 1)) == expected - (32 + 64) + 4 * (32 + 64)  # no biases; gamma, beta, mean, var


@pytest.mark.parametrize("build", [mlp, cnn])
def test_options_are_off_unless_asked_for(build: Callable[..., Layer]) -> None:
    plain, dropped = build((8, 8, 1), 3), build((8, 8, 1), 3, dropout=0.5)
    assert not {Dropout, BatchNorm} & set(kinds(plain))
    assert [k for k in kinds(dropped) if k is not Dropout] == kinds(plain)
    assert kinds(dropped).count(Dropout) == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cnn((28, 28), 10), r"Conv2D expects samples of shape \(H, W, C\); got \(28, 28\)"),
        (lambda: cnn((2, 2, 1), 10), r"MaxPool2D: a window of \(2, 2\)"),
        (lambda: lenet5((8, 8, 1), 10), r"Conv2D: a window of \(5, 5\)"),
        (lambda: lenet5((), 10), r"Conv2D expects samples of shape \(H, W, C\)"),
        (lambda: mlp((4,), 0), "units must be an integer of at least 1"),
        (lambda: mlp((4,), 2, dropout=1.5), "the rate is a probability"),
    ],
)
def test_what_does_not_fit_is_refused_when_built(build: Callable[[], Layer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", ZOO)
def test_networks_learn_which_quadrant_is_bright(name: str) -> None:
    """Four classes, one blurred bright corner each: any of these nets separates them within a few gradient steps."""
    rng = np.random.default_rng(0)
    y = np.arange(64) % 4
    x = rng.standard_normal((64, 16, 16, 1)) * 0.3
    for image, label in zip(x, y, strict=True):
        image[8 * (label // 2) :][:8, 8 * (label % 2) :][:, :8] += 1
    net = ZOO[name]((16, 16, 1), 4)
    model = Model(net, SoftmaxCrossEntropy(), (16, 16, 1))
    assert decode_layer(json.loads(json.dumps(encode(net)))) == net
    params = model.init(rng)
    for _ in range(40):
        grad = np.zeros_like(params)
        sums, _ = model.accumulate(params, grad, x, y, None, Ctx(train=True, rng=rng))
        params -= np.float32(0.1 / sums.weight) * grad
    assert np.mean(model.predict(params, x).argmax(axis=1) == y) == 1.0
