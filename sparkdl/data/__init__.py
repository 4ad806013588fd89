"""From tables to shards, and from shards to minibatches. `sparkdl.data.spark` holds what needs Spark."""

from sparkdl.data.augment import AUGMENTATIONS, Augmentation, ColorJitter, Cutout, Flip, RandomCrop, augment
from sparkdl.data.info import DataInfo
from sparkdl.data.labels import LabelMap
from sparkdl.data.local import LocalShards, read_path, spool_local
from sparkdl.data.pack import packed_rows
from sparkdl.data.plan import Plan
from sparkdl.data.preprocess import Preprocess
from sparkdl.data.reader import ShardReader
from sparkdl.data.schema import DataSpec, Packing, resolve
from sparkdl.data.shard import Handle, Piece, Shard, ShardMissing
from sparkdl.data.synthetic import synthetic

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "ColorJitter",
    "Cutout",
    "DataInfo",
    "DataSpec",
    "Flip",
    "Handle",
    "LabelMap",
    "LocalShards",
    "Packing",
    "Piece",
    "Plan",
    "Preprocess",
    "RandomCrop",
    "Shard",
    "ShardMissing",
    "ShardReader",
    "augment",
    "packed_rows",
    "read_path",
    "resolve",
    "spool_local",
    "synthetic",
]
