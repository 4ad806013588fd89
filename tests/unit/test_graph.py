"""Graphs: against the containers and by hand, shared layers, several inputs and outputs, refusals."""

from __future__ import annotations

import json
import tomllib
import tracemalloc
from typing import Any

import numpy as np
import pytest

from sparkdl.nn import (
    MSE,
    Array,
    BatchNorm,
    Concat,
    Conv2D,
    Ctx,
    Dense,
    Dropout,
    Flatten,
    Graph,
    Input,
    Layer,
    Layout,
    Model,
    Node,
    ReLU,
    Residual,
    Sequential,
    Tanh,
    decode_layer,
    encode,
    fold_batch_norm,
    summary,
)

RNG = np.random.default_rng(91)


def run(layer: Layer, vec: Array, x: Array, dy: Array | None = None) -> tuple[Array, Array, dict[str, Array]]:
    """y, dx and gradients by name; dy of ones where none is given."""
    layout = Layout(layer.specs(x.shape[1:]))
    g = np.zeros(layout.size)
    y, cache = layer.forward(layout.tree(vec), x, Ctx(train=True))
    assert y.shape[1:] == layer.out_shape(x.shape[1:])
    dy = np.ones_like(y) if dy is None else dy
    return y, layer.backward(layout.tree(vec), cache, dy, layout.tree(g), Ctx(train=True)), layout.views(g)


