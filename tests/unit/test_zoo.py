"""The networks of the zoo: parameter counts known from elsewhere, options on and off, refusals, and that they learn."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from sparkdl.nn import (
    Array,
    BatchNorm,
    Container,
    Conv2D,
    Ctx,
    Dropout,
    GlobalAvgPool,
    Layer,
    Layout,
    Model,
    Residual,
    Sequential,
    SoftmaxCrossEntropy,
)
from sparkdl.nn.codec import decode_layer, encode
from sparkdl.nn.zoo import (
    ZOO,
    alexnet,
    cnn,
    densenet121,
    googlenet,
    inception_v3,
    lenet5,
    lstm_classifier,
    mlp,
    mobilenet_v1,
    resnet18,
    resnet20,
    resnet50,
    transformer_classifier,
    vgg11,
    vgg11_bn,
)
from tests.catalogue import NETWORKS, NetworkCase


def size(net: Layer, in_shape: tuple[int, ...]) -> int:
    return Layout(net.specs(in_shape)).size


def kinds(net: Layer) -> list[type]:
    assert isinstance(net, Sequential)
    return [type(layer) for layer in net.layers]


def leaves(net: Layer, in_shape: tuple[int, ...]) -> list[Layer]:
    """The layers that are no containers, in the order of their forward passes."""
    if not isinstance(net, Container):
        return [net]
    return [leaf for _, child, shape in net.children(in_shape) for leaf in leaves(child, shape)]


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.id)
def test_networks_have_the_published_numbers_of_parameters(case: NetworkCase) -> None:
    net = ZOO[case.id](case.in_shape, case.classes)
    assert Layout(net.specs(case.in_shape)).num_trainable == case.parameters
    assert net.out_shape(case.in_shape) == (case.classes,)


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_small_residual_networks_add_up(depth: int, millions: float) -> None:
    n = (depth - 2) // 6  # blocks of two convolutions in each of three stages
    blocks = sum(9 * w * w * 2 * n + 4 * w * n for w in (16, 32, 64)) - 9 * (
        16 * 32 + 32 * 64
    )  # two begin at half width
    projections = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    expected = 27 * 16 + 2 * 16 + blocks + 65 * 10
    plain, projected = (ZOO[f"resnet{depth}"]((32, 32, 3), 10, projection=on) for on in (False, True))
    assert Layout(plain.specs((32, 32, 3))).num_trainable == expected
    assert Layout(projected.specs((32, 32, 3))).num_trainable == expected + projections
    assert abs(expected / 1e6 - millions) < 0.03  # table 6 of the paper


IMAGE_NETS = sorted(set(ZOO) - {"lstm_classifier", "transformer_classifier"})


@pytest.mark.parametrize("name", IMAGE_NETS)
@pytest.mark.parametrize("in_shape", [(28, 28, 1), (32, 32, 3), (224, 224, 3)], ids=str)
def test_networks_take_small_and_large_images(name: str, in_shape: tuple[int, ...]) -> None:
    assert ZOO[name](in_shape, 10).out_shape(in_shape) == (10,)


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        (resnet18, {63: 8, 64: 2}),
        (googlenet, {63: 16, 64: 2}),
        (densenet121, {63: 7, 64: 2}),
        (mobilenet_v1, {63: 4, 64: 2}),
        (inception_v3, {35: 8, 75: 1, 299: 8}),
    ],
)
def test_the_stem_goes_by_the_size_of_the_images(build: Callable[..., Layer], sizes: dict[int, int]) -> None:
    """Side of the images -> side of what the last pooling sees."""
    for side, last in sizes.items():
        net, shape = build((side, side, 3), 10), (side, side, 3)
        assert isinstance(net, Sequential)
        seen = {type(child.layer): child.in_shape for child in net.children(shape)}
        assert seen[GlobalAvgPool][:2] == (last, last)


@pytest.mark.parametrize(("build", "stem"), [(alexnet, (11, 4)), (resnet18, (7, 2)), (vgg11, (3, 1))])
def test_large_images_meet_the_stem_of_the_paper(build: Callable[..., Layer], stem: tuple[int, int]) -> None:
    first, small = (leaves(build((side, side, 3), 2), (side, side, 3))[0] for side in (224, 32))
    assert isinstance(first, Conv2D)
    assert isinstance(small, Conv2D)
    assert (first.kernel, first.stride) == stem
    assert (small.kernel, small.stride) == (3, 1)


@pytest.mark.parametrize("build", [resnet18, resnet20, resnet50])
def test_residual_blocks_start_as_their_shortcuts_if_asked_to(build: Callable[..., Layer]) -> None:
    shape = (32, 32, 3)
    for zero_init in (False, True):
        net = build(shape, 10, zero_init=zero_init)
        assert isinstance(net, Sequential)
        blocks = [child for child in net.children(shape) if isinstance(child.layer, Residual)]
        rng = np.random.default_rng(0)
        for block in (blocks[0], blocks[-1]):
            layout = Layout(block.layer.specs(block.in_shape))
            x = rng.standard_normal((1, *block.in_shape))
            body, p = block.layer.body, layout.tree(layout.init(rng, np.float64))
            assert body.forward(p["body"], x, Ctx())[0].any() == (not zero_init)


def passes(net: Layer, x: Array) -> dict[str, Array]:
    """The gradient of each parameter after a forward and a backward pass."""
    rng, layout = np.random.default_rng(0), Layout(net.specs(x.shape[1:]))
    params, g = layout.init(rng, np.float32), np.zeros(layout.size, np.float32)
    z, cache = net.forward(layout.tree(params), x, Ctx(train=True, rng=rng))
    assert (z.shape, z.dtype) == ((len(x), 10), np.float32)
    dz = rng.standard_normal(z.shape).astype(np.float32)
    net.backward(layout.tree(params), cache, dz, layout.tree(g), Ctx(train=True, dx=False))
    assert np.isfinite(g).all()
    views = layout.views(g)
    return {s.name: views[s.name] for s in layout.trainable_segments}


@pytest.mark.parametrize(
    "build", [densenet121, googlenet, inception_v3, mobilenet_v1, resnet20, vgg11_bn], ids=lambda f: f.__name__
)
def test_gradients_reach_all_parameters_of_networks_for_images(build: Callable[..., Layer]) -> None:
    shape = (28, 28, 1)
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    assert not [name for name, g in passes(build(shape, 10), x).items() if not g.any()]


@pytest.mark.parametrize("build", [lstm_classifier, transformer_classifier], ids=lambda f: f.__name__)
@pytest.mark.parametrize("padding", [False, True])
def test_tokens_that_are_padding_change_nothing(build: Callable[..., Layer], padding: bool) -> None:
    net = build((6,), 10, vocabulary=7, dim=8, padding=padding)
    layout, rng = Layout(net.specs((6,))), np.random.default_rng(2)
    p = layout.tree(layout.init(rng, np.float64))
    x = rng.integers(1, 7, (1, 6)).astype(np.float64)
    x[:, 4:] = 0
    before = net.forward(p, x, Ctx())[0]
    p["embedding_0"]["E"][0] = rng.standard_normal(p["embedding_0"]["E"][0].shape)
    assert np.array_equal(net.forward(p, x, Ctx())[0], before) == padding
    assert not [name for name, g in passes(net, x.astype(np.float32)).items() if not g.any()]


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


@pytest.mark.parametrize(
    ("build", "in_shape"),
    [
        (alexnet, (224, 224, 3)),
        (googlenet, (224, 224, 3)),
        (inception_v3, (224, 224, 3)),
        (mobilenet_v1, (224, 224, 3)),
        (vgg11, (224, 224, 3)),
        (lstm_classifier, (5, 4)),
        (transformer_classifier, (5, 4)),
    ],
)
def test_dropout_is_an_option_that_changes_nothing_else(build: Callable[..., Layer], in_shape: tuple[int, ...]) -> None:
    plain, dropped = (leaves(build(in_shape, 3, dropout=rate), in_shape) for rate in (0, 0.25))
    assert Dropout not in map(type, plain)
    assert [layer for layer in dropped if layer != Dropout(0.25)] == plain
    assert len(dropped) > len(plain)


def test_the_width_of_mobilenet_scales_its_filters() -> None:
    # Keras' summary of MobileNet at alpha = 0.25: 475,544 parameters of which 5,472 are statistics.
    assert Layout(mobilenet_v1((224, 224, 3), 1000, width=0.25).specs((224, 224, 3))).num_trainable == 470_072


def test_vgg_takes_dense_layers_of_other_widths() -> None:
    shape, features = (32, 32, 3), 9_220_480  # torchvision's vgg11 without its classifier
    assert size(vgg11(shape, 10), shape) == features + 513 * 512 + 513 * 10
    assert size(vgg11(shape, 10, hidden=(64, 32)), shape) == features + 513 * 64 + 65 * 32 + 33 * 10


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
        (lambda: inception_v3((64, 64, 3), 2), r"Conv2D: a window of \(3, 3\)"),
        (lambda: resnet18((32,), 2), r"Conv2D expects samples of shape \(H, W, C\)"),
        (lambda: mobilenet_v1((32, 32, 3), 2, width=0), "the factor of the filters must be finite and above 0"),
        (lambda: lstm_classifier((6,), 2), r"sequences \(T, D\), or tokens \(T,\) with their vocabulary"),
        (lambda: lstm_classifier((6, 4), 2, vocabulary=9), r"got samples of shape \(6, 4\) with vocabulary=9"),
        (lambda: transformer_classifier((6, 4), 2, padding=True), "give the size of their vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused_when_built(build: Callable[[], Layer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet5"])
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
