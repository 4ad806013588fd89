"""Training and scoring as a configuration and the command line ask for them; what the scripts in jobs/ call."""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sparkdl.backends.spark_errors import readable_errors
from sparkdl.config import Config, DataConfig, digest, to_dict
from sparkdl.data import synthetic
from sparkdl.data.local import existing
from sparkdl.data.spark import packing_of, readable
from sparkdl.errors import ConfigError, DataError
from sparkdl.ml.fitting import CheckpointPlan, fit
from sparkdl.ml.trained import TrainedModel, files_at
from sparkdl.nn import parameter_table, summary
from sparkdl.train import INTERRUPTED, Callback, HistoryFile, Progress, Task, TimeBudget
from sparkdl.train.files import write_json

__all__ = ["Outcome", "read", "settings", "tables", "train", "write"]

log = logging.getLogger(__name__)

SYNTHETIC_SHAPE, SYNTHETIC_CLASSES = (28, 28, 1), 10


class Outcome(NamedTuple):
    """What a training job ends with: figures by name (`test.accuracy`), and where the model and they were written."""

    model: TrainedModel
    metrics: dict[str, Any]
    model_path: str | None
    metrics_path: str | None
    checkpoints_path: str | None

    def report(self) -> str:
        """The figures that count and the places, one a line."""
        last = next((s for s in ("test", "valid", "train") if any(n.startswith(f"{s}.") for n in self.metrics)), "")
        lines = [
            f"{name.replace('.', ' ')} {value:.4f}"
            for name, value in self.metrics.items()
            if name.startswith(f"{last}.") and isinstance(value, float)
        ]
        places = (("model", self.model_path), ("metrics", self.metrics_path), ("checkpoints", self.checkpoints_path))
        return "\n".join([*lines, *(f"{what}: {path}" for what, path in places if path is not None)])


def settings(config: Config) -> str:
    """Every setting of a configuration, one a line, as --set takes them."""
    return "\n".join(
        f"{section}.{key} = {json.dumps(value)}"
        for section, table in to_dict(config).items()
        for key, value in table.items()
    )


def tables(task: Task, parameters: bool = False) -> str:
    """The table of layers and, if asked for, that of parameters."""
    return summary(task.model) + (f"\n\n{parameter_table(task.model)}" if parameters else "")


def train(config: Config, spark: SparkSession | None, on_start: Callable[[Task], None] | None = None) -> Outcome:
    """Train, test and save as the configuration says; without a session on threads of this process.

    on_start hears of the task before the first step.

    A run that was interrupted is neither tested nor saved as a model; its checkpoint, where there is a folder for it,
    is what the same configuration goes on from.

    Errors: ConfigError before any work where the output exists and may not be overwritten; those of `fit`.
    """
    data, output = config.data, config.output
    _check_output(config)
    rows, valid, test = _sources(data, spark)
    settings, checkpoint = config.training, config.checkpoint
    model = fit(
        rows,
        config.model.net,
        data.columns,
        valid=valid,
        classes=data.classes,
        loss=config.loss,
        optimizer=config.optimizer,
        schedule=config.schedule,
        training=settings.settings,
        strategy=config.strategy,
        metrics=settings.metrics,
        callbacks=_callbacks(config),
        on_start=on_start,
        checkpoints=None if checkpoint.folder is None else _plan(config),
        weights=config.model.weights,
        workers=settings.workers,
        master="processes" if settings.master == "processes" else "threads",
        scale_lr=settings.scale_lr,
    )
    figures = {f"train.{name}": value for name, value in _last(model).items() if not name.startswith("val_")}
    figures |= {f"valid.{n.removeprefix('val_')}": v for n, v in _last(model).items() if n.startswith("val_")}
    if model.stop_reason == INTERRUPTED:  # the cluster may be gone, and half a training is no model to publish
        return Outcome(model, figures, None, None, checkpoint.folder)
    metrics_path = output.metrics
    if output.model is not None:  # before the test: whatever is wrong with its rows, the training is not lost
        model.save(output.model, output.overwrite)
        metrics_path = metrics_path or posixpath.join(posixpath.dirname(output.model.rstrip("/")), "metrics.json")
    if test is not None:
        figures |= {f"test.{name}": value for name, value in model.evaluate(test, settings.workers).items()}
    if metrics_path is not None:
        write_json(files_at(metrics_path), metrics_path, figures)
    return Outcome(model, figures, output.model, metrics_path, checkpoint.folder)


