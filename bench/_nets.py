"""The networks that the operator core is measured on, built twice: from sparkdl's layers and from torch's modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn as tnn

from sparkdl import nn

__all__ = ["SUITE", "Entry", "t_zoo_resnet20"]

VGG11 = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")
VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
RESNET50 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first
MOBILENET = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


@dataclass(frozen=True)
class Entry:
    """One net of both sides, the batch, the shape of a sample (channels last) and the number of classes."""

    ours: Callable[[], nn.Layer]
    rival: Callable[[], Any]
    batch: int
    in_shape: tuple[int, ...]
    classes: int = 10


def conv_bn(filters: int, kernel: int = 3, stride: int = 1, groups: int = 1, relu: bool = True) -> list[nn.Layer]:
    """Convolution without bias, normalisation and, usually, ReLU."""
    conv = nn.Conv2D(filters, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm(), *([nn.ReLU()] if relu else [])]


def block(body: list[nn.Layer], filters: int, stride: int, widens: bool) -> list[nn.Layer]:
    """ReLU(body + shortcut), the shortcut a 1x1 convolution where the shape changes."""
    shortcut = nn.Sequential(conv_bn(filters, 1, stride, relu=False)) if widens else None
    return [nn.Residual(nn.Sequential(body), shortcut), nn.ReLU()]


def mlp() -> nn.Layer:
    """784-1024-1024-10."""
    return nn.Sequential([nn.Dense(1024), nn.ReLU(), nn.Dense(1024), nn.ReLU(), nn.Dense(10)])


def lenet5() -> nn.Layer:
    """LeNet-5 with ReLU and maxima."""
    features = [nn.Conv2D(6, 5, padding=2), nn.ReLU(), nn.MaxPool2D(), nn.Conv2D(16, 5, padding=0), nn.ReLU()]
    head = [nn.MaxPool2D(), nn.Flatten(), nn.Dense(120), nn.ReLU(), nn.Dense(84), nn.ReLU(), nn.Dense(10)]
    return nn.Sequential(features + head)


def vgg(widths: tuple[int | str, ...], norm: bool) -> nn.Layer:
    """A VGG for 32x32 images."""
    layers: list[nn.Layer] = []
    for width in widths:
        if isinstance(width, str):
            layers.append(nn.MaxPool2D())
        else:
            layers += [nn.Conv2D(width, 3), *([nn.BatchNorm()] if norm else []), nn.ReLU()]
    return nn.Sequential([*layers, nn.Flatten(), nn.Dense(512), nn.ReLU(), nn.Dense(10)])


def resnet20() -> nn.Layer:
    """ResNet-20 for CIFAR, its shortcuts 1x1 convolutions."""
    layers, width = conv_bn(16), 16
    for filters, first in ((16, 1), (32, 2), (64, 2)):
        for stride in (first, 1, 1):
            body = conv_bn(filters, 3, stride) + conv_bn(filters, relu=False)
            layers += block(body, filters, stride, stride != 1 or width != filters)
            width = filters
    return nn.Sequential([*layers, nn.GlobalAvgPool(), nn.Dense(10)])


def resnet50() -> nn.Layer:
    """ResNet-50 with the stride in the 3x3 convolution."""
    layers, width = [*conv_bn(64, 7, 2), nn.MaxPool2D(3, 2, 1)], 64
    for middle, count, first in RESNET50:
        for stride in (first, *[1] * (count - 1)):
            body = conv_bn(middle, 1) + conv_bn(middle, 3, stride) + conv_bn(4 * middle, 1, relu=False)
            layers += block(body, 4 * middle, stride, stride != 1 or width != 4 * middle)
            width = 4 * middle
    return nn.Sequential([*layers, nn.GlobalAvgPool(), nn.Dense(1000)])


def mobilenet() -> nn.Layer:
    """MobileNet v1."""
    layers, width = conv_bn(32, 3, 2), 32
    for filters, stride in MOBILENET:
        layers += conv_bn(width, 3, stride, groups=width) + conv_bn(filters, 1)
        width = filters
    return nn.Sequential([*layers, nn.GlobalAvgPool(), nn.Dense(1000)])


def lstm() -> nn.Layer:
    """Two layers of 128 units, classified by the last step."""
    return nn.Sequential([nn.LSTM(128, layers=2), nn.Dense(10)])


def transformer() -> nn.Layer:
    """One block of four heads, normalised after each sum, and the mean over the tokens."""
    return nn.Sequential(
        [nn.TransformerBlock(4, 512, pre_norm=False, activation=nn.ReLU()), nn.GlobalAvgPool(), nn.Dense(10)]
    )


def t_conv_bn(c: int, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1, relu: bool = True) -> list[Any]:
    """`conv_bn` in torch."""
    conv = tnn.Conv2d(c, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, tnn.BatchNorm2d(filters), *([tnn.ReLU(inplace=True)] if relu else [])]


class TorchBlock(tnn.Module):
    """`block` in torch."""

    def __init__(self, body: list[Any], c: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = tnn.Sequential(*body)
        same = stride == 1 and c == filters
        self.shortcut = tnn.Identity() if same else tnn.Sequential(*t_conv_bn(c, filters, 1, stride, relu=False))

    def forward(self, x: Any) -> Any:
        """ReLU of the sum."""
        return torch.relu(self.body(x) + self.shortcut(x))


def t_mlp() -> Any:
    """`mlp` in torch."""
    return tnn.Sequential(tnn.Linear(784, 1024), tnn.ReLU(), tnn.Linear(1024, 1024), tnn.ReLU(), tnn.Linear(1024, 10))


def t_lenet5() -> Any:
    """`lenet5` in torch."""
    features = [tnn.Conv2d(1, 6, 5, padding=2), tnn.ReLU(), tnn.MaxPool2d(2), tnn.Conv2d(6, 16, 5), tnn.ReLU()]
    head = [tnn.Linear(400, 120), tnn.ReLU(), tnn.Linear(120, 84), tnn.ReLU(), tnn.Linear(84, 10)]
    return tnn.Sequential(*features, tnn.MaxPool2d(2), tnn.Flatten(), *head)


def t_vgg(widths: tuple[int | str, ...], norm: bool) -> Any:
    """`vgg` in torch."""
    layers: list[Any] = []
    c = 3
    for width in widths:
        if isinstance(width, str):
            layers.append(tnn.MaxPool2d(2))
        else:
            relu = tnn.ReLU(inplace=True)
            layers += [tnn.Conv2d(c, width, 3, padding=1), *([tnn.BatchNorm2d(width)] if norm else []), relu]
            c = width
    head = [tnn.Flatten(), tnn.Linear(512, 512), tnn.ReLU(inplace=True), tnn.Linear(512, 10)]
    return tnn.Sequential(*layers, *head)


def t_resnet20() -> Any:
    """`resnet20` in torch."""
    layers, width = t_conv_bn(3, 16), 16
    for filters, first in ((16, 1), (32, 2), (64, 2)):
        for stride in (first, 1, 1):
            body = t_conv_bn(width, filters, 3, stride) + t_conv_bn(filters, filters, relu=False)
            layers.append(TorchBlock(body, width, filters, stride))
            width = filters
    return tnn.Sequential(*layers, tnn.AdaptiveAvgPool2d(1), tnn.Flatten(), tnn.Linear(64, 10))


class TorchPadded(tnn.Module):
    """The shortcut of the zoo's small ResNets: every second pixel, and zeros on both sides of the channels."""

    def forward(self, x: Any) -> Any:
        """x (N, C, H, W) -> (N, 2 C, H / 2, W / 2)."""
        c = x.shape[1] // 2
        return tnn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, c, c))


