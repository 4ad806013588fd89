"""Compiled twins of the kernels, by the names of their modules."""

__all__ = []
