from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.train.history import History


def two_epochs() -> History:
    history = History()
    history.append({"epoch": 1, "step": 10, "loss": 0.5, "accuracy": np.float64(0.75)})
    history.append({"epoch": 2, "step": 20, "loss": 0.25, "accuracy": 0.875, "val_loss": 0.3, "confusion": np.eye(2)})
    return history


def test_figures_by_name_and_records_by_number() -> None:
    history = two_epochs()
    assert history["loss"] == [0.5, 0.25]
    assert math.isnan(history["val_loss"][0])
    assert history["val_loss"][1] == 0.3
    assert history[-1]["step"] == 20
    assert len(history) == 2
    assert [r["epoch"] for r in history] == [1, 2]
    assert "val_loss" in history
    assert "val_accuracy" not in history
    assert history.names == ["epoch", "step", "loss", "accuracy", "val_loss", "confusion"]


def test_an_unknown_figure_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="no figure 'val_acc' in this history; it holds: epoch, step, loss"):
        two_epochs()["val_acc"]
    with pytest.raises(KeyError, match="nothing yet"):
        History()["loss"]


@pytest.mark.parametrize("write", [History.to_json, History.to_json_lines])
def test_json_keeps_every_value(write: Any) -> None:
    history = two_epochs()
    history.append({"epoch": 3, "loss": math.nan, "val_loss": math.inf, "lr": -math.inf, "mae": 0.1 + 0.2})
    text = write(history)
    back = History.from_json(text)
    assert back == history
    assert math.isnan(back["loss"][2])
    assert back["val_loss"][2] == math.inf
    assert back["mae"][2] == 0.1 + 0.2
    assert back[1]["confusion"] == [[1, 0], [0, 1]]
    json.loads(text if write is History.to_json else text.splitlines()[2], parse_constant=pytest.fail)  # strict JSON


@pytest.mark.parametrize("write", [History.to_json, History.to_json_lines])
def test_an_empty_history_as_json(write: Any) -> None:
    assert len(History.from_json(write(History()))) == 0


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(two_epochs().to_csv())))
    assert [float(r["loss"]) for r in rows] == [0.5, 0.25]
    assert rows[0]["val_loss"] == ""
    assert json.loads(rows[1]["confusion"]) == [[1, 0], [0, 1]]


def test_table() -> None:
    lines = repr(two_epochs()).splitlines()
    assert lines[0].split() == ["epoch", "step", "loss", "accuracy", "val_loss"]
    assert lines[2].split() == ["2", "20", "0.25", "0.875", "0.3"]
    assert len({len(line) for line in lines}) == 1
    assert repr(History()) == "History: no epochs yet"


def test_the_table_of_a_long_history_shows_its_ends() -> None:
    lines = repr(History({"epoch": i, "loss": 1e6} for i in range(1, 101))).splitlines()
    assert len(lines) == 1 + 10 + 1 + 10
    assert [line.split()[0] for line in (lines[10], lines[11], lines[12])] == ["10", "...", "91"]


def test_plot_draws_training_beside_validation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = History(
        {"epoch": i, "loss": 1 / i, "accuracy": 1 - 1 / i, "val_loss": 2 / i, "lr": 0.1, "seconds": 2.0, "data_s": 1.0}
        for i in range(1, 6)
    )
    figure = history.plot(str(tmp_path / "history.png"))
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    loss, accuracy = (ax for ax in figure.axes if ax.get_visible())
    assert [ax.get_title(loc="left") for ax in (loss, accuracy)] == ["loss", "accuracy"]
    assert [line.get_label() for line in loss.lines] == ["training", "validation"]
    assert loss.lines[1].get_xydata().tolist() == [[i, 2 / i] for i in range(1, 6)]
    assert len(accuracy.lines) == 1


def test_plot_leaves_out_what_is_not_a_number() -> None:
    pytest.importorskip("matplotlib")
    figure = History([{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": math.nan, "mae": math.nan}]).plot()
    assert [len(ax.lines) for ax in figure.axes if ax.get_visible()] == [1, 0]
    with pytest.raises(ValueError, match="nothing to plot"):
        History().plot()


def test_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"sparkdl-train\[plot\]"):
        two_epochs().plot()
