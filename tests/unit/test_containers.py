"""Containers: names, shapes, sums and joins by hand, errors, and where a profile's time is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from sparkdl.nn import (
    MSE,
    Checkpointed,
    Concat,
    Conv2D,
    Ctx,
    Dense,
    Graph,
    Layout,
    Model,
    Node,
    Params,
    ParamSpec,
    ReLU,
    Residual,
    Sequential,
    Tanh,
    Zeros,
)
from sparkdl.nn.containers import run_backward, run_forward
from sparkdl.nn.layer import Layer
from sparkdl.ops.algorithms import ALGORITHMS

NESTED = Sequential([Dense(3), Residual(Sequential([Tanh(), Dense(3)]), Dense(3)), Concat([Dense(1), ReLU()])])


def test_names_join_by_slash_and_count_all_layers() -> None:
    assert list(NESTED.specs((2,))) == [
        "dense_0/W",
        "dense_0/b",
        "residual_1/body/dense_1/W",
        "residual_1/body/dense_1/b",
        "residual_1/shortcut/W",
        "residual_1/shortcut/b",
        "concat_2/dense_0/W",
        "concat_2/dense_0/b",
    ]
    assert NESTED.out_shape((2,)) == (4,)
    assert NESTED.madds((2,)) == 2 * 3 + 3 * 3 + 3 * 3 + 3 * 1


def test_parameters_reach_the_layer_that_names_them() -> None:
    net = Sequential([Dense(1, bias=False), Dense(1, bias=False)])
    p: Params = {"dense_0": {"W": np.array([[3.0]])}, "dense_1": {"W": np.array([[5.0]])}}
    g: Params = {"dense_0": {"W": np.zeros((1, 1))}, "dense_1": {"W": np.zeros((1, 1))}}
    y, cache = net.forward(p, np.array([[2.0]]), Ctx())
    assert y.tolist() == [[30]]
    assert net.backward(p, cache, np.array([[1.0]]), g, Ctx()).tolist() == [[15]]
    assert (g["dense_0"]["W"].item(), g["dense_1"]["W"].item()) == (2 * 5, 2 * 3)


@pytest.mark.parametrize(
    ("layer", "y", "dx"),
    [
        (Residual(Dense(1, bias=False)), [[2 * 3 + 2]], [[3 + 1]]),
        (Residual(Dense(1, bias=False), Sequential([])), [[2 * 3 + 2]], [[3 + 1]]),
        (Residual(Sequential([]), Dense(1, bias=False)), [[2 * 3 + 2]], [[3 + 1]]),
        (Residual(Sequential([])), [[2 + 2]], [[1 + 1]]),
    ],
    ids=["identity", "empty-shortcut", "empty-body", "twice"],
)
def test_residual_adds(layer: Residual, y: list[list[float]], dx: list[list[float]]) -> None:
    p: Params = {"body": {"W": np.array([[3.0]])}, "shortcut": {"W": np.array([[3.0]])}}
    g: Params = {"body": {"W": np.zeros((1, 1))}, "shortcut": {"W": np.zeros((1, 1))}}
    out, cache = layer.forward(p, np.array([[2.0]]), Ctx())
    assert out.tolist() == y
    assert layer.backward(p, cache, np.array([[1.0]]), g, Ctx()).tolist() == dx


def test_concat_joins_along_the_last_axis() -> None:
    layer = Concat([Sequential([]), Dense(1, bias=False), Sequential([])])
    p: Params = {"dense_1": {"W": np.array([[3.0], [0.0]])}}
    g: Params = {"dense_1": {"W": np.zeros((2, 1))}}
    y, cache = layer.forward(p, np.array([[1.0, 2.0]]), Ctx())
    assert y.tolist() == [[1, 2, 3, 1, 2]]
    dx = layer.backward(p, cache, np.array([[1.0, 10.0, 100.0, 1000.0, 10000.0]]), g, Ctx())
    assert dx.tolist() == [[1 + 300 + 1000, 10 + 10000]]
    assert g["dense_1"]["W"].tolist() == [[100], [200]]


def test_residual_names_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\) the body gives \(5,\), the shortcut \(3,\)"):
        Residual(Dense(5)).out_shape((3,))
    with pytest.raises(ValueError, match=r"the body gives \(5,\), the shortcut \(4,\)"):
        Residual(Dense(5), Dense(4)).out_shape((3,))


def test_concat_names_its_branches_shapes() -> None:
    images = (4, 4, 1)
    flat = Sequential([Reduce(), Dense(2)])
    with pytest.raises(ValueError, match=r"they give \(4, 4, 1\), \(2,\)"):
        Concat([ReLU(), flat]).out_shape(images)
    with pytest.raises(ValueError, match=r"along the last axis.*they give \(\), \(\)"):
        Concat([ReLU(), ReLU()]).out_shape(())


class Reduce(Layer):
    """x (N, ...) -> (N, 1); only its shape is used."""

    def out_shape(self, in_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1,)

    def forward(self, p: Params, x: np.ndarray, ctx: Ctx) -> tuple[np.ndarray, None]:
        return x.reshape(len(x), -1)[:, :1], None

    def backward(self, p: Params, cache: None, dy: np.ndarray, g: Params, ctx: Ctx) -> np.ndarray:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sequential([Dense]), r"Sequential is made of layers; got .*Write Dense\(\)\?"),
        (lambda: Sequential(["relu"]), "Sequential is made of layers; got 'relu'"),
        (lambda: Sequential(Dense(1)), r"takes a list of layers; got Dense\(.*Write Sequential\(\[\.\.\.\]\)"),
        (lambda: Sequential(3), "takes a list of layers; got 3"),
        (lambda: Residual(ReLU), r"Residual is made of layers; got .*Write ReLU\(\)\?"),
        (lambda: Residual(ReLU(), "x"), "Residual is made of layers; got 'x'"),
        (lambda: Concat([]), "Concat needs at least one branch"),
        (lambda: Concat([None]), "Concat is made of layers; got None"),
    ],
)
def test_only_layers_are_taken(make: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_become_tuples_so_that_layers_are_values() -> None:
    layers = [Dense(1)]
    net = Sequential(layers)
    layers.append(Dense(2))
    assert net == Sequential((Dense(1),))
    assert hash(net) == hash(Sequential((Dense(1),)))


class Recorder:
    """A clock that writes down what opens and refuses spans within spans."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.open = False

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        assert not self.open, f"{name} opens within another span: its time would count twice"
        self.open = True
        self.names.append(name)
        yield
        self.open = False


