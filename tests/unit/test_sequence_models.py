"""Sequence layers put together learn what they are there for: memory, places, lengths."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl import optim
from sparkdl.nn import (
    GRU,
    LSTM,
    Array,
    Checkpointed,
    Conv1D,
    Ctx,
    Dense,
    Embedding,
    GlobalAvgPool,
    Layer,
    MaxPool1D,
    Model,
    PositionalEncoding,
    ReLU,
    Sequential,
    SoftmaxCrossEntropy,
    TransformerBlock,
)

WORDS, STEPS, ROWS = 6, 10, 64


def first_word(rng: np.random.Generator) -> tuple[Array, Array]:
    """Sentences of 3 to 10 words, padded with 0; the label is the first word."""
    x = rng.integers(1, WORDS, (ROWS, STEPS))
    x[np.arange(STEPS) >= rng.integers(3, STEPS + 1, ROWS)[:, None]] = 0
    return x, x[:, 0] - 1


def rising(rng: np.random.Generator) -> tuple[Array, Array]:
    """Whether a 1 comes before a 2 in a sentence that has both once: of the words alone, nobody could tell."""
    x = rng.integers(3, WORDS, (ROWS, STEPS))
    at = np.argsort(rng.random((ROWS, STEPS)), axis=1)[:, :2]
    x[np.arange(ROWS), at[:, 0]], x[np.arange(ROWS), at[:, 1]] = 1, 2
    return x, (at[:, 0] < at[:, 1]).astype(np.int64)


def accuracy_after(net: Layer, task: object, steps: int) -> float:
    rng = np.random.default_rng(0)
    model = Model(net, SoftmaxCrossEntropy(), (STEPS,))
    vec, rule = model.init(rng), optim.Adam(lr=0.01)
    state = rule.init(vec)
    for _ in range(steps):
        x, y = task(rng)  # type: ignore[operator]
        grad = np.zeros_like(vec)
        sums, _ = model.accumulate(vec, grad, x, y, None, Ctx(train=True, rng=rng))
        rule.step(vec, grad / np.float32(sums.weight), state, 0.01, model.layout.segments)
    x, y = task(rng)  # type: ignore[operator]
    return float((model.predict(vec, x).argmax(axis=1) == y).mean())


WORD = Embedding(WORDS, 16, padding_idx=0)
LEARNERS = {
    "lstm": Sequential([WORD, LSTM(16, mask_value=0.0), Dense(WORDS - 1)]),
    "gru-recomputed": Sequential([WORD, GRU(16, layers=2, mask_value=0.0, recompute=True), Dense(WORDS - 1)]),
}


@pytest.mark.parametrize("net", LEARNERS.values(), ids=LEARNERS)
def test_recurrent_layers_remember_the_first_word(net: Layer) -> None:
    assert accuracy_after(net, first_word, 120) > 0.95


def test_a_transformer_tells_the_order_by_positions_only() -> None:
    block = Checkpointed(TransformerBlock(2, mask_value=0.0))
    tail = [block, GlobalAvgPool(0.0), Dense(2)]
    assert accuracy_after(Sequential([WORD, PositionalEncoding(mask_value=0.0), *tail]), rising, 150) > 0.9
    assert accuracy_after(Sequential([WORD, *tail]), rising, 80) < 0.75


def test_a_convolution_over_words_finds_neighbours() -> None:
    net = Sequential([WORD, Conv1D(16, 9), ReLU(), MaxPool1D(STEPS), GlobalAvgPool(), Dense(2)])
    assert accuracy_after(net, rising, 150) > 0.9
