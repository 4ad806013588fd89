"""Every public layer, loss, optimizer, schedule, strategy, metric, compressor and topology once, with options.

The contract tests run over these rows, and meta-tests fail where a public class has none. To add one: a row here.
Golden files pin what a saved model depends on; after a change that is meant, write them anew: python -m tests.catalogue
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparkdl import nn, optim
from sparkdl.comm import compress, gossip
from sparkdl.nn import zoo
from sparkdl.optim import DiLoCo
from sparkdl.strategies import (
    AllReduce,
    Gossip,
    Hogwild,
    ModelAveraging,
    ParameterServer,
    Strategy,
    TreeAggregate,
)
from sparkdl.train import metrics

__all__ = [
    "COLLECTIVES",
    "COMPRESSORS",
    "FREE",
    "GOLDEN",
    "LAYERS",
    "LOSSES",
    "METRICS",
    "NETWORKS",
    "OPTIMIZERS",
    "OUTER",
    "SCHEDULES",
    "STRATEGIES",
    "TOPOLOGIES",
    "CompressorCase",
    "LayerCase",
    "LossCase",
    "MetricCase",
    "NetworkCase",
    "OptimizerCase",
    "OuterCase",
    "ScheduleCase",
    "StrategyCase",
    "TopologyCase",
    "golden_layers",
]

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class LayerCase:
    """A layer, the shape of one input sample and, where standard normal numbers do not serve, inputs (rng, shape) -> x.

    `discrete` inputs, such as indices, have no gradient; entries equal to `mark` say that something is missing.
    """

    id: str
    layer: nn.Layer
    in_shape: nn.Shape
    make_x: Callable[[np.random.Generator, nn.Shape], nn.Array] = np.random.Generator.standard_normal
    discrete: bool = False
    mark: float | None = None


@dataclass(frozen=True)
class NetworkCase:
    """A network of the zoo by name, and how many trainable parameters it has for such samples and classes."""

    id: str
    in_shape: nn.Shape
    classes: int
    parameters: int


@dataclass(frozen=True)
class LossCase:
    """A loss, the shape of one output sample, and targets (rng, rows) -> y for it.

    The last `constant` outputs of a row are taken as given: no gradient goes there.
    """

    id: str
    loss: nn.Loss
    out_shape: nn.Shape
    make_targets: Callable[[np.random.Generator, int], nn.Array]
    constant: int = 0


@dataclass(frozen=True)
class OptimizerCase:
    """An optimizer."""

    id: str
    optimizer: optim.Optimizer


@dataclass(frozen=True)
class OuterCase:
    """An outer optimizer, and whether it is plain averaging under another name."""

    id: str
    optimizer: optim.OuterOptimizer
    averages: bool = False


@dataclass(frozen=True)
class ScheduleCase:
    """A learning rate schedule."""

    id: str
    schedule: optim.Schedule


@dataclass(frozen=True)
class StrategyCase:
    """A strategy that gives the same weights as one worker does."""

    id: str
    strategy: Strategy


@dataclass(frozen=True)
class CompressorCase:
    """A compressor, and whether its messages are right on average."""

    id: str
    compressor: compress.Compressor
    unbiased: bool = False


@dataclass(frozen=True)
class TopologyCase:
    """A topology, and whether Metropolis weights are doubly stochastic on it; if not, it needs push-sum."""

    id: str
    topology: gossip.Topology
    balanced: bool = True


@dataclass(frozen=True)
class MetricCase:
    """A metric with a loss it goes with, the shape of one output sample, and targets (rng, rows) -> y."""

    id: str
    metric: metrics.Metric
    loss: nn.Loss
    out_shape: nn.Shape
    make_targets: Callable[[np.random.Generator, int], nn.Array]


def _labels(rng: np.random.Generator, rows: int) -> nn.Array:
    return rng.integers(0, 4, rows)


def _labels_or_ignored(rng: np.random.Generator, rows: int) -> nn.Array:
    return rng.integers(-1, 4, rows)


def _binary(*shape: int) -> Callable[[np.random.Generator, int], nn.Array]:
    return lambda rng, rows: rng.integers(0, 2, (rows, *shape))


def _values(*shape: int) -> Callable[[np.random.Generator, int], nn.Array]:
    return lambda rng, rows: 2 * rng.standard_normal((rows, *shape))


def _distributions(rng: np.random.Generator, rows: int) -> nn.Array:
    return rng.dirichlet(np.ones(4), rows)


def _label_and_values(rng: np.random.Generator, rows: int) -> nn.Array:
    return np.column_stack([_labels(rng, rows), _values(2)(rng, rows)])


def _mixed(rng: np.random.Generator, rows: int) -> nn.Array:
    return np.column_stack([_labels(rng, rows), _values(5)(rng, rows)])


def _positive(rng: np.random.Generator, shape: nn.Shape) -> nn.Array:
    return rng.uniform(0.5, 2, shape)


def _within_one(rng: np.random.Generator, shape: nn.Shape) -> nn.Array:
    return rng.uniform(-0.9, 0.9, shape)


def _indices(rng: np.random.Generator, shape: nn.Shape) -> nn.Array:
    return rng.integers(0, 5, shape)


def _with_gaps(rng: np.random.Generator, shape: nn.Shape) -> nn.Array:
    """Sequences some of whose steps are 9 throughout."""
    return np.where(rng.random((*shape[:-1], 1)) < 0.4, 9, rng.standard_normal(shape))


_IMAGE = (6, 5, 4)
_SEQUENCE = (6, 4)
_TWINS = nn.Graph(
    [
        nn.Node("left_code", "left", nn.Sequential([nn.Dense(3), nn.BatchNorm(), nn.Tanh()])),
        nn.Node("right_code", "right", shares="left_code"),
        nn.Node("difference", ("left_code", "right_code"), merge="subtract"),
        nn.Node("square", ("difference", "difference"), merge="multiply"),
        nn.Node("same", ("square", "left_code"), nn.Dense(2)),
    ],
    outputs=("same", "right_code"),
    inputs=[nn.Input("left", (4,)), nn.Input("right", (4,))],
)
_DIAMOND = nn.Graph(
    [
        nn.Node("stem", "input", nn.Conv2D(4, 3)),
        nn.Node("a", "stem", nn.Conv2D(3, 1)),
        nn.Node("b", ("stem", "input"), nn.Conv2D(3, 3), merge="add"),
        nn.Node("joined", ("a", "b", "a")),
    ],
    outputs="joined",
)
_BOTTLENECK = nn.Sequential([nn.Conv2D(3, 1), nn.Tanh(), nn.Conv2D(4, 3)])

LAYERS = [
    LayerCase("dense", nn.Dense(4), (3,)),
    LayerCase("dense-no-bias", nn.Dense(4, bias=False), (3,)),
    LayerCase("dense-sequence", nn.Dense(2), _SEQUENCE),
    LayerCase("dense-orthogonal", nn.Dense(2, init=nn.Orthogonal(2.0)), (5,)),
    LayerCase("conv2d", nn.Conv2D(3, 3), _IMAGE),
    LayerCase("conv2d-no-bias", nn.Conv2D(3, 3, bias=False), _IMAGE),
    LayerCase("conv2d-valid", nn.Conv2D(3, 3, padding="valid"), _IMAGE),
    LayerCase("conv2d-stride", nn.Conv2D(3, 3, stride=2), _IMAGE),
    LayerCase("conv2d-1x1", nn.Conv2D(3, 1), _IMAGE),
    LayerCase("conv2d-1x1-stride", nn.Conv2D(3, 1, stride=2), _IMAGE),
    LayerCase("conv2d-rectangular", nn.Conv2D(3, (3, 2), stride=(1, 2), padding=1), _IMAGE),
    LayerCase("conv2d-explicit-padding", nn.Conv2D(3, 3, padding=((2, 0), (1, 1))), _IMAGE),
    LayerCase("conv2d-dilation", nn.Conv2D(3, 2, dilation=(2, 3), padding="valid"), _IMAGE),
    LayerCase("conv2d-groups", nn.Conv2D(6, 3, groups=2), _IMAGE),
    LayerCase("conv2d-depthwise", nn.Conv2D(8, 3, groups=4), _IMAGE),
    LayerCase("conv2d-symmetric-padding", nn.Conv2D(3, 3, padding=(2, 1)), _IMAGE),
    LayerCase("conv2d-stride-dilation", nn.Conv2D(3, 2, stride=(2, 3), dilation=(3, 2), padding=2), _IMAGE),
    LayerCase("conv2d-groups-stride", nn.Conv2D(6, 3, stride=2, groups=2, bias=False), _IMAGE),
    LayerCase("conv2d-depthwise-wide", nn.Conv2D(16, 3, stride=(2, 1), groups=16), (6, 5, 16)),
    LayerCase("conv2d-reflect", nn.Conv2D(3, 3, stride=(2, 1), padding_mode="reflect"), _IMAGE),
    LayerCase(
        "conv2d-replicate", nn.Conv2D(4, 3, padding=((2, 0), (3, 1)), groups=2, padding_mode="replicate"), _IMAGE
    ),
    LayerCase("conv2d-circular", nn.Conv2D(3, 3, dilation=2, padding_mode="circular"), _IMAGE),
    LayerCase("conv2d-direct", nn.Conv2D(3, (3, 2), dilation=(1, 2), algorithm="direct"), _IMAGE),
    LayerCase("conv2d-fft", nn.Conv2D(4, 3, stride=(2, 1), groups=2, algorithm="fft"), _IMAGE),
    LayerCase("conv2d-winograd2", nn.Conv2D(3, 3, algorithm="winograd2"), _IMAGE),
    LayerCase("conv2d-winograd4", nn.Conv2D(3, 3, padding="valid", algorithm="winograd4"), _IMAGE),
    LayerCase("conv2d_transpose", nn.Conv2DTranspose(3, 3), _IMAGE),
    LayerCase("conv2d_transpose-same-stride", nn.Conv2DTranspose(3, 3, stride=(2, 3)), _IMAGE),
    LayerCase("conv2d_transpose-gaps", nn.Conv2DTranspose(3, 2, stride=3, bias=False), _IMAGE),
    LayerCase("conv2d_transpose-valid", nn.Conv2DTranspose(3, (3, 2), stride=2, padding="valid"), _IMAGE),
    LayerCase(
        "conv2d_transpose-output-padding",
        nn.Conv2DTranspose(4, 3, stride=(2, 3), padding=((1, 0), (1, 2)), output_padding=(1, 2), groups=2),
        _IMAGE,
    ),
    LayerCase("conv2d_transpose-dilation", nn.Conv2DTranspose(4, 2, 2, 1, dilation=(2, 3), groups=4), _IMAGE),
    LayerCase("locally_connected2d", nn.LocallyConnected2D(3, 3), _IMAGE),
    LayerCase(
        "locally_connected2d-options", nn.LocallyConnected2D(2, (3, 2), (2, 1), "same", (1, 2), bias=False), _IMAGE
    ),
    LayerCase("conv1d", nn.Conv1D(3, 3), _SEQUENCE),
    LayerCase("conv1d-valid-stride", nn.Conv1D(3, 2, stride=2, padding="valid", bias=False), _SEQUENCE),
    LayerCase("conv1d-causal", nn.Conv1D(4, 3, padding="causal", dilation=2, groups=2), _SEQUENCE),
    LayerCase("conv1d-reflect", nn.Conv1D(3, 3, padding=(2, 1), padding_mode="reflect"), _SEQUENCE),
    LayerCase("max_pool1d", nn.MaxPool1D(), _SEQUENCE),
    LayerCase("max_pool1d-padding-ceil", nn.MaxPool1D(3, stride=2, padding=(1, 0), ceil_mode=True), _SEQUENCE),
    LayerCase("avg_pool1d", nn.AvgPool1D(), _SEQUENCE),
    LayerCase("avg_pool1d-same", nn.AvgPool1D(3, stride=2, padding="same"), _SEQUENCE),
    LayerCase("avg_pool1d-ceil-count", nn.AvgPool1D(3, 2, 1, ceil_mode=True, count_include_pad=True), (5, 4)),
    LayerCase("max_pool2d", nn.MaxPool2D(), _IMAGE),
    LayerCase("max_pool2d-overlap-same", nn.MaxPool2D(3, stride=2, padding="same"), _IMAGE),
    LayerCase("max_pool2d-ceil", nn.MaxPool2D((2, 3), ceil_mode=True), _IMAGE),
    LayerCase("max_pool2d-padding-ceil", nn.MaxPool2D((2, 3), (2, 1), padding=(1, 1), ceil_mode=True), _IMAGE),
    LayerCase("max_pool2d-gaps", nn.MaxPool2D(2, stride=3), _IMAGE),
    LayerCase("max_pool2d-wide", nn.MaxPool2D(), (4, 12, 6)),
    LayerCase("max_pool2d-wide-overlap", nn.MaxPool2D(3, 2, 1), (5, 9, 8)),
    LayerCase("max_pool2d-wide-stride-1", nn.MaxPool2D(3, 1, "same"), (4, 13, 5)),
    LayerCase("avg_pool2d", nn.AvgPool2D(), _IMAGE),
    LayerCase("avg_pool2d-overlap-same", nn.AvgPool2D(3, stride=2, padding="same"), _IMAGE),
    LayerCase("avg_pool2d-ceil-count", nn.AvgPool2D(3, 2, 1, ceil_mode=True, count_include_pad=True), _IMAGE),
    LayerCase("avg_pool2d-padding-ceil", nn.AvgPool2D(3, 2, padding=((1, 0), (0, 1)), ceil_mode=True), _IMAGE),
    LayerCase("avg_pool2d-wide", nn.AvgPool2D(ceil_mode=True), (5, 13, 6)),
    LayerCase("avg_pool2d-wide-overlap", nn.AvgPool2D(3, 2, 1, count_include_pad=True), (5, 9, 8)),
    LayerCase("global_avg_pool", nn.GlobalAvgPool(), _IMAGE),
    LayerCase("global_avg_pool-sequence", nn.GlobalAvgPool(), _SEQUENCE),
    LayerCase("global_avg_pool-masked", nn.GlobalAvgPool(9.0), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase("embedding", nn.Embedding(5, 3), (4,), _indices, discrete=True),
    LayerCase("embedding-padding", nn.Embedding(5, 3, padding_idx=2), (2, 3), _indices, discrete=True),
    LayerCase("embedding-one", nn.Embedding(5, 3, init=nn.Ones()), (1,), _indices, discrete=True),
    LayerCase("simple_rnn", nn.SimpleRNN(3), _SEQUENCE),
    LayerCase("simple_rnn-sequences", nn.SimpleRNN(3, return_sequences=True, bias=False), _SEQUENCE),
    LayerCase("simple_rnn-stacked", nn.SimpleRNN(3, layers=2, recompute=True), _SEQUENCE),
    LayerCase("simple_rnn-bidirectional", nn.SimpleRNN(3, 2, True, True, recompute=True), _SEQUENCE),
    LayerCase("simple_rnn-bidirectional-last", nn.SimpleRNN(3, 2, True, truncate=6), _SEQUENCE),
    LayerCase("simple_rnn-masked", nn.SimpleRNN(3, 2, True, mask_value=9.0), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase(
        "simple_rnn-masked-sequences",
        nn.SimpleRNN(3, 2, False, True, 9.0, recompute=True),
        _SEQUENCE,
        _with_gaps,
        mark=9.0,
    ),
    LayerCase("gru", nn.GRU(3), _SEQUENCE),
    LayerCase("gru-sequences", nn.GRU(3, return_sequences=True, bias=False), _SEQUENCE),
    LayerCase("gru-stacked", nn.GRU(3, layers=2, recompute=True), _SEQUENCE),
    LayerCase("gru-bidirectional", nn.GRU(3, 2, True, True, recompute=True), _SEQUENCE),
    LayerCase("gru-bidirectional-last", nn.GRU(3, 2, True, truncate=6), _SEQUENCE),
    LayerCase("gru-masked", nn.GRU(3, 2, True, mask_value=9.0), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase("gru-masked-sequences", nn.GRU(3, 2, False, True, 9.0, recompute=True), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase("lstm", nn.LSTM(3), _SEQUENCE),
    LayerCase("lstm-sequences", nn.LSTM(3, return_sequences=True, bias=False), _SEQUENCE),
    LayerCase("lstm-stacked", nn.LSTM(3, layers=2, recompute=True), _SEQUENCE),
    LayerCase("lstm-bidirectional", nn.LSTM(3, 2, True, True, recompute=True), _SEQUENCE),
    LayerCase("lstm-bidirectional-last", nn.LSTM(3, 2, True, truncate=6), _SEQUENCE),
    LayerCase("lstm-masked", nn.LSTM(3, 2, True, mask_value=9.0), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase(
        "lstm-masked-sequences", nn.LSTM(3, 2, False, True, 9.0, recompute=True), _SEQUENCE, _with_gaps, mark=9.0
    ),
    LayerCase("multi_head_attention", nn.MultiHeadAttention(2), _SEQUENCE),
    LayerCase("multi_head_attention-causal", nn.MultiHeadAttention(1, causal=True, bias=False), _SEQUENCE),
    LayerCase("multi_head_attention-masked", nn.MultiHeadAttention(4, mask_value=9.0), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase(
        "multi_head_attention-masked-causal", nn.MultiHeadAttention(2, True, 9.0), _SEQUENCE, _with_gaps, mark=9.0
    ),
    LayerCase("positional_encoding", nn.PositionalEncoding(), (5, 3)),
    LayerCase("positional_encoding-learned", nn.PositionalEncoding(learned=True), _SEQUENCE),
    LayerCase(
        "positional_encoding-masked", nn.PositionalEncoding(True, mask_value=9.0), _SEQUENCE, _with_gaps, mark=9.0
    ),
    LayerCase("transformer_block", nn.TransformerBlock(2), _SEQUENCE),
    LayerCase("transformer_block-post", nn.TransformerBlock(2, 5, pre_norm=False, activation=nn.Tanh()), _SEQUENCE),
    LayerCase("transformer_block-causal-dropout", nn.TransformerBlock(2, 3, 0.3, causal=True), _SEQUENCE),
    LayerCase("transformer_block-masked", nn.TransformerBlock(2, mask_value=9.0), _SEQUENCE, _with_gaps, mark=9.0),
    LayerCase(
        "transformer_block-masked-post",
        nn.TransformerBlock(1, pre_norm=False, causal=True, mask_value=9.0),
        _SEQUENCE,
        _with_gaps,
        mark=9.0,
    ),
    LayerCase("batch_norm", nn.BatchNorm(), (3,)),
    LayerCase("batch_norm-image", nn.BatchNorm(momentum=0.5, eps=0.1), _IMAGE),
    LayerCase("batch_norm-plain", nn.BatchNorm(affine=False), _IMAGE),
    LayerCase("batch_norm-zeros", nn.BatchNorm(init=nn.Zeros()), _IMAGE),
    LayerCase("layer_norm", nn.LayerNorm(), (3,)),
    LayerCase("layer_norm-image", nn.LayerNorm(eps=0.1), _IMAGE),
    LayerCase("layer_norm-plain", nn.LayerNorm(affine=False), _SEQUENCE),
    LayerCase("group_norm", nn.GroupNorm(2), _IMAGE),
    LayerCase("group_norm-whole", nn.GroupNorm(1, eps=0.1), _SEQUENCE),
    LayerCase("group_norm-plain", nn.GroupNorm(4, affine=False), _IMAGE),
    LayerCase("relu", nn.ReLU(), _IMAGE),
    LayerCase("tanh", nn.Tanh(), (3,)),
    LayerCase("sigmoid", nn.Sigmoid(), (3,)),
    LayerCase("leaky_relu", nn.LeakyReLU(), _IMAGE),
    LayerCase("elu", nn.ELU(0.5), _IMAGE),
    LayerCase("gelu", nn.GELU(), _IMAGE),
    LayerCase("gelu-tanh", nn.GELU(tanh=True), _IMAGE),
    LayerCase("silu", nn.SiLU(), (3,)),
    LayerCase("softplus", nn.Softplus(), (3,)),
    LayerCase("log_sigmoid", nn.LogSigmoid(), (3,)),
    LayerCase("log", nn.Log(), (3,), _positive),
    LayerCase("arctan", nn.Arctan(), (3,)),
    LayerCase("arctanh", nn.Arctanh(), (3,), _within_one),
    LayerCase("softmax", nn.Softmax(), (3,)),
    LayerCase("softmax-image", nn.Softmax(), _IMAGE),
    LayerCase("log_softmax", nn.LogSoftmax(), (3,)),
    LayerCase("flatten", nn.Flatten(), _IMAGE),
    LayerCase("flatten-vector", nn.Flatten(), (3,)),
    LayerCase("reshape", nn.Reshape((4, -1, 5)), _IMAGE),
    LayerCase("permute", nn.Permute((2, 0, 1)), _IMAGE),
    LayerCase("zero_pad2d", nn.ZeroPad2D(), _IMAGE),
    LayerCase("zero_pad2d-sides", nn.ZeroPad2D(((0, 2), (1, 0))), _IMAGE),
    LayerCase("crop2d", nn.Crop2D(), _IMAGE),
    LayerCase("crop2d-sides", nn.Crop2D(((0, 2), (1, 0))), _IMAGE),
    LayerCase("pad_channels", nn.PadChannels(2, 1), _IMAGE),
    LayerCase("pad_channels-none", nn.PadChannels(), (3,)),
    LayerCase("up_sample2d", nn.UpSample2D((2, 3)), _IMAGE),
    LayerCase("up_sample2d-bilinear", nn.UpSample2D((2, 3), "bilinear"), _IMAGE),
    LayerCase("dropout", nn.Dropout(), (7,)),
    LayerCase("dropout-none", nn.Dropout(0), (7,)),
    LayerCase("dropout-all", nn.Dropout(1), (7,)),
    LayerCase("sequential", nn.Sequential([nn.Dense(4), nn.Tanh(), nn.Dense(2)]), (3,)),
    LayerCase("sequential-norm-relu", nn.Sequential([nn.Conv2D(4, 3), nn.BatchNorm(), nn.ReLU()]), _IMAGE),
    LayerCase("sequential-relu-in-place", nn.Sequential([nn.Dense(6), nn.ReLU(), nn.Dense(5), nn.ReLU()]), (3,)),
    LayerCase("sequential-empty", nn.Sequential([]), (3,)),
    LayerCase("residual", nn.Residual(_BOTTLENECK), _IMAGE),
    LayerCase("residual-shortcut", nn.Residual(nn.Conv2D(3, 3, stride=2), nn.Conv2D(3, 1, stride=2)), _IMAGE),
    LayerCase(
        "residual-then-relu",
        nn.Sequential([nn.Residual(nn.Sequential([nn.Conv2D(4, 3), nn.BatchNorm()])), nn.ReLU()]),
        _IMAGE,
    ),
    LayerCase("residual-of-identity", nn.Residual(nn.Dropout(0)), (3,)),
    LayerCase("checkpointed", nn.Checkpointed(nn.Sequential([nn.Dense(4), nn.Dropout(0.3), nn.Dense(2)])), (3,)),
    LayerCase("checkpointed-norm", nn.Checkpointed(nn.BatchNorm()), _IMAGE),
    LayerCase("graph", _DIAMOND, _IMAGE),
    LayerCase("graph-shared", _TWINS, (8,)),
    LayerCase(
        "graph-unread-input",
        nn.Graph([nn.Node("y", "b", nn.Dense(2))], "y", [nn.Input("a", (2, 2)), nn.Input("b", (3,))]),
        (7,),
    ),
    LayerCase("concat", nn.Concat([nn.Sequential([]), nn.Conv2D(3, 1), _BOTTLENECK]), _IMAGE),
    LayerCase("concat-single", nn.Concat([nn.Dense(2)]), (3,)),
    LayerCase(
        "nested",
        nn.Sequential([nn.Residual(nn.Concat([nn.Dense(2), nn.Residual(nn.Dense(3))]), nn.Dense(5)), nn.BatchNorm()]),
        (3,),
    ),
    LayerCase("mlp", zoo.mlp((4, 4, 1), 3, hidden=(8, 6), dropout=0.25), (4, 4, 1)),
    LayerCase("cnn", zoo.cnn((8, 8, 1), 3, filters=(2, 3), hidden=5), (8, 8, 1)),
    LayerCase("cnn-batch_norm-dropout", zoo.cnn((8, 8, 1), 3, (2, 3), 5, batch_norm=True, dropout=0.5), (8, 8, 1)),
    LayerCase("lenet5", zoo.lenet5((28, 28, 1), 10), (28, 28, 1)),
    LayerCase("lstm_classifier", zoo.lstm_classifier(_SEQUENCE, 3, 5, dropout=0.2), _SEQUENCE),
    LayerCase(
        "lstm_classifier-tokens", zoo.lstm_classifier((6,), 3, 4, 1, True, 0, 5, 4, padding=True), (6,), _indices, True
    ),
    LayerCase("transformer_classifier", zoo.transformer_classifier(_SEQUENCE, 3, 8, 2, dropout=0.2), _SEQUENCE),
    LayerCase(
        "transformer_classifier-tokens",
        zoo.transformer_classifier((6,), 3, 4, 2, 1, 0, 5, padding=True),
        (6,),
        _indices,
        True,
    ),
]

# Sources: torchvision's tables for what has 1000 classes (GoogLeNet without its auxiliary classifiers, as there; that
# of Inception v3 is taken off); Keras' summary for MobileNet; the figures of He et al. 2016 for small images, which are
# in millions, are summed exactly in test_zoo.py; for the others the layers, written out.
_LARGE, _CIFAR, _DIGITS = (224, 224, 3), (32, 32, 3), (28, 28, 1)
NETWORKS = [
    NetworkCase("alexnet", _LARGE, 1000, 61_100_840),
    NetworkCase("cnn", _DIGITS, 10, 320 + 18_496 + (7 * 7 * 64 + 1) * 128 + 1_290),
    NetworkCase("densenet121", _LARGE, 1000, 7_978_856),
    NetworkCase("densenet169", _LARGE, 1000, 14_149_480),
    NetworkCase("densenet201", _LARGE, 1000, 20_013_928),
    NetworkCase("googlenet", _LARGE, 1000, 6_624_904),
    NetworkCase("inception_v3", _LARGE, 1000, 27_161_264 - 3_326_696),
    NetworkCase("lenet5", _DIGITS, 10, 61_706),
    NetworkCase("lstm_classifier", (50, 32), 10, (32 + 128 + 1) * 4 * 128 + (128 + 128 + 1) * 4 * 128 + (128 + 1) * 10),
    NetworkCase("mlp", _DIGITS, 10, 785 * 128 + 1_290),
    NetworkCase("mobilenet_v1", _LARGE, 1000, 4_231_976),
    NetworkCase("resnet18", _LARGE, 1000, 11_689_512),
    NetworkCase("resnet20", _CIFAR, 10, 269_722),
    NetworkCase("resnet32", _CIFAR, 10, 464_154),
    NetworkCase("resnet34", _LARGE, 1000, 21_797_672),
    NetworkCase("resnet44", _CIFAR, 10, 658_586),
    NetworkCase("resnet50", _LARGE, 1000, 25_557_032),
    NetworkCase("resnet56", _CIFAR, 10, 853_018),
    NetworkCase("resnet101", _LARGE, 1000, 44_549_160),
    NetworkCase("resnet110", _CIFAR, 10, 1_727_962),
    NetworkCase("resnet152", _LARGE, 1000, 60_192_808),
    NetworkCase(
        "transformer_classifier", (64, 128), 10, 129 * 128 + 2 * (12 * 128**2 + 13 * 128) + 2 * 128 + (128 + 1) * 10
    ),
    NetworkCase("vgg11", _LARGE, 1000, 132_863_336),
    NetworkCase("vgg11_bn", _LARGE, 1000, 132_868_840),
    NetworkCase("vgg13", _LARGE, 1000, 133_047_848),
    NetworkCase("vgg13_bn", _LARGE, 1000, 133_053_736),
    NetworkCase("vgg16", _LARGE, 1000, 138_357_544),
    NetworkCase("vgg16_bn", _LARGE, 1000, 138_365_992),
    NetworkCase("vgg19", _LARGE, 1000, 143_667_240),
    NetworkCase("vgg19_bn", _LARGE, 1000, 143_678_248),
]

_CLASS_WEIGHTS = (0.5, 2.0, 1.0, 3.0)
LOSSES = [
    LossCase("softmax_cross_entropy", nn.SoftmaxCrossEntropy(), (4,), _labels),
    LossCase("softmax_cross_entropy-ignore", nn.SoftmaxCrossEntropy(ignore_index=-1), (4,), _labels_or_ignored),
    LossCase("softmax_cross_entropy-weights", nn.SoftmaxCrossEntropy(class_weights=_CLASS_WEIGHTS), (4,), _labels),
    LossCase("softmax_cross_entropy-smoothing", nn.SoftmaxCrossEntropy(label_smoothing=0.1), (4,), _labels),
    LossCase("softmax_cross_entropy-all", nn.SoftmaxCrossEntropy(-1, _CLASS_WEIGHTS, 0.2), (4,), _labels_or_ignored),
    LossCase("binary_cross_entropy", nn.BinaryCrossEntropy(), (1,), _binary()),
    LossCase("binary_cross_entropy-multi-label", nn.BinaryCrossEntropy(), (3,), _binary(3)),
    LossCase("mse", nn.MSE(), (1,), _values()),
    LossCase("mse-column", nn.MSE(), (1,), _values(1)),
    LossCase("mse-image", nn.MSE(), (2, 3), _values(2, 3)),
    LossCase("mae", nn.MAE(), (3,), _values(3)),
    LossCase("huber", nn.Huber(), (3,), _values(3)),
    LossCase("huber-delta", nn.Huber(delta=0.3), (1,), _values()),
    LossCase("hinge", nn.Hinge(), (4,), _labels),
    LossCase("hinge-squared", nn.Hinge(margin=0.5, squared=True), (4,), _labels),
    LossCase("binary_hinge", nn.BinaryHinge(), (1,), _binary()),
    LossCase("binary_hinge-squared", nn.BinaryHinge(2.0, squared=True), (3,), _binary(3)),
    LossCase("triplet", nn.Triplet(), (6,), _values()),
    LossCase("triplet-squared", nn.Triplet(0.5, squared=True), (3, 2), _values()),
    LossCase("cosine_distance", nn.CosineDistance(), (3,), _values(3)),
    LossCase("cosine_distance-image", nn.CosineDistance(eps=1e-3), (2, 3), _values(2, 3)),
    LossCase("reconstruction", nn.Reconstruction(), (6,), _values(), constant=3),
    LossCase("reconstruction-huber", nn.Reconstruction(nn.Huber(0.5)), (4,), _labels, constant=2),
    LossCase("kl_divergence", nn.KLDivergence(), (4,), _distributions),
    LossCase(
        "joint", nn.Joint((nn.SoftmaxCrossEntropy(), nn.MSE(), nn.Triplet()), ((4,), (2, 2), (6,))), (14,), _mixed
    ),
    LossCase("joint-weights", nn.Joint((nn.Hinge(), nn.MAE()), ((4,), (2,)), (0.5, 2.0)), (6,), _label_and_values),
]

OPTIMIZERS = [
    OptimizerCase("sgd", optim.SGD()),
    OptimizerCase("sgd-momentum", optim.SGD(momentum=0.9)),
    OptimizerCase("sgd-nesterov", optim.SGD(momentum=0.9, nesterov=True)),
    OptimizerCase("sgd-decay", optim.SGD(weight_decay=0.01)),
    OptimizerCase("sgd-decoupled", optim.SGD(momentum=0.9, weight_decay=0.01, decoupled=True)),
    OptimizerCase("adagrad", optim.AdaGrad()),
    OptimizerCase("adagrad-decoupled", optim.AdaGrad(weight_decay=1e-4, decoupled=True)),
    OptimizerCase("rmsprop", optim.RMSProp()),
    OptimizerCase("rmsprop-centered", optim.RMSProp(centered=True)),
    OptimizerCase("rmsprop-momentum", optim.RMSProp(momentum=0.9, weight_decay=0.01, decoupled=True)),
    OptimizerCase("adam", optim.Adam()),
    OptimizerCase("adam-decay-all", optim.Adam(weight_decay=0.01, exclude_vectors=False)),
    OptimizerCase("adamw", optim.AdamW()),
    OptimizerCase("adamw-exclude", optim.AdamW(exclude=("*/W",))),
    OptimizerCase("nadam", optim.Nadam()),
    OptimizerCase("nadam-decoupled", optim.Nadam(weight_decay=0.01, decoupled=True)),
    OptimizerCase("lars", optim.LARS()),
    OptimizerCase("lars-no-decay", optim.LARS(weight_decay=0.0)),
    OptimizerCase("lamb", optim.LAMB()),
    OptimizerCase("lamb-no-decay", optim.LAMB(weight_decay=0.0)),
]

OUTER = [
    OuterCase("average", optim.Average(), averages=True),
    OuterCase("slowmo", optim.SlowMo()),
    OuterCase("slowmo-plain", optim.SlowMo(beta=0.0, alpha=1.0), averages=True),
    OuterCase("bmuf", optim.BMUF()),
    OuterCase("bmuf-momentum", optim.BMUF(momentum=0.3, zeta=0.8)),
    OuterCase("bmuf-plain", optim.BMUF(momentum=0.0), averages=True),
    OuterCase("diloco", optim.DiLoCo()),
    OuterCase("diloco-plain", optim.DiLoCo(lr=1.0, momentum=0.0), averages=True),
]

SCHEDULES = [
    ScheduleCase("constant", optim.Constant()),
    ScheduleCase("step", optim.Step(every=2, gamma=0.5)),
    ScheduleCase("multi_step", optim.MultiStep(milestones=(1, 3))),
    ScheduleCase("cosine", optim.Cosine()),
    ScheduleCase("cosine-floor", optim.Cosine(min_factor=0.1)),
    ScheduleCase("polynomial", optim.Polynomial()),
    ScheduleCase("polynomial-square", optim.Polynomial(power=2.0, end_factor=0.1)),
    ScheduleCase("one_cycle", optim.OneCycle()),
    ScheduleCase("on_plateau", optim.OnPlateau(patience=2)),
    ScheduleCase("on_plateau-max", optim.OnPlateau(patience=1, mode="max", min_delta=0.1)),
    ScheduleCase("warm_up", optim.WarmUp(steps=5)),
    ScheduleCase("warm_up-none", optim.WarmUp()),
    ScheduleCase("warm_up-cosine", optim.WarmUp(epochs=1, then=optim.Cosine())),
]

STRATEGIES = [
    StrategyCase("tree_aggregate", TreeAggregate()),
    StrategyCase("tree_aggregate-depth1", TreeAggregate(depth=1)),
    StrategyCase("tree_aggregate-depth2", TreeAggregate(depth=2)),
    StrategyCase("allreduce", AllReduce()),
    StrategyCase("allreduce-ring", AllReduce("ring", bucket_mb=0)),
    StrategyCase("allreduce-buckets", AllReduce(bucket_mb=1e-4)),
    StrategyCase("allreduce-sharded", AllReduce(shard_optimizer=True)),
    StrategyCase("model_averaging", ModelAveraging(period=1, optimizer_state="average")),
    StrategyCase("model_averaging-diloco", ModelAveraging(1, DiLoCo(1.0, 0.0), optimizer_state="average")),
    StrategyCase("model_averaging-driver", ModelAveraging(1, optimizer_state="average", through="driver")),
    StrategyCase("model_averaging-together", ModelAveraging(7, start_step=10**6)),
    StrategyCase("parameter_server-bsp", ParameterServer("bsp")),
    StrategyCase("parameter_server-products", ParameterServer("bsp", factors=False)),
    StrategyCase("parameter_server-bsp-1", ParameterServer("bsp", servers=1)),
    StrategyCase("parameter_server-ssp-0", ParameterServer("ssp", staleness=0)),
    StrategyCase("parameter_server-group", ParameterServer("bsp", group=2)),
    StrategyCase("parameter_server-dedicated", ParameterServer("bsp", servers=1, dedicated=True)),
]

# Modes whose workers differ between meetings: no plain loop gives their bits.
RELAXED = [
    StrategyCase("model_averaging-4", ModelAveraging(4)),
    StrategyCase("gossip", Gossip()),
    StrategyCase("gossip-combine", Gossip(gossip.Ring(), order="combine_then_adapt")),
    StrategyCase("gossip-push_sum", Gossip(gossip.RandomOut(), push_sum=True)),
    StrategyCase("gossip-compressed", Gossip(gossip.Ring(), compressor=compress.TopK(0.2), rate=0.4)),
    StrategyCase("parameter_server-window", ParameterServer("bsp", update_on="workers", window=4)),
]

# Modes whose workers do not wait for one another: two runs differ.
FREE = [
    StrategyCase("gossip-asynchronous", Gossip(asynchronous=True)),
    StrategyCase("hogwild", Hogwild()),
    StrategyCase("parameter_server-ssp", ParameterServer("ssp", staleness=1)),
    StrategyCase("parameter_server-async", ParameterServer("async")),
    StrategyCase("parameter_server-group-async", ParameterServer("async", group=2)),
    StrategyCase("parameter_server-dedicated-async", ParameterServer("async", servers=1, dedicated=True)),
    StrategyCase("parameter_server-downpour", ParameterServer("async", update_on="workers", window=3)),
    StrategyCase("parameter_server-top_k", ParameterServer("async", servers=1, compressor=compress.TopK(0.3))),
]

# Allreduce algorithms by name.
COLLECTIVES = ["star", "tree", "recursive_doubling", "ring", "segmented_ring", "chain", "rabenseifner", "shared"]

COMPRESSORS = [
    CompressorCase("none", compress.Uncompressed()),
    CompressorCase("fp16", compress.Float16()),
    CompressorCase("fp16-feedback", compress.Float16(feedback=True)),
    CompressorCase("bf16", compress.BFloat16()),
    CompressorCase("bf16-feedback", compress.BFloat16(feedback=True)),
    CompressorCase("int8", compress.Int8()),
    CompressorCase("int8-no-feedback", compress.Int8(block=64, feedback=False)),
    CompressorCase("qsgd", compress.QSGD(), unbiased=True),
    CompressorCase("qsgd-l2", compress.QSGD(levels=127, block=100, norm="l2"), unbiased=True),
    CompressorCase("qsgd-1", compress.QSGD(levels=1), unbiased=True),
    CompressorCase("terngrad", compress.TernGrad()),
    CompressorCase("terngrad-no-clip", compress.TernGrad(clip=0, block=64), unbiased=True),
    CompressorCase("one_bit", compress.OneBit()),
    CompressorCase("one_bit-mean_abs", compress.OneBit("mean_abs", block=64)),
    CompressorCase("power_sgd", compress.PowerSGD()),
    CompressorCase("power_sgd-4", compress.PowerSGD(4)),
    CompressorCase("top_k", compress.TopK(0.1)),
    CompressorCase("top_k-no-feedback", compress.TopK(0.5, feedback=False)),
    CompressorCase("random_k", compress.RandomK(0.1)),
    CompressorCase("random_k-no-feedback", compress.RandomK(0.5, feedback=False), unbiased=True),
    CompressorCase("dgc", compress.DGC(0.05, warm_up=3)),
    CompressorCase("dgc-no-momentum", compress.DGC(0.05, momentum=0.0)),
    CompressorCase("threshold", compress.Threshold(0.5, ratio=0.1)),
    CompressorCase("threshold-fixed", compress.Threshold(0.5, ratio=0)),
]

TOPOLOGIES = [
    TopologyCase("ring", gossip.Ring()),
    TopologyCase("ring-left", gossip.Ring("left")),
    TopologyCase("ring-right", gossip.Ring("right")),
    TopologyCase("torus", gossip.Torus()),
    TopologyCase("star", gossip.Star()),
    TopologyCase("full", gossip.Full()),
    TopologyCase("exponential", gossip.Exponential()),
    TopologyCase("one_peer_exponential", gossip.OnePeerExponential()),
    TopologyCase("random_pairs", gossip.RandomPairs(seed=3)),
    TopologyCase("random_out", gossip.RandomOut(), balanced=False),
    TopologyCase("random_out-2", gossip.RandomOut(2, seed=1), balanced=False),
    TopologyCase("hierarchical", gossip.Hierarchical()),
    TopologyCase("hierarchical-inner", gossip.Hierarchical(group=3, inner=2)),
]

_SOFTMAX, _LOGIT, _MSE = nn.SoftmaxCrossEntropy(), nn.BinaryCrossEntropy(), nn.MSE()
METRICS = [
    MetricCase("accuracy", metrics.Accuracy(), _SOFTMAX, (4,), _labels),
    MetricCase("accuracy-ignore", metrics.Accuracy(), nn.SoftmaxCrossEntropy(-1), (4,), _labels_or_ignored),
    MetricCase("accuracy-logit", metrics.Accuracy(), _LOGIT, (1,), _binary()),
    MetricCase("accuracy-multi-label", metrics.Accuracy(), _LOGIT, (3,), _binary(3)),
    MetricCase("top_k", metrics.TopK(2), _SOFTMAX, (4,), _labels),
    MetricCase("top_1-logit", metrics.TopK(1), _LOGIT, (1,), _binary(1)),
    MetricCase("precision", metrics.Precision(), _SOFTMAX, (4,), _labels),
    MetricCase("precision-micro", metrics.Precision("micro"), _SOFTMAX, (4,), _labels),
    MetricCase("precision-binary", metrics.Precision("binary"), _LOGIT, (1,), _binary()),
    MetricCase("recall", metrics.Recall(), _SOFTMAX, (4,), _labels),
    MetricCase("recall-micro-ignore", metrics.Recall("micro"), nn.SoftmaxCrossEntropy(-1), (4,), _labels_or_ignored),
    MetricCase("recall-binary", metrics.Recall("binary"), _LOGIT, (1,), _binary()),
    MetricCase("f1", metrics.F1(), _SOFTMAX, (4,), _labels),
    MetricCase("f1-micro", metrics.F1("micro"), _SOFTMAX, (4,), _labels),
    MetricCase("f1-binary", metrics.F1("binary"), _SOFTMAX, (2,), _binary()),
    MetricCase("confusion_matrix", metrics.ConfusionMatrix(), _SOFTMAX, (4,), _labels),
    MetricCase("confusion_matrix-logit", metrics.ConfusionMatrix(), _LOGIT, (1,), _binary()),
    MetricCase("auc", metrics.AUC(), _SOFTMAX, (2,), _binary()),
    MetricCase("auc-logit", metrics.AUC(bins=64), _LOGIT, (1,), _binary()),
    MetricCase("mse", metrics.MSE(), _MSE, (1,), _values()),
    MetricCase("mse-image", metrics.MSE(), nn.Huber(), (2, 3), _values(2, 3)),
    MetricCase("mse-logit", metrics.MSE(), _LOGIT, (1,), _binary()),
    MetricCase("mae", metrics.MAE(), _MSE, (3,), _values(3)),
    MetricCase("r2", metrics.R2(), _MSE, (1,), _values()),
    MetricCase("r2-vector", metrics.R2(), nn.MAE(), (3,), _values(3)),
]


def golden_layers() -> dict[str, dict[str, list[int]]]:
    """Row -> parameter name -> shape, in the order of the flat vector: what `golden/layers.json` pins."""
    layouts = {case.id: nn.Layout(case.layer.specs(case.in_shape)) for case in LAYERS}
    return {name: {key: list(shape) for key, shape in layout.shapes().items()} for name, layout in layouts.items()}


def _write_golden() -> None:
    rows = (f'  "{name}": {json.dumps(shapes)}' for name, shapes in golden_layers().items())
    (GOLDEN / "layers.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _write_golden()
