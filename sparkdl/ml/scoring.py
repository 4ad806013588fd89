"""Predictions on Spark: two columns more for every row, computed on the executors from Arrow batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from sparkdl.backends.spark_shared import Shared, share
from sparkdl.data import DataInfo, packed_rows, resolve
from sparkdl.data.spark import packing_of
from sparkdl.errors import DataError
from sparkdl.nn import Array, Model

__all__ = ["Scorer", "transform"]

RESULT = "__sparkdl"
PIECE_BYTES = 64 << 20  # of samples as the network takes them, out of batches of 10,000 rows
LABEL_TYPES: dict[type, T.DataType] = {
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    str: T.StringType(),
}


@dataclass(frozen=True, eq=False)
class Scorer:
    """A model as the executors need it: feature columns in, predictions out."""

    model: Model
    params: Array
    data: DataInfo

    @property
    def probabilistic(self) -> bool:
        """Whether predictions are labels with probabilities, not values."""
        return self.data.labels is not None or self.model.loss.from_logits

    def score(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
        """Predictions (N,) and class probabilities (N, K) of a batch of feature columns; null where unusable.

        Errors: DataError for faults that the model's handle_invalid does not forgive.
        """
        y, usable = self._outputs(batch)
        if not self.probabilistic:
            return _column(y.astype(np.float64), usable), None
        if self.data.labels is not None:
            labels = self.data.labels.decode(y.argmax(axis=1))
            return _column(labels, usable), _column(y.astype(np.float64), usable)
        yes = (y > 0.5).astype(np.float64)
        if y.shape[1] == 1:  # of the two classes 0 and 1
            y = np.concatenate([1 - y, y], axis=1)
        return _column(yes, usable), _column(y.astype(np.float64), usable)

    def _outputs(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """(predictions of the M usable rows (M, ...), which rows those are (N,)), some rows after the others."""
        packing = resolve(self.data.scoring_spec, batch.schema)
        step = max(1, PIECE_BYTES // (math.prod(self.data.shape) * self.params.itemsize))
        y, usable = [], []
        for at in range(0, max(batch.num_rows, 1), step):
            x, fine = packed_rows(batch.slice(at, step), packing, at)
            y.append(self.model.predict(self.params, self.data.preprocess(x.reshape(-1, *self.data.shape))))
            usable.append(fine)
        return np.concatenate(y), np.concatenate(usable)

    @property
    def schema(self) -> T.StructType:
        """Types of `prediction` and, where there are any, `probability`."""
        labels = self.data.labels
        vector = T.ArrayType(T.DoubleType(), False)
        wide = labels is None and self.model.out_shape not in ((1,), ())
        kind = vector if wide else LABEL_TYPES[float if labels is None else labels.type]
        fields = [T.StructField("prediction", kind)]
        return T.StructType([*fields, *([T.StructField("probability", vector)] if self.probabilistic else [])])


def transform(df: DataFrame, scorer: Scorer, prediction: str, probability: str) -> DataFrame:
    """df with the scorer's columns added; see `TrainedModel.transform`."""
    names = dict(zip(scorer.schema.names, (prediction, probability), strict=False))
    for name in names.values():
        if name in df.columns:
            raise DataError(f"column {name!r} is in the data already. Drop it, or choose another name for the new one.")
    spec = scorer.data.scoring_spec
    packing_of(df, spec)  # a column that does not fit fails here, not in a task
    shared = share(df.sparkSession.sparkContext, scorer)
    udf: Any = arrow_udf  # its overloads leave struct types out
    score = udf(_scoring(shared), scorer.schema)
    scored = df.withColumn(RESULT, score(F.struct(*(_feature(df, name) for name in spec.columns))))
    new = (F.col(f"{RESULT}.{inner}").alias(name) for inner, name in names.items())
    return scored.select(*map(_col, df.columns), *new)


def _feature(df: DataFrame, name: str) -> Column:
    """A column as Arrow can carry it inside a struct: vectors as the struct that they are stored as."""
    user_defined = isinstance(df.schema[name].dataType, T.UserDefinedType)
    return (F.unwrap_udt(_col(name)) if user_defined else _col(name)).alias(name)


def _col(name: str) -> Column:
    return F.col(_quoted(name))


def _quoted(name: str) -> str:
    """A column name that may hold dots."""
    return "`" + name.replace("`", "``") + "`"


def _scoring(shared: Shared[Scorer]) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    def score(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        scorer = shared.value
        for rows in batches:
            columns = [c for c in scorer.score(pa.RecordBatch.from_struct_array(rows)) if c is not None]
            yield pa.StructArray.from_arrays(columns, names=["prediction", "probability"][: len(columns)])

    return score  # a function: Spark reads the kind of the UDF off its annotations


def _column(values: Array, usable: Array) -> pa.Array:
    """Values (M, ...) of the usable rows (N,) as an Arrow column with nulls for the others."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1:
        column = pa.array(values)
    else:
        offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
        column = pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))
    if usable.all():
        return column
    place = pa.array(np.cumsum(usable) - 1, mask=~usable)
    return column.take(place)
