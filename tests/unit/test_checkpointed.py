"""Recomputation: the same gradients, the same dropout masks, less memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from sparkdl.nn import (
    MSE,
    Array,
    BatchNorm,
    Checkpointed,
    Conv2D,
    Ctx,
    Dense,
    Dropout,
    Flatten,
    Layer,
    Model,
    ReLU,
    Sequential,
    TransformerBlock,
    fold_batch_norm,
)

RNG = np.random.default_rng(81)
STACK = [Dense(6), Dropout(0.5), ReLU(), Dropout(0.3), Dense(4)]
PLAIN: dict[str, tuple[Layer, Layer, tuple[int, ...]]] = {
    "dropout": (
        Sequential([Sequential(STACK), Dropout(0.5)]),
        Sequential([Checkpointed(Sequential(STACK)), Dropout(0.5)]),
        (5,),
    ),
    "batch_norm": (
        Sequential([Sequential([Conv2D(3, 3), BatchNorm(), ReLU()]), Flatten()]),
        Sequential([Checkpointed(Sequential([Conv2D(3, 3), BatchNorm(), ReLU()])), Flatten()]),
        (4, 4, 2),
    ),
    "leaf": (Sequential([Dense(3)]), Sequential([Checkpointed(Dense(3))]), (5,)),
    "nested": (
        Sequential([TransformerBlock(2, dropout=0.2)]),
        Checkpointed(Sequential([Checkpointed(TransformerBlock(2, dropout=0.2))])),
        (5, 4),
    ),
}


def accumulate(net: Layer, in_shape: tuple[int, ...], values: Array, x: Array) -> tuple[float, Array, Array]:
    model = Model(net, MSE(), in_shape)
    assert model.layout.size == len(values)
    grad, ctx = np.zeros(len(values)), Ctx(train=True, rng=np.random.default_rng(4))
    sums, z = model.accumulate(values, grad, x, np.zeros((len(x), *model.out_shape)), None, ctx)
    assert ctx.rng is not None
    return sums.loss, grad, np.append(z, ctx.rng.random(3))


@pytest.mark.parametrize(("net", "checkpointed", "in_shape"), PLAIN.values(), ids=PLAIN)
def test_recomputation_changes_nothing(net: Layer, checkpointed: Layer, in_shape: tuple[int, ...]) -> None:
    values = RNG.random(Model(net, MSE(), in_shape).layout.size)
    x = RNG.standard_normal((6, *in_shape))
    for a, b in zip(accumulate(net, in_shape, values, x), accumulate(checkpointed, in_shape, values, x), strict=True):
        assert np.array_equal(a, b)


def test_a_cache_serves_more_than_one_backward_pass() -> None:
    layer, x = Checkpointed(Dropout(0.5)), np.ones((2, 50))
    y, cache = layer.forward({}, x, Ctx(train=True, rng=np.random.default_rng(0)))
    for _ in range(2):
        assert np.array_equal(layer.backward({}, cache, x, {}, Ctx(train=True)), y)


def test_only_the_input_is_kept() -> None:
    block = Sequential([layer for _ in range(20) for layer in (Dense(64), ReLU())])
    held = {}
    for layer in (block, Checkpointed(block)):
        model = Model(layer, MSE(), (64,))
        p: Any = model.layout.tree(model.init(np.random.default_rng(0)))
        x = np.ones((512, 64), np.float32)
        tracemalloc.start()
        y, cache = layer.forward(p, x, Ctx(train=True, rng=np.random.default_rng(0)))
        held[type(layer)] = tracemalloc.get_traced_memory()[0] / y.nbytes
        tracemalloc.stop()
        assert cache
    assert held[Sequential] > 19  # an array for each pair of layers at least
    assert held[Checkpointed] < 1.5  # the output itself


def test_names_and_cost_are_those_of_the_block() -> None:
    layer = Checkpointed(Dense(3))
    assert list(layer.specs((4,))) == ["block/W", "block/b"]
    assert layer.madds((4,)) == 12


def test_folding_looks_inside() -> None:
    net = Sequential([Checkpointed(Sequential([Dense(3), BatchNorm()])), ReLU()])
    model = Model(net, MSE(), (4,))
    values, x = 0.5 + RNG.random(model.layout.size), RNG.standard_normal((5, 4))
    folded, new = fold_batch_norm(model, values)
    assert "BatchNorm" not in repr(folded.net)
    np.testing.assert_allclose(folded.outputs(new, x), model.outputs(values, x), rtol=1e-12)


@pytest.mark.parametrize("block", [[Dense(3)], Dense, None])
def test_a_block_is_one_layer(block: Any) -> None:
    with pytest.raises(ValueError, match=r"Checkpointed takes one layer; got .*Sequential\(\[...\]\)"):
        Checkpointed(block)
