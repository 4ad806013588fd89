"""The exceptions that users meet: one class per kind of mistake, each with the exit code of the jobs."""

from __future__ import annotations

__all__ = ["ConfigError", "DataError", "ModelFormatError", "SparkdlError", "TrainingError"]


class SparkdlError(Exception):
    """Base of every error that sparkdl raises on purpose; the message states the rule, the values and the remedy."""

    exit_code = 1


class ConfigError(SparkdlError, ValueError):
    """A wrong key, type, range or combination in a configuration file or in arguments."""

    exit_code = 2


class DataError(SparkdlError, ValueError):
    """Data that cannot be trained on or scored: missing columns, wrong types or shapes, nulls, unknown labels."""

    exit_code = 3


class ModelFormatError(SparkdlError):
    """A model directory or checkpoint that is absent, damaged, or written by a newer version."""

    exit_code = 3


class TrainingError(SparkdlError):
    """Training that cannot go on: non-finite gradients, lost shards, a failed worker."""