def read(
    spark: SparkSession | None, path: str, form: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """The rows at path: a DataFrame, or without a session the path itself.

    Errors: DataError where there are none, ConfigError for a format that only Spark reads where there is no session.
    """
    if spark is None:
        if form not in (None, "parquet", "csv"):
            raise ConfigError(
                f'data.format = "{form}" is read by Spark; without it data are Parquet or CSV. Remove training.master.'
            )
        return str(existing(path))
    form = form or ("csv" if path.endswith((".csv", ".csv.gz")) else "parquet")
    if form == "csv":
        options = {"header": True, "inferSchema": True, **(options or {})}
    try:
        return spark.read.format(form).options(**(options or {})).load(path)
    except (Py4JError, PySparkException) as e:
        raise DataError(f"{path} cannot be read as {form}: {readable(e)}") from e


def write(df: DataFrame, path: str, overwrite: bool = False) -> None:
    """Write df as Parquet. Errors: ConfigError where the path exists and may not be overwritten."""
    if not overwrite and files_at(path).exists(path):
        raise ConfigError(f"{path} exists. Choose another output path, or pass --overwrite.")
    with readable_errors():
        df.write.mode("overwrite").parquet(path)


def _check_output(config: Config) -> None:
    model = config.output.model
    if model is not None and not config.output.overwrite and files_at(model).exists(model):
        raise ConfigError(f"output.model: {model} exists. Choose another, or set output.overwrite = true.")


def _sources(data: DataConfig, spark: SparkSession | None) -> tuple[Any, Any, Any]:
    """Training, validation and test rows; the latter two None where there are none."""
    if data.synthetic is not None:
        table = _synthetic(data.synthetic, data)
        return (table if spark is None else spark.createDataFrame(table)), None, None
    train, valid, test = (
        None if path is None else read(spark, path, data.format, data.options)
        for path in (data.train, data.valid, data.test)
    )
    if isinstance(test, DataFrame):
        packing_of(test, data.columns)  # a column that is missing from the test rows shows now, not after training
    return train, valid, test


def _synthetic(rows: int, data: DataConfig) -> pa.Table:
    """Random rows with the feature and label columns of the data."""
    columns = data.columns
    if len(columns.features) != 1:
        raise ConfigError(
            f"data.synthetic makes one column of features; data.features names {len(columns.features)}. "
            "Name one, and say in data.shape what a sample looks like."
        )
    shape = columns.shape or SYNTHETIC_SHAPE
    classes = len(data.classes) if data.classes is not None else SYNTHETIC_CLASSES
    table = pa.Table.from_batches(synthetic(rows, shape, classes, seed=0))
    return table.rename_columns([columns.features[0], columns.label])


def _callbacks(config: Config) -> Sequence[Callback]:
    settings, history = config.training, config.output.history
    found: list[Callback] = [c for c in (settings.early_stopping, settings.best_model, settings.stop_at) if c]
    if settings.time_budget_s is not None:
        found.append(TimeBudget(settings.time_budget_s))
    if history is not None:
        found.append(HistoryFile(history, files_at(history)))
    return [*found, Progress()]


def _plan(config: Config) -> CheckpointPlan:
    c = config.checkpoint
    assert c.folder is not None
    return CheckpointPlan(
        c.folder,
        c.every_steps or None,
        c.every_epochs or None,
        c.keep_last,
        c.keep_best,
        c.mode,
        c.resume,
        digest(config),
    )


def _last(model: TrainedModel) -> Mapping[str, Any]:
    """The last epoch's record; empty where not one epoch came to its end."""
    return model.history[-1] if len(model.history) else {}
