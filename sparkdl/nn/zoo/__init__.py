"""Known networks by name: builders `(in_shape, classes, ...) -> Layer` whose outputs are logits (classes,).

Images have any number of channels. A network made for large images starts with layers that shrink them; where images
have a side under 64 pixels, it gets a stem that leaves their size as it is. Each builder says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkdl.nn.layer import Layer
from sparkdl.nn.zoo.alexnet import alexnet
from sparkdl.nn.zoo.cnn import cnn, lenet5
from sparkdl.nn.zoo.densenet import densenet121, densenet169, densenet201
from sparkdl.nn.zoo.googlenet import googlenet
from sparkdl.nn.zoo.inception import inception_v3
from sparkdl.nn.zoo.mlp import mlp
from sparkdl.nn.zoo.mobilenet import mobilenet_v1
from sparkdl.nn.zoo.resnet import (
    resnet18,
    resnet20,
    resnet32,
    resnet34,
    resnet44,
    resnet50,
    resnet56,
    resnet101,
    resnet110,
    resnet152,
)
from sparkdl.nn.zoo.sequence import lstm_classifier, transformer_classifier
from sparkdl.nn.zoo.vgg import vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn

__all__ = [
    "ZOO",
    "alexnet",
    "cnn",
    "densenet121",
    "densenet169",
    "densenet201",
    "googlenet",
    "inception_v3",
    "lenet5",
    "lstm_classifier",
    "mlp",
    "mobilenet_v1",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet101",
    "resnet110",
    "resnet152",
    "transformer_classifier",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
]

ZOO: Mapping[str, Callable[..., Layer]] = {
    f.__name__: f
    for f in (
        alexnet,
        cnn,
        densenet121,
        densenet169,
        densenet201,
        googlenet,
        inception_v3,
        lenet5,
        lstm_classifier,
        mlp,
        mobilenet_v1,
        resnet18,
        resnet20,
        resnet32,
        resnet34,
        resnet44,
        resnet50,
        resnet56,
        resnet101,
        resnet110,
        resnet152,
        transformer_classifier,
        vgg11,
        vgg11_bn,
        vgg13,
        vgg13_bn,
        vgg16,
        vgg16_bn,
        vgg19,
        vgg19_bn,
    )
}
