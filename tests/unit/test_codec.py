"""Layers and losses as data: what is written, what is refused, and that data runs nothing."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field

import numpy as np
import pytest

from sparkdl.nn import (
    MSE,
    Array,
    BatchNorm,
    Concat,
    Constant,
    Conv2D,
    Ctx,
    Dense,
    Dropout,
    Flatten,
    HeNormal,
    Layer,
    Orthogonal,
    Params,
    ReLU,
    Residual,
    Sequential,
    Shape,
    SoftmaxCrossEntropy,
)
from sparkdl.nn.codec import decode_layer, decode_loss, encode
from sparkdl.nn.losses import Huber


@dataclass(frozen=True)
class Scale(Layer):
    """y = factor x; a layer of a user's own."""

    factor: float = 1.0
    notes: tuple[str, ...] = field(default_factory=tuple)

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Params, x: Array, ctx: Ctx) -> tuple[Array, None]:
        return self.factor * x, None

    def backward(self, p: Params, cache: None, dy: Array, g: Params, ctx: Ctx) -> Array:
        return self.factor * dy


def test_only_what_differs_from_the_default_is_written() -> None:
    assert encode(ReLU()) == {"kind": "relu"}
    assert encode(Dropout(0.5)) == {"kind": "dropout"}
    assert encode(Dense(3, bias=False, init=HeNormal())) == {
        "kind": "dense",
        "units": 3,
        "bias": False,
        "init": {"kind": "he_normal"},
    }
    assert encode(SoftmaxCrossEntropy(class_weights=[1, 2])) == {
        "kind": "softmax_cross_entropy",
        "class_weights": [1.0, 2.0],
    }


def test_nested_layers_and_initializers_are_written_in_full() -> None:
    net = Sequential([Residual(Dense(2, init=Orthogonal(2.0)), shortcut=Concat([Flatten()])), BatchNorm()])
    assert encode(net) == {
        "kind": "sequential",
        "layers": [
            {
                "kind": "residual",
                "body": {"kind": "dense", "units": 2, "init": {"kind": "orthogonal", "gain": 2.0}},
                "shortcut": {"kind": "concat", "branches": [{"kind": "flatten"}]},
            },
            {"kind": "batch_norm"},
        ],
    }
    assert decode_layer(json.loads(json.dumps(encode(net)))) == net


def test_toml_is_read_alike() -> None:
    text = """
    kind = "sequential"
    layers = [
      { kind = "conv2d", filters = 8, kernel = 3, padding = [[0, 1], [1, 0]] },
      { kind = "relu" },
      { kind = "flatten" },
      { kind = "dense", units = 10, init = { kind = "constant", value = 0.5 } },
    ]
    """
    expected = Sequential([Conv2D(8, 3, padding=((0, 1), (1, 0))), ReLU(), Flatten(), Dense(10, init=Constant(0.5))])
    assert decode_layer(tomllib.loads(text)) == expected


def test_numpy_scalars_become_plain_numbers() -> None:
    data = encode(Sequential([Dense(np.int64(3)), Dropout(np.float32(0.25))]))
    assert json.loads(json.dumps(data)) == encode(Sequential([Dense(3), Dropout(0.25)]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "conv2"}, r"layer: unknown kind 'conv2'\. Did you mean 'conv2d'\?"),
        ({"kind": "Dense", "units": 1}, r"unknown kind 'Dense'\. Did you mean 'dense'\?"),
        ({"kind": "zzz"}, r"unknown kind 'zzz'\. Known: arctan, .*, tanh"),
        ({"kind": "zeros"}, r"layer: unknown kind 'zeros'"),
        ({"kind": "mse"}, r"layer: unknown kind 'mse'"),
        ({"kind": "os.system"}, r"layer: unknown kind 'os\.system'"),
        ({"kind": "dense", "unit": 3}, r"layer: dense has no field 'unit'\. Did you mean 'units'\?"),
        ({"kind": "relu", "slope": 3}, r"layer: relu has no field 'slope'\. Known: none\."),
        ({"kind": "dense"}, r"layer: dense needs units"),
        ({"kind": "dense", "units": 0}, r"layer: Dense\(units=0\)"),
        ({"kind": "dense", "units": 2, "init": {"kind": "he"}}, r"layer\.init: unknown kind 'he'"),
        ({"kind": "sequential", "layers": [{"kind": "relu"}, {"kind": "rel"}]}, r"layer\.layers\[1\]: .*'relu'"),
        (
            {"kind": "sequential", "layers": [{"kind": "residual", "body": {}}]},
            r"layer\.layers\[0\]\.body: must be a table",
        ),
        ({"kind": "sequential", "layers": 3}, r"layer: Sequential takes a list of layers; got 3"),
        ({"units": 3}, r'must be a table with a "kind"'),
        ({"kind": 3}, r'must be a table with a "kind"'),
        ("relu", r'must be a table with a "kind", one of .*; got \'relu\''),
        (None, r'must be a table with a "kind"'),
    ],
)
def test_refusals_name_the_place_and_the_nearest(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_layer(data)  # type: ignore[arg-type]


def test_losses_are_another_family() -> None:
    assert decode_loss({"kind": "huber", "delta": 2.0}) == Huber(2.0)
    with pytest.raises(ValueError, match=r"loss: unknown kind 'relu'"):
        decode_loss({"kind": "relu"})
    with pytest.raises(ValueError, match="Did you mean 'softmax_cross_entropy'"):
        decode_loss({"kind": "softmax_crossentropy"})


def test_custom_layers_are_passed_by_the_caller() -> None:
    net = Sequential([Scale(2.0, ("a",)), Scale()])
    data = json.loads(json.dumps(encode(net)))
    assert data["layers"] == [{"kind": "scale", "factor": 2.0, "notes": ["a"]}, {"kind": "scale"}]
    assert decode_layer(data, custom={"scale": Scale}) == net
    with pytest.raises(ValueError, match=r"layer\.layers\[0\]: unknown kind 'scale'"):
        decode_layer(data)


def test_a_custom_class_cannot_take_a_registered_kind() -> None:
    @dataclass(frozen=True)
    class Tanh(Scale):
        pass

    with pytest.raises(
        ValueError, match=r"Tanh cannot be written as data: its kind 'tanh' is sparkdl\.nn\.activation's"
    ):
        encode(Tanh())
    assert decode_layer({"kind": "tanh"}, custom={"tanh": Tanh}) != Tanh()


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (Dense(2, init=lambda rng, shape: np.zeros(shape)), r"dense\.init = <function .* cannot be written"),
        (Sequential([Scale(np.ones(2))]), r"scale\.factor = array"),  # type: ignore[arg-type]
        (object(), r"builtins\.object cannot be written as data: it is not a dataclass"),
        (3, r"builtins\.int cannot be written"),
    ],
    ids=["function", "array", "object", "number"],
)
def test_what_data_cannot_hold_is_refused(obj: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(obj)


def test_a_loss_is_written_like_a_layer() -> None:
    assert encode(MSE()) == {"kind": "mse"}
