"""A trained model: weights, and all that is needed to score data like those it was trained on."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from sparkdl.backends.base import Remote
from sparkdl.data import DataInfo, Handle, ShardReader
from sparkdl.ml.scoring import Scorer, transform
from sparkdl.ml.sources import spooled
from sparkdl.nn import Array, Layer, Loss, Model, summary
from sparkdl.strategies.tree_aggregate import tree_depth
from sparkdl.train import History, Metric, MetricSet, Part, Profile
from sparkdl.train.files import Files, LocalFiles
from sparkdl.train.persist import ModelState, load_model, save_model

__all__ = ["TrainedModel", "files_at", "load"]


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """What `fit` returns and `load` reads.

    params: the flat vector of model.layout. data: columns, shapes, labels and scaling of the training data.
    history: one record an epoch. stop_reason: why training ended before its last epoch, None if it did not.
    profile: where the time went, when asked for.
    """

    model: Model
    params: Array
    data: DataInfo
    metrics: tuple[Metric, ...] = ()
    history: History = field(default_factory=History)
    stop_reason: str | None = None
    profile: Profile | None = None

    def predict(self, x: Array) -> Array:
        """Raw features x (N, *shape), as the feature column holds them -> predictions (N, ...).

        Class probabilities for a classification, in the order of `classes`; values otherwise.
        """
        rows = np.asarray(x).reshape(len(x), *self.data.shape)
        return self.model.predict(self.params, self.data.preprocess(rows))

    @property
    def classes(self) -> tuple[Any, ...]:
        """The labels, in the order of their probabilities; () for a regression."""
        return () if self.data.labels is None else self.data.labels.classes

    def transform(self, df: DataFrame, prediction: str = "prediction", probability: str = "probability") -> DataFrame:
        """df with the columns `prediction` (labels as in training, or values) and, for classes, `probability`.

        A row whose features cannot be used gets nulls where the model was trained with handle_invalid "skip".
        Errors: DataError for columns that are missing, of another type, or named as the new ones.
        """
        return transform(df, Scorer(self.model, self.params, self.data), prediction, probability)

    def evaluate(self, data: Any, workers: int = 0) -> dict[str, Any]:
        """Loss and metrics over labelled data (a DataFrame, a pyarrow Table or a path), each row counting once."""
        info = self.data
        chosen = MetricSet(self.model.loss, self.metrics, self.model.out_shape)
        with (
            spooled(data, info.evaluation_spec, labels=info.labels, preprocess=info.preprocess, workers=workers) as (
                backend,
                shards,
            ),
            backend.share((self.model, self.params, shards.info, chosen)) as shared,
        ):
            depth = tree_depth(len(shards.handles), 8 * chosen.size, backend.max_result_bytes)
            part = backend.tree_aggregate(shards, functools.partial(_score, shared), Part.plus, depth)
        return chosen.results(part.metrics)

    def save(self, path: str, overwrite: bool = False) -> None:
        """Write the model's folder: to a disk, or to any store that the active Spark session reaches."""
        state = ModelState(self.model, self.params, self.data.to_json(), self.metrics, self.history)
        save_model(files_at(path), path, state, overwrite)

    def summary(self, cost: bool = False) -> str:
        """The table of layers; with `cost`, also their operations, depth and bytes."""
        return summary(self.model, cost)


def load(
    path: str, layers: dict[str, type[Layer]] | None = None, losses: dict[str, type[Loss]] | None = None
) -> TrainedModel:
    """Read a model's folder. layers, losses: classes of one's own that the model is made of, by kind.

    Errors: ModelFormatError where the folder is no model, is damaged, or was written by a newer version.
    """
    state = load_model(files_at(path), path, layers, losses)
    return TrainedModel(state.model, state.params, DataInfo.from_json(state.data), state.metrics, state.history)


def _score(shared: Remote[tuple[Model, Array, DataInfo, MetricSet]], handle: Handle) -> Part:
    model, params, info, chosen = shared.value
    acc = chosen.zeros()
    reader = ShardReader(handle, info)
    for x, y, w in reader.train_chunks(model.rows_at_once(params.dtype)):
        chosen.update(acc, model.outputs(params, x), y, w)
    reader.close()
    return Part(np.zeros(0, params.dtype), acc)


def files_at(path: str) -> Files:
    """What reads and writes this path: plain files, or Hadoop's file systems where a Spark session is active."""
    spark = SparkSession.getActiveSession()
    if spark is None:
        return LocalFiles()
    from sparkdl.backends.spark_files import files_for

    return files_for(path, spark)
