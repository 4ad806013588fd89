"""The printed tables, character by character, with counts worked out by hand."""

from __future__ import annotations

from sparkdl.nn import (
    MSE,
    BatchNorm,
    Concat,
    Dense,
    Flatten,
    Model,
    ReLU,
    Residual,
    Sequential,
    Tanh,
    parameter_table,
    summary,
)

NET = Sequential([Flatten(), Residual(Sequential([Dense(64), Tanh()])), Concat([Dense(10), Dense(2000)]), BatchNorm()])
MODEL = Model(NET, MSE(), (8, 8))

SUMMARY = """\
layer         output  parameters  multiply-adds
-----------------------------------------------
input         8 x 8
flatten_0     64
residual_1    64
  body        64
    dense_0   64           4,160          4,096
    tanh_1    64
concat_2      2010
  dense_0     10             650            640
  dense_1     2000       130,000        128,000
batch_norm_3  2010         8,040
-----------------------------------------------
total                    142,850        132,736
138,830 trainable parameters, 4,020 statistics"""

PARAMETERS = """\
parameter                  shape         size  trainable
--------------------------------------------------------
residual_1/body/dense_0/W  64 x 64      4,096  yes
residual_1/body/dense_0/b  64              64  yes
concat_2/dense_0/W         64 x 10        640  yes
concat_2/dense_0/b         10              10  yes
concat_2/dense_1/W         64 x 2000  128,000  yes
concat_2/dense_1/b         2000         2,000  yes
batch_norm_3/gamma         2010         2,010  yes
batch_norm_3/beta          2010         2,010  yes
batch_norm_3/mean          2010         2,010  no
batch_norm_3/var           2010         2,010  no
--------------------------------------------------------
total                                 142,850"""


def test_layers() -> None:
    assert summary(MODEL) == SUMMARY


def test_costs() -> None:
    """Depths are 1 + ceil(log2 5), 1, 1 and 1 + log2 4; bytes those of what is read, of the parameters, of y."""
    net = Sequential([Flatten(), Residual(Sequential([Dense(4), ReLU()])), Dense(1, bias=False)])
    lines = summary(Model(net, MSE(), (2, 2)), cost=True).splitlines()
    assert lines[0].split("  ")[-1] == "parameter bytes"
    cells = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert cells["flatten_0"] == ["4"]
    assert cells["residual_1"] == ["4", "4", "1", "48"]
    assert cells["dense_0"] == ["4", "20", "16", "32", "4", "112", "80"]
    assert cells["relu_1"] == ["4", "4", "1", "32"]
    assert cells["dense_2"] == ["1", "4", "4", "7", "3", "36", "16"]
    assert cells["total"] == ["24", "20", "47", "9", "228", "96"]


def test_parameters() -> None:
    assert parameter_table(MODEL) == PARAMETERS


def test_a_single_layer_is_a_model_too() -> None:
    assert summary(Model(Dense(1), MSE(), (3,))).splitlines()[2:] == [
        "input  3",
        "dense  1                4              3",
        "----------------------------------------",
        "total                   4              3",
        "4 trainable parameters",
    ]


def test_a_model_without_parameters() -> None:
    model = Model(Sequential([]), MSE(), ())
    assert summary(model).splitlines()[2:] == [
        "input  scalar",
        "----------------------------------------",
        "total                   0              0",
        "0 trainable parameters",
    ]
    assert parameter_table(model).splitlines()[-1] == "total                0"
