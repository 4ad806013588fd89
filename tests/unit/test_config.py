"""Configurations: what the sections take and refuse, overrides, paths, models by name, function and layers."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.comm.cost import Link
from sparkdl.comm.measure import save_links
from sparkdl.config import SCHEMA, Config, Where, digest, from_dict, links_at, load, to_dict
from sparkdl.data import Flip, RandomCrop
from sparkdl.errors import ConfigError
from sparkdl.nn import Dense, Flatten, Layer, Loss, ReLU, Sequential
from sparkdl.nn.losses import MSE, Huber, SoftmaxCrossEntropy
from sparkdl.nn.zoo import ZOO
from sparkdl.optim import SGD, Adam, Clip, Constant, Cosine, Optimizer, Schedule, Step, WarmUp
from sparkdl.simulate import Compute
from sparkdl.strategies import TreeAggregate
from sparkdl.train.callbacks import EarlyStopping, StopAtValue
from sparkdl.train.metrics import Accuracy, Metric, TopK
from sparkdl.train.task import Training
from tests import catalogue

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
[data]
train = "train.parquet"
features = ["x"]
label = "y"

[model]
name = "mlp"
"""

FULL = """
[data]
train = "../data/train.csv"
valid = "hdfs://name/valid.csv"
test = "/abs/test.csv"
format = "csv"
options = { header = true, sep = ";", samplingRatio = 0.5 }
features = ["a", "b"]
label = "y"
weight = "w"
key = ["id"]
shape = [2]
handle_invalid = "skip"
scale = 2
standardize = true
classes = ["no", "yes"]

[model]
name = "mlp"
hidden = [8, 4]
dropout = 0.5
weights = "start"

[loss]
name = "softmax_cross_entropy"
class_weights = [1, 2.5]
label_smoothing = 0.1

[optimizer]
name = "sgd"
lr = 0.1
momentum = 0.9
nesterov = true
weight_decay = 1e-4
exclude = ["head/*"]

[schedule]
name = "step"
every = 2
gamma = 0.5
warmup_epochs = 1

[training]
epochs = 3
batch_size = 16
accumulate = 2
seed = 7
dtype = "float64"
clip_norm = 5
steps_per_epoch = 10
metrics = ["accuracy", { name = "top_k", k = 2 }]
augment = ["flip", { name = "random_crop", padding = 2 }]
mixup = 0.5
early_stopping = { patience = 2, monitor = "val_accuracy" }
stop_at = { monitor = "val_accuracy", value = 0.99 }
time_budget_s = 60
scale_lr = true
master = "threads"
workers = 3

[strategy]
name = "tree_aggregate"
depth = 2

[checkpoint]
folder = "checkpoints"
every_steps = 100
keep_best = "val_loss"
resume = "older"

[output]
model = "model"
history = "history.csv"

[simulate]
compute_s = 0.25
distribution = "lognormal"
cv = 0.3
per_host = 4
gbit_s = 25
link_file = "links.toml"
"""


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str, name: str = "conf/c.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def table(text: str = SMALL, **sections: Any) -> dict[str, Any]:
    """A configuration as a table, sections replaced or, where None, left out."""
    tables = tomllib.loads(text) | sections
    return {name: value for name, value in tables.items() if value is not None}


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigError) as e:
        from_dict(table(**sections), "c.toml")
    return str(e.value)


