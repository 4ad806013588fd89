"""MobileNet."""

from __future__ import annotations

from sparkdl.nn.dense import Dense
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.pool import GlobalAvgPool
from sparkdl.nn.zoo.parts import checked, conv_bn_relu, dropped, is_small

__all__ = ["mobilenet_v1"]

# Filters and stride of each pair of a depthwise and a pointwise convolution.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def mobilenet_v1(in_shape: Shape, classes: int, width: float = 1.0, dropout: float = 0.0) -> Layer:
    """MobileNet (Howard et al. 2017): 4,231,976 parameters at width 1; logits (classes,).

    `width` scales all filters. The first convolution has stride 2, or 1 for images (H, W, C) with a side under 64.
    """
    if not 0 < width < float("inf"):
        raise ValueError(f"mobilenet_v1(width={width}): the factor of the filters must be finite and above 0.")
    channels = max(1, round(32 * width))
    layers = conv_bn_relu(channels, 3, 1 if is_small(in_shape) else 2, 1)
    for base, stride in BLOCKS:
        filters = max(1, round(base * width))
        layers += conv_bn_relu(channels, 3, stride, 1, groups=channels)
        layers += conv_bn_relu(filters, 1)
        channels = filters
    return checked([*layers, GlobalAvgPool(), *dropped(dropout), Dense(classes)], in_shape)
