"""What is known of the data of a fit once they are spooled: small, and kept with the model."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparkdl.data.labels import LabelMap
from sparkdl.data.preprocess import Preprocess
from sparkdl.data.schema import DataSpec, Packing, Shape
from sparkdl.data.shard import Handle
from sparkdl.data.stats import MAX_LABELS, Stats, alike_remedy, complaint, describe
from sparkdl.errors import DataError

__all__ = ["DataInfo", "conclude"]

log = logging.getLogger(__name__)

SKEW = 1.5  # times its share that a shard may hold without a warning
CHANCE = 6.0  # standard deviations by which hashing alone may fill a shard unevenly


@dataclass(frozen=True)
class DataInfo:
    """What workers and models must know of the data.

    shape, target_shape: of one sample, () for scalar targets. train_counts, valid_counts: rows of each shard.
    labels: classes and their indices, None for values. preprocess: from stored features to those of the network.
    """

    spec: DataSpec
    shape: Shape
    target_shape: Shape
    train_counts: tuple[int, ...]
    valid_counts: tuple[int, ...]
    preprocess: Preprocess
    labels: LabelMap | None = None

    @property
    def train_rows(self) -> int:
        """Training rows of all shards."""
        return sum(self.train_counts)

    @property
    def valid_rows(self) -> int:
        """Validation rows of all shards."""
        return sum(self.valid_counts)

    @property
    def scoring_spec(self) -> DataSpec:
        """How the features of further data are read for the same model."""
        return replace(self.spec.for_scoring(), shape=self.shape)

    @property
    def evaluation_spec(self) -> DataSpec:
        """The same with label and weight; no rows are held out."""
        return replace(self.scoring_spec, label=self.spec.label, weight=self.spec.weight, standardize=False)

    def train_offset(self, part: int) -> int:
        """The number, among all training rows, of a shard's first."""
        return sum(self.train_counts[:part])

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a model's description."""
        return {
            "spec": asdict(self.spec),
            "shape": list(self.shape),
            "target_shape": list(self.target_shape),
            "train_counts": list(self.train_counts),
            "valid_counts": list(self.valid_counts),
            "preprocess": self.preprocess.to_json(),
            "labels": None if self.labels is None else self.labels.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DataInfo:
        spec: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data["spec"].items()}
        return cls(
            DataSpec(**spec),
            tuple(data["shape"]),
            tuple(data["target_shape"]),
            tuple(data["train_counts"]),
            tuple(data["valid_counts"]),
            Preprocess.from_json(data["preprocess"]),
            None if data["labels"] is None else LabelMap.from_json(data["labels"]),
        )


def conclude(
    handles: Sequence[Handle],
    packing: Packing,
    labels: LabelMap | None,
    preprocess: Preprocess | None,
    spare: int = 0,
) -> DataInfo:
    """Judge what the tasks have found: the data of a fit, or a DataError.

    handles: of all shards, in order, of which the first `spare` were to stay empty. labels, preprocess: those of a
    model that is to be evaluated or trained further.
    """
    stats = Stats()
    for handle in handles:
        stats.merge(Stats.from_json(handle.stats))
    spec = packing.spec
    _check_rows(stats, packing)
    shape, target_shape = next(iter(stats.shapes))
    train, valid = (tuple(piece.rows for piece in pieces) for pieces in zip(*(h[1:3] for h in handles), strict=True))
    if not sum(train):
        raise DataError(f"all {sum(valid):,} rows are validation rows; none are left to train on. Check the split.")
    if not sum(valid) and (spec.valid_fraction or spec.valid_column):
        log.warning("none of the %s rows is a validation row", f"{sum(train):,}")
    _warn_of_skew([t + v for t, v in zip(train, valid, strict=True)], spec, spare)
    if preprocess is None and spec.standardize:
        assert stats.moments is not None
        preprocess = Preprocess.fit(spec.dtype, spec.scale, stats.moments, shape)
    if preprocess is None and spec.mean is not None and spec.std is not None:
        preprocess = _normalised(spec, spec.mean, spec.std, shape)
    return DataInfo(
        spec,
        shape,
        target_shape,
        train,
        valid,
        preprocess or Preprocess(spec.dtype, spec.scale),
        _labels(stats, spec, labels) if spec.target == "classes" else None,
    )


def _normalised(spec: DataSpec, mean: tuple[float, ...], std: tuple[float, ...], shape: Shape) -> Preprocess:
    """Means and deviations of channels, which are known beforehand."""
    if shape[-1:] != (len(mean),):
        raise DataError(
            f"data.mean has {len(mean)} entries, not one for each channel of samples {shape}, the last axis."
        )
    return Preprocess(spec.dtype, spec.scale, np.array(mean, np.float64), np.array(std, np.float64))


def _check_rows(stats: Stats, packing: Packing) -> None:
    text = complaint(stats.found, stats.rows, stats.dropped, packing)
    if text is not None:
        raise DataError(text)
    if not stats.rows:
        raise DataError("the data have no rows. Check the path, the filter and the dates.")
    if stats.found:
        text = describe(stats.found, stats.rows, stats.dropped)
        log.warning('data.handle_invalid = "%s": %s', packing.spec.handle_invalid, text)
    if stats.dropped == stats.rows:
        raise DataError(f"no usable row is left: {describe(stats.found, stats.rows, stats.dropped)}")
    if len(stats.shapes) > 1:
        shapes = " and ".join(str(x if y == () else (x, y)) for x, y in sorted(stats.shapes))
        raise DataError(
            f"column {packing.features.name!r}: samples have different shapes, {shapes}. {alike_remedy(packing)}"
        )


def _labels(stats: Stats, spec: DataSpec, labels: LabelMap | None) -> LabelMap:
    if stats.labels is None:
        raise DataError(
            f"column {spec.label!r} has more than {MAX_LABELS:,} distinct labels. For a regression set "
            'data.target = "values".'
        )
    if labels is None:
        return LabelMap.fit(stats.labels)
    labels.check(stats.labels)
    return labels


def _warn_of_skew(rows: Sequence[int], spec: DataSpec, spare: int) -> None:
    share = sum(rows) / (len(rows) - spare)
    part, most = max(enumerate(rows), key=lambda item: item[1])
    if most > SKEW * share and most > share + CHANCE * math.sqrt(share):
        log.warning(
            "shard %d holds %s of %s rows, its share is %s: many rows %s, and such rows stay together. %s",
            part,
            f"{most:,}",
            f"{sum(rows):,}",
            f"{share:,.0f}",
            "have the same key" if spec.key else "are identical",
            "Choose a finer data.key." if spec.key else "Name in data.key a column that tells them apart.",
        )