def test_everything_given(write, tmp_path: Path) -> None:
    config = load(write(FULL))
    data, base = config.data, tmp_path / "conf"
    assert (data.train, data.valid, data.test) == (
        str(tmp_path / "data/train.csv"), "hdfs://name/valid.csv", "/abs/test.csv",
    )  # fmt: skip
    assert data.options == {"header": True, "sep": ";", "samplingRatio": 0.5}
    assert (data.columns.features, data.columns.key, data.columns.shape) == (("a", "b"), ("id",), (2,))
    assert (data.columns.scale, data.columns.standardize, data.classes) == (2.0, True, ("no", "yes"))
    assert (config.model.args, config.model.weights) == ({"hidden": (8, 4), "dropout": 0.5}, str(base / "start"))
    assert config.loss == SoftmaxCrossEntropy(class_weights=(1.0, 2.5), label_smoothing=0.1)
    assert config.optimizer == SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, exclude=("head/*",))
    assert config.schedule == WarmUp(epochs=1.0, then=Step(every=2, gamma=0.5))
    settings = Training(
        epochs=3, batch_size=16, accumulate=2, seed=7, dtype="float64", clip=Clip(norm=5.0), steps_per_epoch=10
    )
    assert config.training.settings == replace(settings, augment=(Flip(), RandomCrop(2)), mixup=0.5)
    assert config.training.metrics == (Accuracy(), TopK(2))
    assert config.training.early_stopping == EarlyStopping(patience=2, monitor="val_accuracy")
    assert config.training.stop_at == StopAtValue("val_accuracy", 0.99)
    assert (config.training.time_budget_s, config.training.scale_lr) == (60.0, True)
    assert (config.training.master, config.training.workers) == ("threads", 3)
    assert config.strategy == TreeAggregate(depth=2)
    assert (config.checkpoint.folder, config.checkpoint.every_steps) == (str(base / "checkpoints"), 100)
    assert config.checkpoint.resume == str(base / "older")
    assert (config.output.model, config.output.history) == (str(base / "model"), str(base / "history.csv"))
    simulated = config.simulate
    assert (simulated.compute_s, simulated.compute) == (0.25, Compute(distribution="lognormal", cv=0.3))
    assert (simulated.per_host, simulated.link_file) == (4, str(base / "links.toml"))
    assert simulated.link.link == pytest.approx(Link(50e-6, 8e-9 / 25, 1e-10))


def test_defaults(write) -> None:
    config = load(write(SMALL))
    assert (config.loss, config.optimizer, config.schedule) == (SoftmaxCrossEntropy(), Adam(), Constant())
    assert (config.training.settings, config.strategy) == (Training(), TreeAggregate())
    assert (config.training.metrics, config.training.early_stopping) == ((), None)
    assert (config.checkpoint.folder, config.checkpoint.resume, config.output.model) == (None, "auto", None)