def t_zoo_resnet20() -> Any:
    """`nn.zoo.resnet20` in torch."""
    layers, width = t_conv_bn(3, 16), 16
    for filters, first in ((16, 1), (32, 2), (64, 2)):
        for stride in (first, 1, 1):
            block = TorchBlock(t_conv_bn(width, filters, 3, stride) + t_conv_bn(filters, filters, relu=False), 1, 1, 1)
            block.shortcut = tnn.Identity() if width == filters else TorchPadded()
            layers.append(block)
            width = filters
    return tnn.Sequential(*layers, tnn.AdaptiveAvgPool2d(1), tnn.Flatten(), tnn.Linear(64, 10))


def t_resnet50() -> Any:
    """`resnet50` in torch."""
    layers, width = [*t_conv_bn(3, 64, 7, 2), tnn.MaxPool2d(3, 2, 1)], 64
    for middle, count, first in RESNET50:
        for stride in (first, *[1] * (count - 1)):
            body = t_conv_bn(width, middle, 1) + t_conv_bn(middle, middle, 3, stride)
            body += t_conv_bn(middle, 4 * middle, 1, relu=False)
            layers.append(TorchBlock(body, width, 4 * middle, stride))
            width = 4 * middle
    return tnn.Sequential(*layers, tnn.AdaptiveAvgPool2d(1), tnn.Flatten(), tnn.Linear(2048, 1000))


def t_mobilenet() -> Any:
    """`mobilenet` in torch."""
    layers, width = t_conv_bn(3, 32, 3, 2), 32
    for filters, stride in MOBILENET:
        layers += t_conv_bn(width, width, 3, stride, groups=width) + t_conv_bn(width, filters, 1)
        width = filters
    return tnn.Sequential(*layers, tnn.AdaptiveAvgPool2d(1), tnn.Flatten(), tnn.Linear(1024, 1000))


class TorchLSTM(tnn.Module):
    """`lstm` in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = tnn.LSTM(32, 128, 2, batch_first=True), tnn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """The last step's classes."""
        return self.head(self.lstm(x)[0][:, -1])


class TorchTransformer(tnn.Module):
    """`transformer` in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.block = tnn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
        self.head = tnn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """The classes of the mean token."""
        return self.head(self.block(x).mean(1))


SUITE = {
    "mlp": Entry(mlp, t_mlp, 128, (784,)),
    "lenet5": Entry(lenet5, t_lenet5, 64, (28, 28, 1)),
    "vgg11": Entry(lambda: vgg(VGG11, False), lambda: t_vgg(VGG11, False), 64, (32, 32, 3)),
    "vgg16bn": Entry(lambda: vgg(VGG16, True), lambda: t_vgg(VGG16, True), 64, (32, 32, 3)),
    "resnet20": Entry(resnet20, t_resnet20, 64, (32, 32, 3)),
    "resnet50": Entry(resnet50, t_resnet50, 16, (64, 64, 3), 1000),
    "mobilenet": Entry(mobilenet, t_mobilenet, 16, (64, 64, 3), 1000),
    "lstm": Entry(lstm, TorchLSTM, 64, (50, 32)),
    "transformer": Entry(transformer, TorchTransformer, 32, (64, 128)),
}
