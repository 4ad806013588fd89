from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sparkdl.errors import ConfigError, ModelFormatError
from sparkdl.nn import BatchNorm, Dense, Model, ReLU, Sequential, SoftmaxCrossEntropy, Tanh
from sparkdl.train.files import LocalFiles
from sparkdl.train.history import History
from sparkdl.train.metrics import F1, Accuracy, TopK
from sparkdl.train.persist import ModelState, load_model, load_weights, save_model

FILES = LocalFiles()
MODEL = Model(
    Sequential([Dense(4), BatchNorm(), ReLU(), Dense(3)]),
    SoftmaxCrossEntropy(ignore_index=-1, label_smoothing=0.1),
    (5,),
)
DATA = {"label": {"mapping": ["ant", "bee", "nan"]}, "features": [{"column": "x", "shape": [5]}]}


def state(**changes: Any) -> ModelState:
    params = MODEL.init(np.random.default_rng(0)) + np.float32(0.25)  # buffers differ from their initial values
    history = History([{"epoch": 1, "loss": 0.5, "val_loss": float("inf")}])
    return ModelState(**{"model": MODEL, "params": params, "data": DATA, "history": history} | changes)


def saved(folder: Path, **changes: Any) -> str:
    path = str(folder / "model")
    save_model(FILES, path, state(**changes))
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_comes_back(tmp_path: Path, dtype: Any) -> None:
    before = state(params=state().params.astype(dtype), metrics=(Accuracy(), TopK(2), F1("micro")))
    save_model(FILES, str(tmp_path / "model"), before)
    after = load_model(FILES, str(tmp_path / "model"))
    assert after.params.dtype == dtype
    assert after.params.tobytes() == before.params.tobytes()
    assert (after.model, after.data, after.metrics) == (before.model, DATA, before.metrics)
    assert after.history == before.history
    x = np.random.default_rng(1).standard_normal((7, 5))
    assert after.model.predict(after.params, x).tobytes() == MODEL.predict(before.params, x).tobytes()
    assert abs((datetime.fromisoformat(after.created) - datetime.now().astimezone()).total_seconds()) < 60


def test_the_files_of_a_model(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, created="2024-01-01T00:00:00+00:00"))
    assert sorted(p.name for p in path.iterdir()) == ["history.json", "model.json", "weights.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    text = json.loads((path / "model.json").read_text())
    assert (text["format_version"], text["in_shape"], text["dtype"]) == (1, [5], "float32")
    assert text["created"] == "2024-01-01T00:00:00+00:00"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", text["sparkdl_version"])
    weights = load_file(path / "weights.safetensors")
    expected = MODEL.layout.views(state().params)
    assert set(weights) == set(expected) == set(MODEL.layout.shapes())
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, strict=True)
    assert json.loads((path / "history.json").read_text()) == [{"epoch": 1, "loss": 0.5, "val_loss": "inf"}]