@pytest.mark.parametrize("text", [SMALL, FULL])
def test_round_trip(text: str) -> None:
    config = from_dict(table(text), folder="/f")
    again = from_dict(to_dict(config))
    assert again == config
    assert to_dict(again) == to_dict(config)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"dat": {}}, "unknown key dat; did you mean data?"),
        ({"data": None}, "data is required: a table."),
        ({"data": 3}, "data must be a table; got 3."),
        ({"data": {"train": "t", "label": "y"}}, "data.features is required: a list of strings."),
        ({"data": {"features": ["x"], "label": "y"}}, "data.train is required: a path."),
        ({"data": {"features": ["x"], "train": "t"}}, "data.label is required: a string"),
        ({"data": {"feature": ["x"]}}, "unknown key data.feature; did you mean data.features?"),
        ({"data": {"target": "values"}}, "unknown key data.target;"),
        ({"data": {"features": "x"}}, 'data.features must be a list of strings; got "x".'),
        ({"model": None}, "model is required: a table."),
        ({"model": {}}, "[model] must have exactly one of name, function, layers; got none."),
        ({"model": {"name": "mlp", "layers": []}}, "[model] must have exactly one of"),
        (
            {"model": {"name": "mpl"}},
            f'model.name must be one of {", ".join(map(json.dumps, ZOO))}; got "mpl". Did you mean "mlp"?',
        ),
        ({"model": {"name": 3}}, "model.name must be a string; got 3."),
        ({"model": {"name": "mlp", "hiden": [1]}}, "unknown key model.hiden; did you mean model.hidden?"),
        ({"model": {"name": "mlp", "classes": 3}}, "unknown key model.classes;"),
        ({"model": {"name": "mlp", "hidden": ["a"]}}, 'model.hidden[0] must be an integer; got "a".'),
        ({"model": {"name": "mlp", "weights": ""}}, 'model.weights must be a path; got "".'),
        ({"model": {"layers": []}}, "model.layers must be a list of at least one layer; got []."),
        ({"model": {"layers": [{"units": 3}]}}, "model.layers[0].kind is required: one of"),
        ({"model": {"layers": [{"kind": "dens"}]}}, 'model.layers[0].kind must be one of "'),
        ({"model": {"layers": [{"kind": "dense"}]}}, "model.layers[0].units is required: an integer."),
        ({"model": {"layers": ["relu", {"kind": "dense", "units": "x"}]}}, "model.layers[1].units must be an integer;"),
        ({"model": {"layers": [{"kind": "dense", "units": 1, "bias": "no"}]}}, "model.layers[0].bias must be true or"),
        ({"model": {"layers": [{"kind": "dense", "units": 0}]}}, "[model.layers[0]] Dense(units=0)"),
        (
            {"model": {"layers": [{"kind": "dense", "units": 1, "unit": 1}]}},
            "unknown key model.layers[0].unit; did you",
        ),
        ({"model": {"layers": ["relu"], "hidden": 1}}, "unknown key model.hidden; known are layers, weights."),
        ({"loss": {}}, 'loss.name is required: one of "'),
        ({"loss": {"name": "mse", "delta": 1}}, "unknown key loss.delta; known are none."),
        ({"loss": {"name": "huber", "delta": "x"}}, 'loss.delta must be a number; got "x".'),
        ({"loss": {"name": "huber", "delta": -1}}, "[loss] Huber(delta=-1.0)"),
        ({"optimizer": {"name": "adamm"}}, "optimizer.name must be one of"),
        ({"optimizer": {"name": "adam", "lr": -1}}, "optimizer.lr must be a number > 0; got -1."),
        ({"optimizer": {"name": "adam", "lr": "big"}}, 'optimizer.lr must be a number > 0; got "big".'),
        ({"optimizer": {"name": "adam", "beta1": 1}}, "optimizer.beta1 must be a number >= 0 and < 1; got 1."),
        ({"optimizer": {"name": "sgd", "nesterov": True}}, "[optimizer] SGD(nesterov=True, momentum=0)"),
        ({"optimizer": 0.1}, "optimizer must be a name or a table; got 0.1."),
        ({"schedule": {"name": "cosine", "gamma": 1}}, "unknown key schedule.gamma; known are"),
        ({"schedule": {"name": "cosine", "warmup_step": 1}}, "unknown key schedule.warmup_step; did you mean"),
        (
            {"schedule": {"name": "cosine", "warmup_steps": -1}},
            "schedule.warmup_steps must be an integer >= 0; got -1.",
        ),
        ({"schedule": {"warmup_steps": 1, "warmup_epochs": 1}}, "[schedule] WarmUp(steps=1, epochs=1.0)"),
        ({"schedule": {"gamma": 1}}, "schedule.name is required: one of"),
        ({"schedule": {"name": ["x"]}}, "schedule.name must be one of"),
        ({"schedule": 1}, "schedule must be a name or a table; got 1."),
        ({"training": {"epochs": "ten"}}, "training.epochs must be an integer"),
        ({"training": {"epochs": 0}}, "training.epochs must be an integer >= 1; got 0."),
        ({"training": {"epoch": 1}}, "unknown key training.epoch; did you mean training.epochs?"),
        ({"training": {"dtype": "float16"}}, 'training.dtype must be one of "float32", "float64"; got "float16".'),
        ({"training": {"clip_norm": 0}}, "training.clip_norm must be a number > 0; got 0."),
        ({"training": {"metrics": ["acc"]}}, "training.metrics[0].name must be one of"),
        ({"training": {"early_stopping": {"patience": 0}}}, "training.early_stopping.patience must be an integer >= 1"),
        (
            {"training": {"early_stopping": {"patients": 1}}},
            "unknown key training.early_stopping.patients; did you mean",
        ),
        ({"training": {"stop_at": {"value": 1}}}, "training.stop_at.monitor is required: a string."),
        ({"training": {"time_budget_s": 0}}, "training.time_budget_s must be a number > 0; got 0."),
        ({"training": {"master": "yarn"}}, 'training.master must be one of "", "threads", "processes"; got "yarn".'),
        ({"training": {"workers": -1}}, "training.workers must be an integer >= 0; got -1."),
        ({"strategy": "ring"}, "strategy.name must be"),
        ({"strategy": {"name": "tree_aggregate", "depth": -1}}, "strategy.depth must be an integer >= 0"),
        ({"checkpoint": {"keep_last": 0}}, "checkpoint.keep_last must be an integer >= 1; got 0."),
        ({"checkpoint": {"resume": True}}, 'checkpoint.resume must be one of "auto", "never" or a path; got true.'),
        ({"output": {"overwrite": "yes"}}, 'output.overwrite must be true or false; got "yes".'),
    ],
    ids=str,
)
def test_refused(sections: dict[str, Any], sentence: str) -> None:
    assert refusal(**sections).startswith(f"c.toml: {sentence}")


