"""Layers, losses and models: descriptions that hold no arrays."""

from sparkdl.nn import initializers
from sparkdl.nn.activation import LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from sparkdl.nn.attention import MultiHeadAttention, PositionalEncoding
from sparkdl.nn.checkpointed import Checkpointed
from sparkdl.nn.codec import decode_layer, decode_loss, encode
from sparkdl.nn.containers import Child, Concat, Container, Residual, Sequential
from sparkdl.nn.conv import Conv2D
from sparkdl.nn.conv1d import AvgPool1D, Conv1D, MaxPool1D
from sparkdl.nn.conv_transpose import Conv2DTranspose
from sparkdl.nn.cost import Cost
from sparkdl.nn.dense import Dense
from sparkdl.nn.dropout import Dropout
from sparkdl.nn.embedding import Embedding
from sparkdl.nn.fold import fold_batch_norm
from sparkdl.nn.graph import Graph, Input, Node
from sparkdl.nn.initializers import (
    Constant,
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    LecunNormal,
    LecunUniform,
    Ones,
    Orthogonal,
    RandomNormal,
    Zeros,
)
from sparkdl.nn.joint_losses import Joint, Reconstruction
from sparkdl.nn.layer import Array, Clock, Ctx, Initializer, Layer, Params, ParamSpec, Shape, kind_of
from sparkdl.nn.layer_norm import GroupNorm, LayerNorm
from sparkdl.nn.layout import Layout, Segment
from sparkdl.nn.local import LocallyConnected2D
from sparkdl.nn.losses import MAE, MSE, BinaryCrossEntropy, Huber, Loss, SoftmaxCrossEntropy
from sparkdl.nn.margin_losses import BinaryHinge, Hinge, Triplet
from sparkdl.nn.model import Model, Sums
from sparkdl.nn.norm import BatchNorm
from sparkdl.nn.pool import AvgPool2D, GlobalAvgPool, MaxPool2D
from sparkdl.nn.rectifier import ELU, GELU, Arctan, Arctanh, LeakyReLU, Log, LogSigmoid, SiLU, Softplus
from sparkdl.nn.recurrent import GRU, LSTM, SimpleRNN
from sparkdl.nn.resize import Crop2D, PadChannels, UpSample2D, ZeroPad2D
from sparkdl.nn.shape import Flatten, Permute, Reshape
from sparkdl.nn.summary import parameter_table, summary
from sparkdl.nn.torchvision import from_torchvision
from sparkdl.nn.transformer import TransformerBlock
from sparkdl.nn.vector_losses import CosineDistance, KLDivergence

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "MAE",
    "MSE",
    "Arctan",
    "Arctanh",
    "Array",
    "AvgPool1D",
    "AvgPool2D",
    "BatchNorm",
    "BinaryCrossEntropy",
    "BinaryHinge",
    "Checkpointed",
    "Child",
    "Clock",
    "Concat",
    "Constant",
    "Container",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "CosineDistance",
    "Cost",
    "Crop2D",
    "Ctx",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool",
    "GlorotNormal",
    "GlorotUniform",
    "Graph",
    "GroupNorm",
    "HeNormal",
    "HeUniform",
    "Hinge",
    "Huber",
    "Initializer",
    "Input",
    "Joint",
    "KLDivergence",
    "Layer",
    "LayerNorm",
    "Layout",
    "LeakyReLU",
    "LecunNormal",
    "LecunUniform",
    "LocallyConnected2D",
    "Log",
    "LogSigmoid",
    "LogSoftmax",
    "Loss",
    "MaxPool1D",
    "MaxPool2D",
    "Model",
    "MultiHeadAttention",
    "Node",
    "Ones",
    "Orthogonal",
    "PadChannels",
    "ParamSpec",
    "Params",
    "Permute",
    "PositionalEncoding",
    "RandomNormal",
    "ReLU",
    "Reconstruction",
    "Reshape",
    "Residual",
    "Segment",
    "Sequential",
    "Shape",
    "SiLU",
    "Sigmoid",
    "SimpleRNN",
    "Softmax",
    "SoftmaxCrossEntropy",
    "Softplus",
    "Sums",
    "Tanh",
    "TransformerBlock",
    "Triplet",
    "UpSample2D",
    "ZeroPad2D",
    "Zeros",
    "decode_layer",
    "decode_loss",
    "encode",
    "fold_batch_norm",
    "from_torchvision",
    "initializers",
    "kind_of",
    "parameter_table",
    "summary",
]
