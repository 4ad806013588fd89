"""Configurations: strict TOML into frozen dataclasses whose text has become objects."""

from sparkdl.config.choices import SCHEMA, ModelConfig
from sparkdl.config.load import digest, from_dict, links_at, load, to_dict
from sparkdl.config.places import Where
from sparkdl.config.schema import Codec, Named, Schema
from sparkdl.config.sections import (
    CheckpointConfig,
    Config,
    DataConfig,
    LinkConfig,
    LinksConfig,
    OutputConfig,
    SimulateConfig,
    TrainingConfig,
)

__all__ = [
    "SCHEMA",
    "CheckpointConfig",
    "Codec",
    "Config",
    "DataConfig",
    "LinkConfig",
    "LinksConfig",
    "ModelConfig",
    "Named",
    "OutputConfig",
    "Schema",
    "SimulateConfig",
    "TrainingConfig",
    "Where",
    "digest",
    "from_dict",
    "links_at",
    "load",
    "to_dict",
]