def same(net: Layer, graph: Layer, in_shape: tuple[int, ...]) -> None:
    """Both have the parameters in one order, and give the same."""
    shapes = [list(Layout(layer.specs(in_shape)).shapes().values()) for layer in (net, graph)]
    assert shapes[0] == shapes[1]
    vec = RNG.standard_normal(Layout(net.specs(in_shape)).size)
    x, dy = RNG.standard_normal((3, *in_shape)), RNG.standard_normal((3, *net.out_shape(in_shape)))
    (y, dx, g), (y2, dx2, g2) = run(net, vec, x, dy), run(graph, vec, x, dy)
    np.testing.assert_allclose(y, y2, rtol=1e-12)
    np.testing.assert_allclose(dx, dx2, rtol=1e-12, atol=1e-13)
    for a, b in zip(g.values(), g2.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    assert net.madds(in_shape) == graph.madds(in_shape)


def test_a_chain_is_a_sequential() -> None:
    nodes = [Node("a", "input", Dense(4)), Node("b", "a", Tanh()), Node("c", "b", Dense(2))]
    same(Sequential([Dense(4), Tanh(), Dense(2)]), Graph(nodes, "c"), (3,))


def test_a_sum_is_a_residual() -> None:
    body, shortcut = Sequential([Conv2D(3, 3), ReLU()]), Conv2D(3, 1)
    nodes = [Node("body", "input", body), Node("short", "input", shortcut), Node("y", ("body", "short"), merge="add")]
    same(Residual(body, shortcut), Graph(nodes, ["y"]), (5, 4, 2))
    same(Residual(body), Graph([nodes[0], Node("y", ("body", "input"), merge="add")], "y"), (5, 4, 3))


def test_a_join_is_a_concat() -> None:
    nodes = [Node("a", "input", Dense(4)), Node("b", "input", Dense(2)), Node("y", ("a", "b"))]
    same(Concat([Dense(4), Dense(2)]), Graph(nodes, "y"), (3,))


@pytest.mark.parametrize(
    ("merge", "value", "slopes"),
    [
        ("concat", [2.0, 3.0, 2.0], [2.0, 1.0]),
        ("add", [2 + 3 + 2.0], [2.0, 1.0]),
        ("subtract", [2 - 3 - 2.0], [0.0, -1.0]),
        ("multiply", [2 * 3 * 2.0], [2 * 2 * 3.0, 2 * 2.0]),
    ],
)
def test_merges_by_hand(merge: Any, value: list[float], slopes: list[float]) -> None:
    inputs = [Input("a", (1,)), Input("b", (1,))]
    y, dx, _ = run(Graph([Node("y", ("a", "b", "a"), merge=merge)], "y", inputs), np.zeros(0), np.array([[2.0, 3.0]]))
    assert y.tolist() == [value]
    assert dx.tolist() == [slopes]


def test_inputs_share_a_record_and_outputs_are_joined() -> None:
    inputs = [Input("image", (2, 2, 1)), Input("number", (1,))]
    nodes = [Node("a", "image", Flatten()), Node("b", ("a", "number"), Dense(1, bias=False))]
    graph = Graph(nodes, ["image", "b", "image"], inputs)
    W, x = np.array([1.0, 10, 100, 1000, 10000]), np.array([[1.0, 2, 3, 4, 5]])
    y, dx, g = run(graph, W, x)
    assert y.tolist() == [[1, 2, 3, 4, 54321, 1, 2, 3, 4]]
    assert dx.tolist() == [[3, 12, 102, 1002, 10000]]
    assert g["b/W"].ravel().tolist() == [1, 2, 3, 4, 5]


SHARED = [
    Node("a", "left", Dense(1, bias=False)),
    Node("b", "right", shares="a"),
    Node("y", ("a", "b"), merge="multiply"),
]
PAIR = [Input("left", (1,)), Input("right", (1,))]


def test_a_shared_layer_has_one_set_of_parameters() -> None:
    graph = Graph(SHARED, "y", PAIR)
    assert list(graph.specs((2,))) == ["a/W"]
    y, dx, g = run(graph, np.array([3.0]), np.array([[5.0, 7.0]]))  # y = (3 * 5)(3 * 7)
    assert y.tolist() == [[315]]
    assert dx.tolist() == [[3 * 21, 3 * 15]]
    assert g["a/W"].tolist() == [[5 * 21 + 7 * 15]]
    assert graph.madds((2,)) == 2


@pytest.mark.parametrize(
    "wrap", [lambda norm: norm, lambda norm: Sequential([Sequential([norm])])], ids=["leaf", "nested"]
)
def test_a_shared_buffer_becomes_the_mean_of_its_uses(wrap: Any) -> None:
    nodes = [Node("a", "left", wrap(BatchNorm(0.5))), Node("b", "right", shares="a"), Node("y", ("a", "b"))]
    graph = Graph(nodes, "y", [Input("left", (2,)), Input("right", (2,))])
    layout, x = Layout(graph.specs((4,))), RNG.standard_normal((5, 4))
    vec = 0.5 + RNG.random(layout.size)
    _, _, g = run(graph, vec, x)
    old = layout.views(vec)
    mean, var = (next(n for n in g if n.endswith(end)) for end in ("/mean", "/var"))
    batch = (x[:, :2].mean(0) + x[:, 2:].mean(0)) / 2, (x[:, :2].var(0, ddof=1) + x[:, 2:].var(0, ddof=1)) / 2
    np.testing.assert_allclose(g[mean], 5 * (old[mean] + batch[0]) / 2, rtol=1e-12)
    np.testing.assert_allclose(g[var], 5 * (old[var] + batch[1]) / 2, rtol=1e-12)


def test_dropout_of_a_shared_layer_is_drawn_for_each_use() -> None:
    nodes = [Node("a", "input", Dropout(0.5)), Node("b", "input", shares="a"), Node("y", ("a", "b"))]
    y, _ = Graph(nodes, "y").forward({}, np.ones((4, 50)), Ctx(train=True, rng=np.random.default_rng(0)))
    assert not np.array_equal(y[:, :50], y[:, 50:])


def test_a_model_of_twins_learns_what_is_close() -> None:
    code = Sequential([Dense(8), Tanh(), Dense(2)])
    nodes = [
        Node("a", "left", code),
        Node("b", "right", shares="a"),
        Node("d", ("a", "b"), merge="subtract"),
        Node("square", ("d", "d"), merge="multiply"),
        Node("y", "square", Dense(1)),
    ]
    model = Model(Graph(nodes, "y", [Input("left", (3,)), Input("right", (3,))]), MSE(), (6,))
    vec, x = model.init(np.random.default_rng(0)), RNG.standard_normal((64, 6)).astype(np.float32)
    y = ((x[:, :1] - x[:, 3:4]) ** 2).astype(np.float32)
    losses = []
    for _ in range(200):
        grad = np.zeros_like(vec)
        sums, _ = model.accumulate(vec, grad, x, y, None, Ctx(train=True))
        vec -= np.float32(0.02 / sums.weight) * grad
        losses.append(sums.loss / sums.weight)
    assert losses[-1] < 0.3 * losses[0]


def test_values_live_no_longer_than_they_are_read() -> None:
    nodes = [Node("v0", "input", Tanh())]
    nodes += [Node(f"v{i}", (f"v{i - 1}", "v0"), merge="add") for i in range(1, 20)]
    x = np.ones((64, 1024))
    tracemalloc.start()
    y, cache = Graph(nodes, "v19").forward({}, x, Ctx(train=True))
    held, peak = (n / x.nbytes for n in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    assert cache
    assert np.allclose(y, 20 * np.tanh(x))
    assert held < 2.5  # y, and the tanh that its gradient needs
    assert peak < 4.5


def test_data_and_back() -> None:
    text = """
    kind = "graph"
    outputs = "y"
    nodes = [
      { kind = "node", name = "stem", inputs = "input", layer = { kind = "dense", units = 3 } },
      { kind = "node", name = "again", inputs = ["stem"], shares = "stem" },
      { kind = "node", name = "y", inputs = ["stem", "again", "input"], merge = "add" },
    ]
    """
    nodes = [Node("stem", "input", Dense(3)), Node("again", "stem", shares="stem")]
    graph = Graph([*nodes, Node("y", ["stem", "again", "input"], merge="add")], "y")
    assert decode_layer(tomllib.loads(text)) == graph
    assert decode_layer(json.loads(json.dumps(encode(graph)))) == graph


def test_a_summary_counts_shared_parameters_once() -> None:
    text = summary(Model(Graph(SHARED, "y", PAIR), MSE(), (2,)))
    rows = {line.split("  ")[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["a"][-2:] == ["1", "1"]
    assert rows["a (shared)"][-1] == "1"
    assert rows["total"] == ["1", "2"]


def test_folding_looks_inside() -> None:
    nodes = [Node("a", "input", Sequential([Dense(3), BatchNorm()])), Node("y", ("a", "input"))]
    model = Model(Graph(nodes, "y"), MSE(), (4,))
    vec, x = 0.5 + RNG.random(model.layout.size), RNG.standard_normal((5, 4))
    folded, new = fold_batch_norm(model, vec)
    assert "BatchNorm" not in repr(folded.net)
    np.testing.assert_allclose(folded.outputs(new, x), model.outputs(vec, x), rtol=1e-12)


D3 = Node("a", "input", Dense(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Node("", "x"), "a name is a text without a slash"),
        (lambda: Node("a/b", "x"), "a name is a text without a slash"),
        (lambda: Node("a", ()), "Node 'a' needs at least one input"),
        (lambda: Node("a", "x", merge="mean"), "merge must be one of add, concat, multiply, subtract"),  # type: ignore[arg-type]
        (lambda: Node("a", "x", Dense(1), shares="b"), "give either a layer or the name"),
        (lambda: Node("a", "x", "dense"), "give either a layer or the name"),  # type: ignore[arg-type]
        (lambda: Graph([], "input"), "needs nodes and outputs"),
        (lambda: Graph([D3], ()), "needs nodes and outputs"),
        (lambda: Graph([D3, D3], "a"), "'a' names two values"),
        (lambda: Graph([D3], "b"), "Graph gives out 'b', which is not there yet; known so far: input, a"),
        (
            lambda: Graph([Node("a", "b", Dense(1)), Node("b", "input")], "b"),
            "Node 'a' reads 'b', which is not there yet",
        ),
        (
            lambda: Graph([Node("a", "input"), Node("b", "a", shares="a")], "b"),
            "shares the layer of 'a'.*known so far: none",
        ),
        (lambda: Graph([D3, Node("b", "input")], "b"), "nothing reads node 'a'"),
    ],
)
def test_graphs_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("graph", "in_shape", "message"),
    [
        (
            Graph([D3, Node("y", ("a", "input"), merge="add")], "y"),
            (4,),
            r"Node 'y': .*shapes must agree; got \(3,\), \(4,\)",
        ),
        (
            Graph([Node("a", "input", Flatten()), Node("y", ("a", "input"))], "y"),
            (2, 2),
            "Node 'y': .*other axes must agree",
        ),
        (Graph([D3], "a"), (4, 4, 4), r"Node 'a': Dense\(units=3\) expects samples"),
        (
            Graph([D3, Node("b", "a", shares="a")], "b"),
            (4,),
            r"Node 'b': shares parameters .*'W': \(4, 3\).*but needs .*\(3, 3\)",
        ),
        (Graph(SHARED, "y", PAIR), (3,), r"its inputs take samples of shape \(2,\); got \(3,\)"),
    ],
)
def test_shapes_are_checked(graph: Graph, in_shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph.out_shape(in_shape)
    if "its inputs" in message:
        with pytest.raises(ValueError, match=r"take x of shape \(N, 2\); got \(1, 3\)"):
            graph.forward({}, np.ones((1, 3)), Ctx())