def test_an_existing_path_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(ConfigError, match="model exists"):
        save_model(FILES, path, state(data={"new": 1}))
    assert load_model(FILES, path).data == DATA
    save_model(FILES, path, state(data={"new": 1}), overwrite=True)
    assert load_model(FILES, path).data == {"new": 1}


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        saved(tmp_path, data={"mean": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no model in .*nowhere: the folder does not exist"):
        load_model(FILES, str(tmp_path / "nowhere"))
    with pytest.raises(ModelFormatError, match=r"lacks model\.json, .*history\.json and holds nothing"):
        load_model(FILES, str(tmp_path))
    path = saved(tmp_path)
    with pytest.raises(ModelFormatError, match=r"lacks model\.json, .* and holds model\."):
        load_model(FILES, str(tmp_path))
    (Path(path) / "weights.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"lacks weights\.safetensors and holds history\.json, model\.json"):
        load_model(FILES, path)


def edited(folder: Path, **changes: Any) -> str:
    """A model whose description has these entries; None takes one away."""
    path = saved(folder)
    text = json.loads((Path(path) / "model.json").read_text()) | changes
    (Path(path) / "model.json").write_text(json.dumps({k: v for k, v in text.items() if v is not None}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 7, "sparkdl_version": "9.1"}, r"version 7, written by sparkdl 9\.1; .*up to 1\. Upgrade"),
        ({"net": None}, r"cannot be read: model\.json has no 'net'"),
        ({"net": {"kind": "dance", "units": 3}}, "unknown kind 'dance'"),
        ({"loss": "mse"}, "must be a table"),
        ({"metrics": ["acuracy"]}, "no metric 'acuracy'"),
        ({"in_shape": [6]}, r"another model: where this one has dense_0/W \(6, 4\), it holds dense_0/W \(5, 4\)"),
        ({"net": {"kind": "dense", "units": 3}}, r"this one has W \(5, 3\), it holds batch_norm_1/beta \(4,\)"),
        ({"weights": {"size": 3, "crc32": 1}}, r"the weights are damaged: their size is \d+, not 3"),
    ],
)
def test_descriptions_that_do_not_fit(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        load_model(FILES, edited(tmp_path, **changes))


def test_damaged_files(tmp_path: Path) -> None:
    path = Path(saved(tmp_path))
    weights = (path / "weights.safetensors").read_bytes()
    (path / "weights.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ModelFormatError, match="weights are damaged: their crc32 is"):
        load_model(FILES, str(path))
    for text in ("{", "[]", "\xff"):
        (path / "model.json").write_text(text, encoding="latin-1")
        with pytest.raises(ModelFormatError, match="cannot be read"):
            load_model(FILES, str(path))


@dataclass(frozen=True)
class Twice(Tanh):
    """A layer of the user's own."""


@dataclass(frozen=True)
class Exactness(Accuracy):
    """A metric of the user's own."""


def test_custom_layers_are_named_when_reading(tmp_path: Path) -> None:
    model = Model(Sequential([Dense(3), Twice()]), SoftmaxCrossEntropy(), (5,))
    path = saved(tmp_path, model=model, params=model.init(np.random.default_rng(0)))
    assert load_model(FILES, path, layers={"twice": Twice}).model == model
    with pytest.raises(ModelFormatError, match="unknown kind 'twice'"):
        load_model(FILES, path)


def test_custom_metrics_do_not_spoil_a_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        path = saved(tmp_path, metrics=(TopK(2), Exactness()))
    assert "custom metrics are not saved with the model: accuracy" in caplog.text
    assert load_model(FILES, path).metrics == (TopK(2),)


def test_a_model_without_parameters(tmp_path: Path) -> None:
    model = Model(Sequential([Tanh()]), SoftmaxCrossEntropy(), (3,))
    path = saved(tmp_path, model=model, params=np.zeros(0, np.float32))
    assert load_model(FILES, path).params.shape == (0,)


def test_weights_alone_from_a_model_or_a_safetensors_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    tensors = {name: np.full(shape, 2.0) for name, shape in MODEL.layout.shapes().items()}
    save_file(tensors, tmp_path / "own.safetensors")
    params = np.zeros(MODEL.layout.size, np.float32)
    load_weights(FILES, path, MODEL.layout, params)
    assert params.tobytes() == state().params.tobytes()
    load_weights(FILES, str(tmp_path / "own.safetensors"), MODEL.layout, params)
    assert (params == 2).all()


def test_weights_that_cannot_be_taken(tmp_path: Path) -> None:
    params = np.zeros(MODEL.layout.size, np.float32)
    with pytest.raises(ModelFormatError, match=r"no weights in .*: .*weights\.safetensors does not exist"):
        load_weights(FILES, str(tmp_path), MODEL.layout, params)
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(ModelFormatError, match="not the safetensors format"):
        load_weights(FILES, str(tmp_path / "bad.safetensors"), MODEL.layout, params)
    save_file({"dense_0/W": np.ones((5, 9))}, tmp_path / "other.safetensors")
    with pytest.raises(ModelFormatError, match=r"this one has dense_0/W \(5, 4\), it holds dense_0/W \(5, 9\)"):
        load_weights(FILES, str(tmp_path / "other.safetensors"), MODEL.layout, params)
    assert not params.any()
