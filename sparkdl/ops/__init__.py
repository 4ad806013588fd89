"""Kernels: functions over arrays, without classes that hold them and without state."""

from sparkdl.ops import activation, conv, norm, pool, softmax, window

__all__ = ["activation", "conv", "norm", "pool", "softmax", "window"]