def test_one_source_of_validation_rows() -> None:
    data = {"train": "t", "features": ["x"], "label": "y", "valid": "v"}
    assert "data.valid and data.valid_fraction exclude each other" in refusal(data=data | {"valid_fraction": 0.1})
    assert "data.valid and data.valid_column exclude each other" in refusal(data=data | {"valid_column": "v"})


def test_synthetic_rows_need_no_path() -> None:
    data = from_dict(table(data={"features": ["x"], "label": "y", "synthetic": 100})).data
    assert (data.synthetic, data.train) == (100, None)


@pytest.mark.parametrize("classes", [["a"], ["a", "a"], []])
def test_classes_are_two_or_more_different_ones(classes: list[str]) -> None:
    data = {"train": "t", "features": ["x"], "label": "y", "classes": classes}
    assert refusal(data=data).startswith("c.toml: data.classes must be a list of at least 2 different labels; got [")


@pytest.mark.parametrize(
    ("override", "attribute", "expected"),
    [
        ("training.epochs=5", "training.settings.epochs", 5),
        (" training.epochs = 5", "training.settings.epochs", 5),
        ("optimizer.name=sgd", "optimizer", SGD()),
        ('optimizer.name="sgd"', "optimizer", SGD()),
        ("loss.name=mse", "loss", MSE()),
        ("training.scale_lr=true", "training.scale_lr", True),
        ('data.features=["a", "b"]', "data.columns.features", ("a", "b")),
        ("data.label=a=b", "data.columns.label", "a=b"),
        ("data.options.sep=;", "data.options", {"sep": ";"}),
        ("training.early_stopping.patience=3", "training.early_stopping.patience", 3),
        ("training.early_stopping={patience=3}", "training.early_stopping.patience", 3),
        ("data.train=s3a://bucket/x", "data.train", "s3a://bucket/x"),
        ("checkpoint.resume=never", "checkpoint.resume", "never"),
        ("checkpoint.resume=older", "checkpoint.resume", str(Path.cwd() / "older")),
        ("model.weights=w", "model.weights", str(Path.cwd() / "w")),
        ("output.model=m", "output.model", str(Path.cwd() / "m")),
        ("data.weight=1\nx=2", "data.columns.weight", "1\nx=2"),
    ],
)
def test_overrides(write, override: str, attribute: str, expected: Any) -> None:
    value: Any = load(write(SMALL), [override])
    for name in attribute.split("."):
        value = getattr(value, name)
    assert value == expected


