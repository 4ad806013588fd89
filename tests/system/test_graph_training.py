"""Whole trainings, on threads without a JVM, of what is no plain classifier: words, auto-encoders, several outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparkdl
from sparkdl import nn, optim

RNG = np.random.default_rng(5)
TRAINING = sparkdl.Training(epochs=6)
ADAM = optim.Adam(lr=0.02)


def test_words_through_an_embedding_and_an_lstm() -> None:
    words = RNG.integers(1, 6, (300, 8))
    words[np.arange(8) >= RNG.integers(3, 9, 300)[:, None]] = 0
    table = pa.table({"words": list(words), "first": words[:, 0]})
    net = nn.Sequential([nn.Embedding(6, 16, padding_idx=0), nn.LSTM(16, mask_value=0.0), nn.Dense(5)])
    spec = sparkdl.DataSpec(features=("words",), label="first", valid_fraction=0.2)
    model = sparkdl.fit(table, net, spec, training=TRAINING, optimizer=ADAM, workers=2)
    assert model.evaluate(table)["accuracy"] > 0.95


def test_an_auto_encoder_needs_no_targets(tmp_path: Path) -> None:
    x = 0.3 * RNG.standard_normal((300, 2)) @ RNG.standard_normal((2, 6))
    table = pa.table({"x": list(x), "unread": np.zeros(300)})
    nodes = [nn.Node("code", "input", nn.Dense(2)), nn.Node("decoded", "code", nn.Dense(6))]
    net = nn.Graph(nodes, ("decoded", "input"))
    spec = sparkdl.DataSpec(features=("x",), label="unread", valid_fraction=0.2)
    model = sparkdl.fit(table, net, spec, loss=nn.Reconstruction(), training=TRAINING, optimizer=ADAM, workers=2)
    figures = model.evaluate(table)
    assert list(figures) == ["loss"]
    assert figures["loss"] < 0.2 * x.var()
    model.save(str(tmp_path / "model"))
    again = sparkdl.load(str(tmp_path / "model"))
    assert again.model == model.model
    assert again.evaluate(table) == figures


def test_two_outputs_learn_from_one_record_of_targets() -> None:
    x = RNG.standard_normal((300, 4))
    targets = np.column_stack([x[:, 0] > 0, x[:, 1] - x[:, 2]])
    table = pa.table({"x": list(x), "both": list(targets)})
    nodes = [
        nn.Node("stem", "input", nn.Sequential([nn.Dense(16), nn.ReLU()])),
        nn.Node("kind", "stem", nn.Dense(2)),
        nn.Node("amount", "stem", nn.Dense(1)),
    ]
    loss = nn.Joint((nn.SoftmaxCrossEntropy(), nn.MSE()), ((2,), (1,)))
    spec = sparkdl.DataSpec(features=("x",), label="both")
    training = sparkdl.Training(epochs=20)
    model = sparkdl.fit(
        table, nn.Graph(nodes, ("kind", "amount")), spec, loss=loss, training=training, optimizer=ADAM, workers=2
    )
    predicted = model.model.predict(model.params, x.astype(np.float32))
    assert ((predicted[:, 1] > 0.5) == targets[:, 0]).mean() > 0.93
    assert np.corrcoef(predicted[:, 2], targets[:, 1])[0, 1] > 0.95
    assert model.evaluate(table)["loss"] == pytest.approx(
        -np.log(predicted[np.arange(300), targets[:, 0].astype(int)]).mean()
        + ((predicted[:, 2] - targets[:, 1]) ** 2).mean(),
        rel=1e-4,
    )
