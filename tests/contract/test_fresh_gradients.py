"""Gradients that begin with memory of undefined contents are those that begin with zeros."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl import nn
from sparkdl.nn import Array, Ctx, Layout, ParamSpec
from sparkdl.nn.gradients import add, add_product, fresh, settle
from tests.catalogue import LAYERS, LayerCase


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_undefined_memory_leaves_no_trace(case: LayerCase) -> None:
    rng = np.random.default_rng(5)
    layout = Layout(case.layer.specs(case.in_shape))
    params = layout.init(rng, np.float64)
    params[layout.num_trainable :] = 0.5 + rng.random(layout.size - layout.num_trainable)
    x = case.make_x(rng, (4, *case.in_shape))
    dy = rng.standard_normal((4, *case.layer.out_shape(case.in_shape)))
    found = []
    for start in (0.0, np.nan):
        vec = np.full(layout.size, start)
        g = fresh(layout.tree(vec)) if np.isnan(start) else layout.tree(vec)
        _, cache = case.layer.forward(layout.tree(params), x, Ctx(train=True, rng=np.random.default_rng(3)))
        case.layer.backward(layout.tree(params), cache, dy, g, Ctx(train=True))
        settle(g)
        found.append(vec)
    np.testing.assert_array_equal(*found)


def test_places_add_up_from_the_second_term_on() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 2))
    layout = Layout({name: ParamSpec((1, 3, 2), nn.Zeros()) for name in ("twice", "product", "first", "never")})
    vec = np.full(layout.size, np.nan)
    g = fresh(layout.tree(vec))
    for _ in range(2):
        add(g["twice"], (a @ b)[None])
        add_product(g["product"], a, b)
    add(g["first"], (a @ b)[None])
    settle(g)
    got = layout.views(vec)
    np.testing.assert_allclose(got["twice"][0], 2 * a @ b)
    np.testing.assert_allclose(got["product"][0], 2 * a @ b)
    np.testing.assert_allclose(got["first"][0], a @ b)
    assert not got["never"].any()


@pytest.mark.parametrize("rows", [0, 3])
def test_the_first_batch_of_an_update_needs_no_zeros(rows: int) -> None:
    model = nn.Model(nn.Sequential([nn.Dense(4), nn.BatchNorm(), nn.Dense(2)]), nn.SoftmaxCrossEntropy(), (3,))
    params = model.init(np.random.default_rng(0), np.float64)
    x, y = np.random.default_rng(1).standard_normal((rows, 3)), np.arange(rows) % 2

    def gradient(start: float, first: bool) -> Array:
        grad = np.full(model.layout.size, start)
        model.accumulate(params, grad, x, y, None, Ctx(train=True), first=first)
        return grad

    np.testing.assert_array_equal(gradient(np.nan, True), gradient(0.0, False))
