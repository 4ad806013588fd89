"""Gradients of dense layers that travel as factors: the same training, in fewer bytes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from catalogue import LAYERS
from reference import blobs, mlp
from test_averaging_contract import train

from sparkdl import nn
from sparkdl.nn.layout import Layout
from sparkdl.optim import LAMB, SGD, Adam, Clip
from sparkdl.strategies import AllReduce, ParameterServer
from sparkdl.strategies.factors import FactorCodec, Factors, at_rows
from sparkdl.train import Callback

# Matrices of 24 x 40 and 40 x 3: with 2 or 3 rows a worker the first goes as factors, the second does not.
WIDE = mlp(40)


class Norms(Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def step_end(self, run: Any, logs: Any) -> None:
        self.seen.append(logs["grad_norm"])


def trained(strategy: Any, workers: int = 3, net: nn.Layer = WIDE, **settings: Any) -> Any:
    settings["training"] = {"batch_size": 6} | settings.get("training", {})
    return train(blobs(60, 24), strategy, workers, net=net, **settings)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.01), LAMB(0.01)], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("clip", [Clip(), Clip(norm=0.2)], ids=["free", "clipped"])
def test_with_and_without_are_the_same(servers: int, optimizer: Any, clip: Clip) -> None:
    given: dict[str, Any] = {"optimizer": optimizer, "training": {"clip": clip}}
    norms = [Norms(), Norms()]
    strategies = [ParameterServer("bsp", servers=servers, factors=factors) for factors in (True, False)]
    short, full = (trained(s, callbacks=[n], **given) for s, n in zip(strategies, norms, strict=True))
    np.testing.assert_allclose(short.params, full.params, rtol=0, atol=1e-12)
    np.testing.assert_allclose(norms[0].seen, norms[1].seen, rtol=1e-10)
    assert max(norms[0].seen) > 0.2
    assert short.history["sent_mb"][-1] < full.history["sent_mb"][-1]


def test_bytes_of_a_square_layer() -> None:
    """Dense 512 -> 512 with 8 rows: 8 (512 + 512) numbers a step in place of 512^2; 512 -> 3 goes as it is."""
    net = nn.Sequential((nn.Dense(512, bias=False), nn.Dense(3, bias=False)))
    training = {"batch_size": 8, "epochs": 1, "dtype": "float32"}
    short, full = (
        train(blobs(32, 512), ParameterServer("bsp", servers=1, factors=f), 1, net=net, training=training)
        for f in (True, False)
    )
    steps, word, request, tail, table = 4, 4, 7 * 8, 3, 2 * 8
    both = 2 * request + (512 * 3 + tail) * word  # a pull and a push
    assert full.history["sent_mb"][0] * 1e6 == pytest.approx(steps * (both + 512**2 * word))
    assert short.history["sent_mb"][0] * 1e6 == pytest.approx(steps * (both + 8 * (512 + 512) * word + table))
    np.testing.assert_allclose(short.params, full.params, rtol=0, atol=1e-6)


def test_a_matrix_on_several_servers_is_cut_at_its_rows() -> None:
    layout = nn.Model(WIDE, nn.SoftmaxCrossEntropy(), (24,)).layout
    n = layout.num_trainable
    for servers in (2, 3, 5):
        bounds = at_rows([n * r // servers for r in range(servers + 1)], layout)
        assert (bounds[0], bounds[-1]) == (0, n)
        for at in bounds:
            inside = [s for s in layout.trainable_segments if s.start < at < s.stop]
            assert all(len(s.shape) == 1 or (at - s.start) % s.shape[1] == 0 for s in inside)
        assert max(abs(a - n * r // servers) for r, a in enumerate(bounds)) <= 40 / 2


def test_workers_without_rows_push_no_numbers() -> None:
    """Minibatches of one row for two workers: 24 x 40 entries are 64 numbers of one, and none of the other."""
    given: dict[str, Any] = {"training": {"batch_size": 1, "epochs": 1}}
    short, full = (trained(ParameterServer("bsp", servers=1, factors=f), 2, **given) for f in (True, False))
    np.testing.assert_allclose(short.params, full.params, rtol=0, atol=1e-12)
    rows, steps, word, table = short.data.train_counts[0], 60, 8, 4 * 8
    factors = rows * (24 + 40 + 40 + 3)
    saved = steps * ((24 * 40 + 40 * 3) * word - table) - factors * word
    assert (full.history["sent_mb"][0] - short.history["sent_mb"][0]) * 1e6 == pytest.approx(saved)


@pytest.mark.parametrize(
    "settings",
    [
        {"consistency": "bsp", "backup": 1},
        {"consistency": "ssp"},
        {"consistency": "async"},
        {"consistency": "async", "servers": 2, "dedicated": True},
    ],
    ids=["backup", "ssp", "async", "dedicated"],
)
def test_modes_learn_with_factors(settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {"optimizer": Adam(0.01), "training": {"epochs": 4}}
    short, full = (trained(ParameterServer(factors=f, **settings), **given) for f in (True, False))
    assert short.history["loss"][-1] < 0.7 * short.history["loss"][0]
    assert sum(short.history["sent_mb"]) < 0.7 * sum(full.history["sent_mb"])


@pytest.mark.parametrize(
    ("settings", "training"),
    [
        ({"group": 2}, {}),
        ({"update_on": "workers"}, {}),
        ({}, {"accumulate": 2}),
        ({}, {"clip": Clip(value=0.01)}),
    ],
)
def test_elsewhere_they_have_no_effect(settings: dict[str, Any], training: dict[str, Any]) -> None:
    models = [trained(ParameterServer("bsp", factors=f, **settings), training=training) for f in (True, False)]
    assert models[0].params.tobytes() == models[1].params.tobytes()
    assert models[0].history["sent_mb"] == models[1].history["sent_mb"]


@pytest.mark.parametrize("batch", [3, 6, 12, 24, 48])
def test_layers_that_are_shared(batch: int) -> None:
    """Twice the rows of a minibatch: as factors, formed after the second use, or from the first on."""
    nodes = [
        nn.Node("one", "a", nn.Dense(12)),
        nn.Node("two", "b", shares="one"),
        nn.Node("end", ["one", "two"], nn.Dense(3)),
    ]
    net = nn.Graph(nodes, "end", [nn.Input("a", (12,)), nn.Input("b", (12,))])
    given: dict[str, Any] = {"net": net, "training": {"batch_size": batch}}
    served = trained(ParameterServer("bsp", servers=1), **given)
    reduced = trained(AllReduce(), **given)
    np.testing.assert_allclose(served.params, reduced.params, rtol=0, atol=1e-12)


def test_what_is_not_finite_is_skipped() -> None:
    class Breaks(nn.Layer):
        def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
            return in_shape

        def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
            return x, None

        def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
            return dy * np.nan

    net = nn.Sequential((nn.Dense(40, bias=False), Breaks(), nn.Dense(3)))
    given: dict[str, Any] = {"net": net, "training": {"on_nonfinite": "skip"}}
    model = trained(ParameterServer("bsp"), **given)
    first = trained(ParameterServer("bsp"), **given | {"training": {"epochs": 1, "on_nonfinite": "skip"}})
    assert np.isfinite(model.params).all()
    assert np.array_equal(model.params, first.params)


# ---- the codec by itself


def taken(rows: int, cuts: tuple[int, ...] = ()) -> tuple[Factors, np.ndarray, np.ndarray, np.ndarray]:
    """A layer 20 -> 30 before one 30 -> 3, on servers that begin at these entries."""
    layout = nn.Model(mlp(30, 3), nn.SoftmaxCrossEntropy(), (20,)).layout
    n = layout.num_trainable
    factors = Factors(layout, (0, *cuts, n))
    rng, vec = np.random.default_rng(1), np.zeros(n)
    vec[600:] = rng.standard_normal(n - 600)
    factors.begin(vec)
    x, dy = rng.standard_normal((rows, 20)), rng.standard_normal((rows, 30))
    if not factors.take(layout.tree(vec)["dense_0"]["W"], x, dy):
        layout.tree(vec)["dense_0"]["W"][...] += x.T @ dy
    return factors, vec, x, dy


@pytest.mark.parametrize(("cuts", "most"), [((), 11), ((300,), 7), ((30, 660), 7), ((600, 600), 11), ((30, 60), 5)])
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 8, 11, 12])
def test_what_is_encoded_comes_out(rows: int, cuts: tuple[int, ...], most: int) -> None:
    """20 x 30 entries on p servers are more than rows (20 + 30 p) numbers up to so many rows."""
    factors, vec, x, dy = taken(rows, cuts)
    expected = vec.copy()
    expected[:600] = (x.T @ dy).reshape(-1)
    assert (not vec[:600].any()) == (rows <= most)
    found = []
    for k, (start, stop) in enumerate(itertools.pairwise((0, *cuts, len(vec)))):
        factors.codecs[k].add_into(out := np.zeros(stop - start), factors.message(k, vec[start:stop]))
        found.append(out)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=1e-13)
    total = np.sqrt(float(vec @ vec) + factors.squares())
    np.testing.assert_allclose(total, np.linalg.norm(expected), rtol=1e-13)
    factors.scale(0.5)
    assert factors.squares() == pytest.approx(0.25 * np.sum(expected[:600] ** 2) * (not vec[:600].any()))


@pytest.mark.parametrize("spoil", [lambda m: m[:-8], lambda m: np.append(m, np.zeros(8, np.uint8)), None])
def test_messages_that_cannot_be_right(spoil: Any) -> None:
    factors, vec, *_ = taken(3)
    message = factors.message(0, vec)
    if spoil is None:
        message[:8] = np.array([-2]).view(np.uint8)
    else:
        message = spoil(message)
    with pytest.raises(ValueError, match=r"a push of .* numbers"):
        factors.codecs[0].add_into(np.zeros_like(vec), message)


def test_nothing_but_a_matrix_of_the_gradient_is_taken() -> None:
    factors, vec, x, dy = taken(3)
    assert not factors.take(np.zeros((20, 30)), x, dy)
    assert FactorCodec(()).encode(vec[:0], {}).size == 0


@pytest.mark.parametrize("case", [c for c in LAYERS if "dense" in c.id], ids=lambda c: c.id)
def test_layers_ask_and_form_the_product_where_nobody_does(case: Any) -> None:
    """The gradient is the same whether someone declines, adds the product, or nobody is asked."""
    rng = np.random.default_rng(2)
    layout = Layout(case.layer.specs(case.in_shape))
    params = layout.init(rng, np.float64)
    x = rng.standard_normal((3, *case.in_shape))
    asked = []

    def outer(g: np.ndarray, x: np.ndarray, dy: np.ndarray) -> bool:
        asked.append(g.shape)
        g += x.T @ dy
        return True

    grads = []
    for hook in (None, outer, lambda g, x, dy: False):
        ctx = replace(nn.Ctx(train=True, rng=np.random.default_rng(0)), outer=hook)
        y, cache = case.layer.forward(layout.tree(params), x, ctx)
        grad = np.zeros(layout.size)
        case.layer.backward(layout.tree(params), cache, np.ones_like(y), layout.tree(grad), ctx)
        grads.append(grad)
    assert asked
    np.testing.assert_array_equal(grads[1], grads[0])
    np.testing.assert_array_equal(grads[2], grads[0])