LEAVES = [
    "dense_0",
    "residual_1/body/tanh_0",
    "residual_1/body/dense_1",
    "residual_1/shortcut",
    "concat_2/dense_0",
    "concat_2/relu_1",
]


def test_a_profile_sees_every_leaf_once_by_its_path() -> None:
    model, clock = Model(NESTED, MSE(), (2,)), Recorder()
    params = model.init(np.random.default_rng(0))
    model.accumulate(params, np.zeros_like(params), np.ones((2, 2)), np.ones((2, 4)), None, Ctx(True, clock=clock))
    at = clock.names.index("loss")
    assert clock.names[:at] == [f"forward/{leaf}" for leaf in LEAVES]
    assert sorted(clock.names[at + 1 :]) == sorted(f"backward/{leaf}" for leaf in LEAVES)


def test_a_net_of_one_leaf_is_profiled_too() -> None:
    clock, layer = Recorder(), ReLU()
    y, cache = run_forward(layer, {}, np.ones((1, 1)), Ctx(clock=clock))
    run_backward(layer, {}, cache, y, {}, Ctx(clock=clock))
    assert clock.names == ["forward", "backward"]


def test_without_a_clock_no_path_is_kept() -> None:
    ctx = Ctx(train=True)
    assert ctx.child("dense_0") is ctx


def test_deep_nesting_equals_its_unrolled_form() -> None:
    rng = np.random.default_rng(0)
    net: Layer = Dense(3)
    for _ in range(20):
        net = Sequential([Residual(Sequential([net]))])
    layout = Layout(net.specs((3,)))
    vec = rng.standard_normal(layout.size)
    W, b = vec[:9].reshape(3, 3), vec[9:]
    x = rng.standard_normal((2, 3))
    y, _ = net.forward(layout.tree(vec), x, Ctx())
    np.testing.assert_allclose(y, x @ W + b + 20 * x, rtol=1e-12)


