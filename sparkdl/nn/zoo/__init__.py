"""Known networks by name: builders `(in_shape, classes, ...) -> Layer` whose outputs are logits (classes,)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkdl.nn.layer import Layer
from sparkdl.nn.zoo.cnn import cnn, lenet5
from sparkdl.nn.zoo.mlp import mlp

__all__ = ["ZOO", "cnn", "lenet5", "mlp"]

ZOO: Mapping[str, Callable[..., Layer]] = {f.__name__: f for f in (cnn, lenet5, mlp)}
