"""Model and Layout: one flat vector, sums that add up over shards, predictions, and early refusals."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparkdl.nn import (
    MAE,
    MSE,
    Array,
    BatchNorm,
    BinaryCrossEntropy,
    Ctx,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Layout,
    LogSoftmax,
    Loss,
    Model,
    Ones,
    ParamSpec,
    ReLU,
    Sequential,
    Shape,
    Sigmoid,
    Softmax,
    SoftmaxCrossEntropy,
    Tanh,
    Zeros,
)

SPECS = {
    "a/W": ParamSpec((2, 3), Ones()),
    "a/mean": ParamSpec((3,), Zeros(), trainable=False),
    "b/c/W": ParamSpec((4,), Ones()),
    "b/scale": ParamSpec((), Ones()),
}


def classifier(**kwargs: Any) -> Model:
    net = Sequential([Flatten(), Dense(5), BatchNorm(), Tanh(), Dense(3)])
    return Model(net, SoftmaxCrossEntropy(**kwargs), (2, 2))


def batch(rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 2, 2)), rng.integers(0, 3, rows), 0.5 + rng.random(rows)


# ---- layout


def test_trainable_parameters_come_first_in_the_layers_order() -> None:
    layout = Layout(SPECS)
    assert [(s.name, s.start, s.stop) for s in layout.segments] == [
        ("a/W", 0, 6),
        ("b/c/W", 6, 10),
        ("b/scale", 10, 11),
        ("a/mean", 11, 14),
    ]
    assert (layout.size, layout.num_trainable) == (14, 11)
    assert layout.shapes() == {"a/W": (2, 3), "b/c/W": (4,), "b/scale": (), "a/mean": (3,)}


def test_views_and_tree_share_the_vector() -> None:
    layout, vec = Layout(SPECS), np.arange(14.0)
    layout.views(vec)["a/mean"][...] = -1
    assert vec[11:].tolist() == [-1, -1, -1]
    tree = layout.tree(vec)
    assert tree["a"]["W"].tolist() == [[0, 1, 2], [3, 4, 5]]
    tree["b"]["scale"][...] = 7
    tree["b"]["c"]["W"] += 1
    assert vec[6:11].tolist() == [7, 8, 9, 10, 7]


def test_a_layout_of_nothing() -> None:
    layout = Layout({})
    assert (layout.size, layout.num_trainable, layout.tree(np.empty(0)), layout.views(np.empty(0))) == (0, 0, {}, {})


def test_init_draws_each_parameter_in_the_asked_dtype() -> None:
    assert Layout(SPECS).init(np.random.default_rng(0)).tolist() == [1] * 11 + [0] * 3
    model = classifier()
    for dtype in (np.float32, np.float64):
        params = model.init(np.random.default_rng(5), dtype)
        assert params.dtype == dtype
        assert params.shape == (model.layout.size,)
        assert np.array_equal(params, model.init(np.random.default_rng(5), dtype))
        assert not np.array_equal(params, model.init(np.random.default_rng(6), dtype))


# ---- passes


def test_a_linear_regression_by_hand() -> None:
    model = Model(Dense(1), MSE(), (2,))
    params = np.array([2.0, 3.0, 1.0])  # W, b
    grad = np.full(3, 100.0)
    x, y, w = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, 5.0]), np.array([1.0, 10.0])
    sums, z = model.accumulate(params, grad, x, y, w, Ctx(train=True))
    assert z.tolist() == [[3], [4]]
    assert sums == (1 * 1 + 10 * 1, 11.0, 2)
    assert grad.tolist() == [100 + 2, 100 - 20, 100 + 2 - 20]
    assert model.predict(params, x).tolist() == [[3], [4]]


def test_sums_over_shards_equal_the_whole() -> None:
    model = Model(Sequential([Flatten(), Dense(5), Tanh(), Dense(3)]), SoftmaxCrossEntropy(), (2, 2))
    params = model.init(np.random.default_rng(0), np.float64)
    x, y, w = batch(7)
    whole, parts = np.zeros_like(params), np.zeros_like(params)
    sums, _ = model.accumulate(params, whole, x, y, w, Ctx(train=True))
    cuts = [slice(0, 1), slice(1, 1), slice(1, 7)]
    shards = [model.accumulate(params, parts, x[at], y[at], w[at], Ctx(train=True))[0] for at in cuts]
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.sum(shards, axis=0), sums, rtol=1e-12)


def test_a_batch_of_no_rows_changes_nothing() -> None:
    model = classifier()
    params = model.init(np.random.default_rng(0))
    grad = np.arange(params.size, dtype=np.float32)
    x, y, w = batch(0)
    sums, z = model.accumulate(params, grad, x, y, w, Ctx(train=True))
    assert sums == (0.0, 0.0, 0)
    assert z.shape == (0, 3)
    assert z.dtype == np.float32
    assert np.array_equal(grad, np.arange(params.size))
    assert model.predict(params, x).shape == (0, 3)


def test_buffers_carry_rows_times_their_next_value() -> None:
    model = classifier()
    params = model.init(np.random.default_rng(0), np.float64)
    x, y, _ = batch(6)
    grad = np.zeros_like(params)
    sums, _ = model.accumulate(params, grad, x, y, None, Ctx(train=True))
    after = model.layout.views(grad / sums.rows)["batch_norm_2/mean"]
    momentum = model.net.layers[2].momentum  # type: ignore[attr-defined]
    h = x.reshape(6, 4) @ model.layout.views(params)["dense_1/W"]
    np.testing.assert_allclose(after, (1 - momentum) * h.mean(axis=0), rtol=1e-12)


def test_passes_leave_parameters_alone_and_follow_their_dtype() -> None:
    model = classifier()
    params = model.init(np.random.default_rng(0))
    params.flags.writeable = False
    x, y, w = batch(4)
    grad = np.zeros_like(params)
    sums, z = model.accumulate(params, grad, x, y, w, Ctx(train=True))  # x is float64
    assert (z.dtype, model.predict(params, x).dtype) == (np.float32, np.float32)
    assert isinstance(sums.loss, float)
    raw = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    assert model.predict(params, raw).dtype == np.float32


def test_predictions_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    params = model.init(np.random.default_rng(0), np.float64)
    x, _, _ = batch(7)
    whole = model.predict(params, x)
    np.testing.assert_allclose(whole.sum(axis=1), 1)
    monkeypatch.setattr("sparkdl.nn.model.CHUNK_ROWS", 3)
    np.testing.assert_allclose(model.predict(params, x), whole, rtol=1e-12)


@dataclass(frozen=True)
class Sizes(Layer):
    """Passes everything on, and notes how many rows come at once."""

    seen: list[int]

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Any, x: Any, ctx: Ctx) -> Any:
        self.seen.append(len(x))
        return x, None

    def backward(self, p: Any, cache: Any, dy: Any, g: Any, ctx: Ctx) -> Any:
        return dy


def test_fewer_rows_at_once_where_they_are_large() -> None:
    """1024 photographs would need gigabytes in every layer."""
    for shape, expected in (((4,), [1024, 476]), ((512, 512, 4), [8, 8, 4])):
        seen: list[int] = []
        model = Model(
            Sequential((Sizes(seen), GlobalAvgPool() if len(shape) == 3 else Dense(4), Dense(1))), MAE(), shape
        )
        rows = sum(expected)
        x = np.broadcast_to(np.uint8(0), (rows, *shape))
        assert model.predict(model.init(np.random.default_rng(0)), x).shape == (rows, 1)
        assert seen == expected


def test_predictions_are_made_in_evaluation_mode() -> None:
    model = Model(Dropout(1.0), MAE(), (2,))
    assert model.predict(np.empty(0), np.ones((1, 2))).tolist() == [[1, 1]]


def test_models_travel_small() -> None:
    model = Model(Dense(1000), MSE(), (1000,))
    assert model.layout.size == 1_001_000
    copy = pickle.loads(pickle.dumps(model))
    assert copy == model
    assert copy.layout.shapes() == model.layout.shapes()
    assert len(pickle.dumps(model)) < 4096


# ---- refusals


@pytest.mark.parametrize(
    ("net", "loss"),
    [
        (Sequential([Dense(3), Softmax()]), SoftmaxCrossEntropy()),
        (Sequential([Dense(3), Sequential([Dense(3), Softmax()])]), SoftmaxCrossEntropy()),
        (Softmax(), SoftmaxCrossEntropy()),
        (Sequential([Dense(3), Sigmoid()]), BinaryCrossEntropy()),
    ],
    ids=["last", "nested", "only", "sigmoid"],
)
def test_a_link_before_a_loss_from_logits_is_refused(net: Layer, loss: Loss) -> None:
    with pytest.raises(ValueError, match=r"takes logits.*the net ends in S.*Leave that layer out"):
        Model(net, loss, (3,))


@pytest.mark.parametrize(
    ("net", "loss"),
    [
        (Sequential([Dense(3), LogSoftmax()]), SoftmaxCrossEntropy()),  # log p are logits of p
        (Sequential([Softmax(), Dense(3)]), SoftmaxCrossEntropy()),
        (Sequential([Dense(3), Sigmoid()]), MSE()),
        (Sequential([Dense(3), ReLU()]), SoftmaxCrossEntropy()),
        (Sequential([]), SoftmaxCrossEntropy()),
    ],
    ids=["log-softmax", "inside", "regression", "relu", "empty"],
)
def test_other_ends_are_taken(net: Layer, loss: Loss) -> None:
    assert Model(net, loss, (3,)).out_shape == (3,)


def test_a_net_that_does_not_fit_is_refused_when_the_model_is_made() -> None:
    with pytest.raises(ValueError, match="Flatten first"):
        Model(Dense(3), SoftmaxCrossEntropy(), (8, 8))
    with pytest.raises(ValueError, match=r"needs outputs of shape \(K,\)"):
        Model(Sequential([]), SoftmaxCrossEntropy(), (8, 8))
    with pytest.raises(ValueError, match="2 class_weights for 3 outputs"):
        classifier(class_weights=(1.0, 2.0))


def test_an_input_of_another_shape_is_refused_even_by_flatten() -> None:
    model = classifier()
    params = model.init(np.random.default_rng(0))
    for shape in ((3, 4), (3, 4, 1), (0, 4), (4,)):
        with pytest.raises(ValueError, match=r"takes x of shape \(N, 2, 2\); got"):
            model.predict(params, np.zeros(shape))
        with pytest.raises(ValueError, match=r"takes x of shape \(N, 2, 2\); got"):
            model.accumulate(params, params.copy(), np.zeros(shape), np.zeros(len(np.zeros(shape)), int), None, Ctx())


def test_the_shape_of_the_input_becomes_a_tuple() -> None:
    model = Model(Dense(1), MSE(), [3])  # type: ignore[arg-type]  # as JSON has it
    assert model.in_shape == (3,)
    assert hash(model) == hash(Model(Dense(1), MSE(), (3,)))