class Seen(Layer):
    """y = x, and notes whether its input's gradient was wanted."""

    def __init__(self, notes: list[bool], with_parameter: bool = False) -> None:
        self.notes, self.with_parameter = notes, with_parameter

    def out_shape(self, in_shape: tuple[int, ...]) -> tuple[int, ...]:
        return in_shape

    def specs(self, in_shape: tuple[int, ...]) -> dict[str, ParamSpec]:
        return {"b": ParamSpec((1,), Zeros())} if self.with_parameter else {}

    def forward(self, p: Params, x: np.ndarray, ctx: Ctx) -> tuple[np.ndarray, None]:
        return x, None

    def backward(self, p: Params, cache: None, dy: np.ndarray, g: Params, ctx: Ctx) -> np.ndarray:
        self.notes.append(ctx.dx)
        return dy


def wanted(make: Callable[[list[bool]], Layer]) -> list[bool]:
    """What the layers saw in a training step of a model, in the order of the backward pass."""
    notes: list[bool] = []
    model = Model(make(notes), MSE(), (3,))
    vec = np.zeros(model.layout.size)
    model.accumulate(vec, vec.copy(), np.ones((2, 3)), np.zeros((2, *model.out_shape)), None, Ctx(train=True))
    return notes


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda notes: Seen(notes), [False]),
        (lambda notes: Sequential([Seen(notes, True), Seen(notes), Seen(notes, True)]), [True, True, False]),
        (lambda notes: Sequential([Seen(notes), Seen(notes, True), Seen(notes)]), [True, False]),
        (lambda notes: Sequential([Sequential([Seen(notes)]), Seen(notes)]), []),
        (lambda notes: Sequential([Sequential([Seen(notes, True), Seen(notes)]), Seen(notes)]), [True, True, False]),
        (lambda notes: Sequential([Dense(3), Sequential([Seen(notes), Seen(notes)])]), [True, True]),
        (lambda notes: Residual(Seen(notes), Seen(notes, True)), [False, False]),
        (lambda notes: Sequential([Dense(3), Residual(Seen(notes))]), [True]),
        (lambda notes: Concat([Seen(notes), Sequential([Seen(notes, True)])]), [False, False]),
        (lambda notes: Checkpointed(Seen(notes)), [False]),
        (lambda notes: Sequential([Dense(3), Checkpointed(Seen(notes))]), [True]),
        (lambda notes: Graph([Node("a", "input", Seen(notes)), Node("b", "a", Seen(notes, True))], "b"), [False]),
        (
            lambda notes: Graph(
                [
                    Node("a", "input", Seen(notes, True)),
                    Node("b", "input", Seen(notes)),
                    Node("c", ("a", "b"), Seen(notes), merge="add"),
                    Node("d", "input", shares="a"),
                ],
                ("c", "d"),
            ),
            [False, True, False],
        ),
    ],
)
def test_the_input_gradient_is_made_only_where_it_is_wanted(
    make: Callable[[list[bool]], Layer], expected: list[bool]
) -> None:
    assert wanted(make) == expected


def test_the_first_convolution_makes_no_input_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    plain = ALGORITHMS["im2row"]
    seen = plain._replace(grad_data=lambda dy, *rest: made.append(dy.shape) or plain.grad_data(dy, *rest))
    monkeypatch.setitem(ALGORITHMS, "im2row", seen)
    net = Sequential([Conv2D(2, 3, algorithm="im2row"), ReLU(), Conv2D(4, 3, algorithm="im2row")])
    model = Model(net, MSE(), (5, 5, 1))
    vec = model.init(np.random.default_rng(0))
    model.accumulate(vec, vec.copy(), np.ones((3, 5, 5, 1)), np.ones((3, 5, 5, 4)), None, Ctx(train=True))
    assert made == [(3, 5, 5, 4)]