def test_later_overrides_win(write) -> None:
    assert load(write(FULL), ["training.epochs=5", "training.epochs=6"]).training.settings.epochs == 6


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epochs", '--set needs section.key=value; got "training.epochs".'),
        ("epochs=3", '--set needs section.key=value; got "epochs=3".'),
        (".epochs=3", "--set needs section.key=value"),
        ("training.=3", "--set needs section.key=value"),
        ("model.name.x=3", 'model.name is "mlp", not a table of keys.'),
        ("output.model=3", "--set: output.model must be a path; got 3."),
        ("training.epochs=ten", "training.epochs must be an integer"),
        ("training.epoch=3", "unknown key training.epoch; did you mean training.epochs?"),
    ],
)
def test_wrong_overrides(write, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as e:
        load(write(SMALL), [override])
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[data\n", "is not TOML: "),
        (b"[data]\nx = 1\nx = 2\n", "is not TOML: "),
        (b'[data]\nx = "\xff"\n', "is not TOML: "),
        (b"", "data is required: a table."),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as e:
        load(path)
    assert str(e.value).startswith(f"{path}: {message}")


def test_a_missing_file_and_a_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml: cannot be read: No such file"):
        load(tmp_path / "x.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_byte_order_mark_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load(path).model.name == "mlp"


def test_the_folder_of_a_relative_path_is_the_files(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(SMALL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load("../conf/c.toml").data.train == str(tmp_path / "conf/train.parquet")


def test_digest_tells_what_trains_differently() -> None:
    base = from_dict(table())
    assert digest(base) == digest(from_dict(to_dict(base)))
    assert len(digest(base)) == 16
    for section, entry in (("checkpoint", {"folder": "x"}), ("output", {"model": "x"}), ("simulate", {"rows": 2})):
        assert digest(from_dict(table(**{section: entry}))) == digest(base)
    assert digest(from_dict(table(training={"seed": 1}))) != digest(base)
    assert digest(from_dict(table(optimizer={"name": "sgd"}))) != digest(base)


def test_the_shape_of_the_data_reaches_the_builder() -> None:
    model = from_dict(table(model={"name": "mlp", "hidden": [5]})).model
    net = model.net((2, 3), 4)
    assert net.out_shape((2, 3)) == (4,)
    assert isinstance(net, Sequential)
    assert [layer.units for layer in net.layers if isinstance(layer, Dense)] == [5, 4]


def test_layers_in_line() -> None:
    layers = [
        {"kind": "flatten"},
        {"kind": "residual", "body": {"kind": "sequential", "layers": [{"kind": "dense", "units": 6, "bias": False}]}},
        {"kind": "dense", "units": 3, "init": {"kind": "orthogonal", "gain": 2.0}},
    ]
    config = from_dict(table(model={"layers": layers}))
    net = config.model.net((2, 3), 3)
    assert isinstance(net, Sequential)
    assert (net.layers[0], net.layers[2].init.gain) == (Flatten(), 2.0)
    assert net.out_shape((2, 3)) == (3,)
    assert from_dict(to_dict(config)) == config


MODULE = """
from sparkdl.nn import Dense, Sequential

def net(in_shape, classes, *, units: int, wide: bool = False):
    if units > 100:
        raise ValueError("too many units")
    return Sequential((Dense(units), Dense(classes)))

def fixed():
    return Dense(2)

def free(**options):
    return Dense(options.get("units", options["classes"]))

def unhinted(in_shape, units):
    return Dense(units)

def lists(units: list[int], names: dict[str, int], what: complex = 0):
    assert isinstance(units, list) and what == "any"
    return Dense(sum([1] + units) + names["a"])

def odd(in_shape: "Unknown", units: "int" = 1):
    return "no layer"

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_net.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_net", raising=False)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"function": "my_net:net", "units": 5}, Sequential((Dense(5), Dense(3)))),
        ({"function": "my_net:fixed"}, Dense(2)),
        ({"function": "my_net:free", "units": 7}, Dense(7)),
        ({"function": "my_net:free"}, Dense(3)),
        ({"function": "my_net:unhinted", "units": 7}, Dense(7)),
        ({"function": "my_net:lists", "units": [2], "names": {"a": 3}, "what": "any"}, Dense(6)),
    ],
    ids=str,
)
def test_functions(model: dict[str, Any], expected: Any) -> None:
    config = from_dict(table(model=model))
    assert config.model.net((4,), 3) == expected
    assert from_dict(to_dict(config)) == config


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"function": "my_net"}, 'model.function must be "module:function"; got "my_net".'),
        ({"function": ":net"}, 'model.function must be "module:function"; got ":net".'),
        (
            {"function": "my_nett:net"},
            "model.function names the module my_nett, which cannot be imported (ModuleNotFound",
        ),
        ({"function": "broken:net"}, "model.function names the module broken, which cannot be imported (ZeroDivisionE"),
        (
            {"function": "my_net:nett"},
            "model.function names no function: my_net has none of the name nett. Did you mean",
        ),
        ({"function": "my_net:number"}, "model.function names no function: my_net has none of the name number."),
        ({"function": "my_net:lists", "units": 2}, "model.names is required: a table."),
        ({"function": "my_net:lists", "units": 2, "names": {}}, "model.units must be a list of integers; got 2."),
        ({"function": "my_net:net"}, "model.units is required: an integer."),
        ({"function": "my_net:net", "units": "x"}, 'model.units must be an integer; got "x".'),
        ({"function": "my_net:net", "units": 1, "wid": True}, "unknown key model.wid; did you mean model.wide?"),
        ({"function": "my_net:unhinted"}, "model.units is required: an argument of model."),
    ],
    ids=str,
)
def test_wrong_functions(model: dict[str, Any], sentence: str) -> None:
    assert refusal(model=model).startswith(f"c.toml: {sentence}")


@pytest.mark.usefixtures("module")
def test_what_a_builder_says_is_a_wrong_configuration() -> None:
    model = from_dict(table(model={"function": "my_net:net", "units": 101})).model
    with pytest.raises(ConfigError, match=r"^\[model\] my_net:net: too many units$"):
        model.net((4,), 3)
    model = from_dict(table(model={"function": "my_net:odd"})).model
    with pytest.raises(ConfigError, match=r"my_net:odd must return a Layer; got str"):
        model.net((4,), 3)
    with pytest.raises(ConfigError, match=r"^\[model\] cnn: "):
        from_dict(table(model={"name": "cnn"})).model.net((4,), 3)


def test_a_warm_up_alone_and_names_alone() -> None:
    config = from_dict(table(schedule={"warmup_steps": 5}, loss="huber", optimizer="adam", strategy="tree_aggregate"))
    assert config.schedule == WarmUp(steps=5, then=Constant())
    assert (config.loss, config.optimizer) == (Huber(), Adam())
    assert from_dict(table(schedule="cosine")).schedule == Cosine()
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.toml")), ids=lambda p: p.name)
def test_the_shipped_configurations_load(path: Path) -> None:
    config = load(path)
    assert from_dict(to_dict(config)) == config
    assert config.data.train is not None
    if "data are not shipped" not in path.read_text():
        assert Path(config.data.train).exists()


def test_layers_may_be_named_by_kind_alone() -> None:
    model = from_dict(table(model={"layers": ["flatten", "relu", {"kind": "dense", "units": 2}]})).model
    assert model.layers == (Flatten(), ReLU(), Dense(2))


ROWS = [
    *((Layer, case.layer) for case in catalogue.LAYERS),
    *((Loss, case.loss) for case in catalogue.LOSSES),
    *((Metric, case.metric) for case in catalogue.METRICS),
    *((Optimizer, case.optimizer) for case in catalogue.OPTIMIZERS),
    *((Schedule, case.schedule) for case in catalogue.SCHEDULES),
]


@pytest.mark.parametrize(("kind", "value"), ROWS, ids=[repr(value) for _, value in ROWS])
def test_every_row_of_the_catalogue_can_be_configured(kind: Any, value: Any) -> None:
    told = SCHEMA.dump(value, kind)
    assert SCHEMA.convert(kind, json.loads(json.dumps(told)), Where("c.toml", "x")) == value


plain = (
    st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4) | st.datetimes() | st.just([]) | st.just({})
)
values = plain | st.lists(plain, max_size=2) | st.dictionaries(st.text(max_size=4), plain, max_size=2)


@st.composite
def confused(draw: st.DrawFn) -> dict[str, Any]:
    """The full configuration with one value of another type, or one more key, somewhere."""
    tables = tomllib.loads(FULL)
    section = draw(st.sampled_from(sorted(tables)))
    key = draw(st.sampled_from(sorted(tables[section])) | st.text(max_size=4))
    tables[section][key] = draw(values)
    return tables


@given(confused())
def test_type_confusion_is_taken_or_refused_in_a_sentence(tables: dict[str, Any]) -> None:
    try:
        config = from_dict(tables, "c.toml")
    except ConfigError as e:
        message = str(e)
    else:
        message = "c.toml: taken"
        assert from_dict(to_dict(config)) == config
    assert message.startswith("c.toml: ")
    assert {f.name for f in fields(Config)} == set(tables)


@pytest.mark.parametrize("name", ["links.toml", "links.json"])
def test_links_are_read_as_a_measurement_writes_them(tmp_path: Path, name: str) -> None:
    between, within = Link(40e-6, 1e-9, 2e-10), Link(3e-6, 1e-10, 2e-10)
    for inner in (None, within):
        save_links(tmp_path / name, between, inner)
        found = links_at(tmp_path / name)
        assert found.between.link == pytest.approx(between, rel=1e-5)
        assert (found.within and found.within.link) == (inner and pytest.approx(inner, rel=1e-5))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.toml", "[within]\n", "between is required: a table."),
        ("l.toml", "[between]\ngbits = 1\n", "unknown key between.gbits; did you mean between.gbit_s?"),
        ("l.json", '{"between": {"alpha_us": 0}}', "between.alpha_us must be a number > 0; got 0."),
        ("l.json", "[]", "must be an object of keys; got []."),
        ("l.json", "between", "is not JSON: Expecting value: line 1 column 1 (char 0)."),
    ],
)
def test_wrong_links(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        links_at(tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: {message}"
