"""python -m sparkdl simulate, from its arguments to its table, picture and errors."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkdl.__main__ import main, sizes
from sparkdl.comm.compress import TopK
from sparkdl.comm.cost import COSTS, Link
from sparkdl.config import load
from sparkdl.errors import DataError
from sparkdl.ml.local_step import local_step_s, network
from sparkdl.ml.simulation import Row, rows_of, table
from sparkdl.simulate import Cluster, Compute, simulate
from sparkdl.strategies import STRATEGIES, AllReduce, Gossip, ModelAveraging
from tests import catalogue

ROOT = Path(__file__).resolve().parents[2]
CONF = str(ROOT / "conf" / "digits-allreduce.toml")
TOLD = ["--set", 'data.classes=["0","1","2","3","4","5","6","7","8","9"]', "--set", "simulate.compute_s=0.1"]
NBYTES = 4 * (9 * 16 + 16 + 9 * 16 * 32 + 32 + 2 * 2 * 32 * 64 + 64 + 64 * 10 + 10)  # weights of the network in CONF


def rows(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, float]]:
    assert main(["simulate", *args, "--json"]) == 0
    found: list[dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8,64,512", [8, 64, 512]),
        ("8", [8]),
        ("8..4096", [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]),
        ("3..13", [3, 6, 12]),
        ("4..16:4,1", [1, 4, 8, 12, 16]),
    ],
)
def test_sizes(text: str, expected: list[int]) -> None:
    assert sizes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "eight", "8..4", "1..9:0", "70000", "8,,9", "-3", "1:2"])
def test_sizes_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="takes numbers of workers"):
        sizes(text)
    with pytest.raises(SystemExit) as error:
        main(["simulate", CONF, f"--workers={text}"])
    assert error.value.code == 2
    assert "takes numbers of workers from 1 to 65,536" in capsys.readouterr().err


def test_a_ring_by_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    ring = ["--set", "strategy.algorithm=ring", "--set", "strategy.bucket_mb=0", "--set", "simulate.gbit_s=1"]
    link = Link(50e-6, 8e-9, 1e-10)
    for row in rows(capsys, CONF, *TOLD, *ring, "--workers", "1,8,64"):
        size = int(row["workers"])
        step_s = 0.1 + COSTS["ring"](size, NBYTES, link, 1)
        assert row["steps_per_s"] == pytest.approx(1 / step_s, rel=0.01)
        assert row["samples_per_s"] == pytest.approx(64 / step_s, rel=0.01)  # the minibatch of all workers
        assert row["efficiency"] == pytest.approx(0.1 / step_s, rel=0.01)
        assert row["sent_mb"] == pytest.approx(2 * (size - 1) / size * NBYTES / 1e6, rel=0.01)
        assert (row["staleness_mean"], row["staleness_max"]) == (0, 0)


def test_rows_of_a_step_make_the_minibatch_grow(capsys: pytest.CaptureFixture[str]) -> None:
    one, many = rows(capsys, CONF, *TOLD, "--workers", "1,16", "--set", "simulate.rows=32")
    assert one["samples_per_s"] == pytest.approx(320)
    assert many["samples_per_s"] == pytest.approx(16 * 32 * many["steps_per_s"])
    assert many["efficiency"] == pytest.approx(many["samples_per_s"] / 16 / one["samples_per_s"])


def test_links_from_a_file_come_before_those_of_the_section(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text("[between]\nalpha_us = 1000\ngbit_s = 1\n[within]\nalpha_us = 1\ngbit_s = 100\n")
    slow = ["--set", f"simulate.link_file={path}"]
    ring = ["--set", "strategy.algorithm=ring", "--set", "strategy.bucket_mb=0", "--workers", "8"]
    (apart,) = rows(capsys, CONF, *TOLD, *ring, *slow)
    (together,) = rows(capsys, CONF, *TOLD, *ring, *slow, "--set", "simulate.per_host=8")
    expected = 0.1 + COSTS["ring"](8, NBYTES, Link(1e-3, 8e-9, 1e-10), 1)
    assert 1 / apart["steps_per_s"] == pytest.approx(expected, rel=0.01)
    assert 1 / together["steps_per_s"] == pytest.approx(0.1, rel=0.01)


def test_the_local_step_is_measured_for_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    """More rows take longer; a lone worker is as efficient as it is."""
    measured = [arg.replace("compute_s=0.1", "compute_s=0") for arg in TOLD]
    one, many = rows(capsys, CONF, *measured, "--workers", "1,64", "--set", "training.batch_size=1024")
    assert one["local_step_s"] > 4 * many["local_step_s"] > 0
    assert one["efficiency"] == pytest.approx(1, rel=1e-6)
    assert many["efficiency"] < 1
    assert many["samples_per_s"] == pytest.approx(1024 * many["steps_per_s"])


@pytest.mark.parametrize("name", ["digits", "wine"])
def test_the_network_is_what_training_would_build(name: str) -> None:
    """From the data, read here: 10 classes of digits, 3 cultivars of wine with 13 features."""
    config = load(ROOT / "conf" / f"{name}.toml")
    model = network(config)
    assert (model.in_shape, model.out_shape) == {"digits": ((8, 8, 1), (10,)), "wine": ((13,), (3,))}[name]
    assert 0 < local_step_s(config, model, 4) < 1


def test_networks_of_values_and_of_tokens(tmp_path: Path) -> None:
    text = """
        [data]
        train = "none"
        synthetic = 10
        features = ["x"]
        label = "y"
        shape = [6]
        [model]
        layers = [{ kind = "embedding", size = 5, dim = 3 }, "flatten", { kind = "dense", units = 10 }]
        [loss]
        name = "mse"
        [training]
        accumulate = 2
    """
    path = tmp_path / "c.toml"
    path.write_text(text)
    config = load(path)
    model = network(config)
    assert model.out_shape == (10,)
    assert local_step_s(config, model, 3) > 0


def test_data_that_are_not_there_need_not_be(capsys: pytest.CaptureFixture[str]) -> None:
    conf = str(ROOT / "conf" / "mnist.toml")
    with pytest.raises(DataError, match=r"With data\.shape and data\.classes it is not read"):
        network(load(conf, ["data.train=nowhere"]))
    assert main(["simulate", conf, "--workers=2", "--set", "data.train=nowhere"]) == 3
    assert capsys.readouterr().err.startswith("error: data.train says what the network must be, but ")
    assert len(rows(capsys, conf, *TOLD, "--workers=2", "--set", "data.train=nowhere")) == 1


# ---- several configurations, a table, a picture


def test_several_configurations_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    confs = [str(ROOT / "conf" / f"digits{mode}.toml") for mode in ("", "-allreduce", "-averaging", "-gossip")]
    assert main(["simulate", *confs, *TOLD, "--workers", "2,8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4 * 2
    heads = ["workers", "steps/s", "samples/s", "MB/step", "staleness", "waiting", "efficiency"]
    assert re.split(r"  +", lines[0].strip()) == heads
    assert lines[3].startswith("digits-allreduce        2  ")
    assert re.search(r"8 +[\d.]+ +[\d.]+ +[\d.]+ +1.5 / 3 +0% +[\d.]+%  #+$", lines[6])
    same = [confs[0], str(Path(confs[0]).parent / ".." / "conf" / "digits.toml")]
    assert main(["simulate", *same, *TOLD, "--workers=2"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == same


def test_a_table_of_one_configuration_names_none() -> None:
    row = Row("a", 8, 0.1, 9.5, 12_345.6, 0.951, 0.02, 3.5, 7, 0.049)
    first, second = table([row]).splitlines()
    assert first == "workers  steps/s  samples/s  MB/step  staleness  waiting  efficiency"
    assert second == "      8      9.5     12,346     0.02    3.5 / 7       5%       95.1%  ###################"
    assert table([row._replace(efficiency=40.0)]).endswith("#" * 30)  # a bar ends somewhere


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_picture(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from sparkdl.ml.simulation_plot import plot

    path = tmp_path / f"plot.{form}"
    other = str(ROOT / "conf" / "digits-gossip.toml")
    assert (
        main(["simulate", CONF, other, *TOLD, "--workers", "1..64", "--plot", str(path), "--set", "simulate.steps=2"])
        == 0
    )
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[form])
    assert capsys.readouterr().out.endswith(f"plot: {path}\n")
    found = [Row(name, n, 0.1, 9.0, 64.0 * n, 0.9, 0.1, 0, 0, 0) for name in "ab" for n in (1, 8, 64)]
    fig = plot(found)
    left, right = fig.axes
    for ax in (left, right):
        assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "workers")
        assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "8", "64"]
    assert (left.get_ylabel(), right.get_ylabel()) == ("samples / s", "efficiency (%)")
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["a", "b", "efficiency 100 %"]
    assert right.lines[0].get_ydata().tolist() == [90.0, 90.0, 90.0]


def test_without_matplotlib_there_is_a_table_and_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", CONF, *TOLD, "--workers=2", "--plot", "x.png"]) == 1
    said = capsys.readouterr()
    assert "workers  steps/s" in said.out
    assert said.err == ("error: --plot needs matplotlib: pip install 'sparkdl-train[plot]'. The table does without.\n")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["nowhere.toml"], 2, "error: nowhere.toml: cannot be read: No such file or directory.\n"),
        (
            [CONF, "--set", "simulate.gbits=3"],
            2,
            f"error: {CONF}: unknown key simulate.gbits; did you mean simulate.gbit_s?\n",
        ),
        ([CONF, "--set", "simulate.cv=-1"], 2, f"error: {CONF}: simulate.cv must be a number >= 0; got -1.\n"),
        ([CONF, "--set", "simulate.link_file=no.json"], 2, "no.json: cannot be read: No such file or directory.\n"),
        ([CONF, *TOLD, "--plot", "/nowhere/x.png"], 1, "the picture cannot be written"),
        ([CONF, *TOLD, "--set", "strategy.algorithm=hierarchical", "--set", "simulate.steps=0"], 2, "simulate.steps"),
    ],
)
def test_mistakes_are_told_in_one_line(
    args: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--plot" in args:
        pytest.importorskip("matplotlib")
    assert main(["simulate", *args, "--workers=2"]) == code
    said = capsys.readouterr().err
    assert (
        message in said if message != "--set" else "unknown key simulate.gbits; did you mean simulate.gbit_s?" in said
    )
    assert said.count("\n") == 1
    assert "Traceback" not in said


def test_no_command_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main([])
    assert error.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


# ---- what strategies are to the simulator


@pytest.mark.parametrize("case", [*catalogue.STRATEGIES, *catalogue.RELAXED, *catalogue.FREE], ids=lambda case: case.id)
def test_every_strategy_can_be_simulated(case: Any) -> None:
    assert type(case.strategy) in STRATEGIES.values()
    for workers in (1, 2, 8):
        mode = case.strategy.simulated(workers)
        report = simulate(mode, Cluster(workers), Compute(0.1), 4e6, steps=8, slots=2)
        assert 0 < report.throughput.efficiency <= 1.0001
        # Through others even one worker sends, in one memory nobody.
        elsewhere = any(how in repr(mode) for how in ("ThroughDriver", "colocated=False", "SharedMemory"))
        assert elsewhere or (report.throughput.sent_bytes > 0) is (workers > 1)


def test_what_strategies_say() -> None:
    from sparkdl import simulate as modes

    assert AllReduce("ring", bucket_mb=2).simulated(8) == modes.AllReduce("ring", 2 << 20)
    assert AllReduce().simulated(8) == modes.AllReduce("auto", None)
    assert AllReduce(shard_optimizer=True).simulated(8) == modes.AllReduce("ring")
    assert AllReduce(compressor=TopK(0.1)).simulated(8) == modes.AllReduce("auto", None, TopK(0.1))
    assert ModelAveraging(period=5, optimizer_state="average").simulated(8) == modes.Averaging(5, "auto", slots=True)
    driven = ModelAveraging(period=5, optimizer_state="average", through="driver").simulated(8)
    assert driven == modes.ThroughDriver(0.1, 120e6, 5, slots=True)
    assert Gossip(period=3, listen=7).simulated(8) == modes.Gossip(Gossip().topology, 3, listen=7)


def test_rows_come_as_they_are_asked_for() -> None:
    config = load(CONF, [arg for arg in TOLD if arg != "--set"])
    found = list(rows_of("x", config, [2, 4]))
    assert [(row.name, row.workers) for row in found] == [("x", 2), ("x", 4)]
