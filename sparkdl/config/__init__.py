"""Configurations: strict TOML into frozen dataclasses whose text has become objects."""

from sparkdl.config.choices import SCHEMA, ModelConfig
from sparkdl.config.load import digest, from_dict, load, to_dict
from sparkdl.config.places import Where
from sparkdl.config.schema import Codec, Named, Schema
from sparkdl.config.sections import CheckpointConfig, Config, DataConfig, OutputConfig, TrainingConfig

__all__ = [
    "SCHEMA",
    "CheckpointConfig",
    "Codec",
    "Config",
    "DataConfig",
    "ModelConfig",
    "Named",
    "OutputConfig",
    "Schema",
    "TrainingConfig",
    "Where",
    "digest",
    "from_dict",
    "load",
    "to_dict",
]
