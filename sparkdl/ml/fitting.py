"""From data and a network to a trained model: the calls that a notebook and the jobs share."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparkdl.backends import Backend
from sparkdl.data import DataInfo, DataSpec, LabelMap
from sparkdl.errors import ConfigError
from sparkdl.ml.sources import Master, backend_of, spooled
from sparkdl.ml.trained import TrainedModel
from sparkdl.nn import Array, Layer, Loss, Model, Shape, SoftmaxCrossEntropy
from sparkdl.optim import Adam, Constant, Optimizer, Schedule
from sparkdl.strategies import Strategy, TreeAggregate
from sparkdl.train import (
    Callback,
    Checkpoints,
    Loop,
    Metric,
    MetricSet,
    Run,
    Task,
    Training,
    default_metrics,
    load_weights,
)
from sparkdl.train.monitor import Mode

__all__ = ["Build", "CheckpointPlan", "fit"]

log = logging.getLogger(__name__)

INIT = 0  # purpose of the generator that draws the first weights

Build = Callable[[Shape, int], Layer]  # (shape of a sample, number of classes or of target entries) -> net


@dataclass(frozen=True)
class CheckpointPlan:
    """Where and when checkpoints are written (see `train.Checkpoints`), and whether to go on from the newest.

    `resume` is "auto", "never", or a folder of checkpoints to start from.
    """

    folder: str
    every_steps: int | None = None
    every_epochs: int | None = 1
    keep_last: int = 2
    keep_best: str | None = None
    mode: Mode = "auto"
    resume: str = "auto"
    config: str = ""


def fit(
    data: Any,
    net: Layer | Build,
    spec: DataSpec,
    *,
    valid: Any = None,
    classes: Sequence[Any] | None = None,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    training: Training | None = None,
    strategy: Strategy | None = None,
    metrics: Sequence[Metric] = (),
    callbacks: Sequence[Callback] = (),
    checkpoints: CheckpointPlan | None = None,
    weights: str | None = None,
    workers: int = 0,
    master: Master | Backend = "threads",
    scale_lr: bool = False,
    on_start: Callable[[Task], None] | None = None,
) -> TrainedModel:
    """Train a network on a DataFrame, or in this process on Arrow data.

    data: a Spark DataFrame; or, to train on threads without Spark, a pyarrow Table or the path of Parquet or CSV
      files. valid: held-out rows of the same kind, where `spec` does not split them off.
    net: a layer that ends in logits or values, or a function (sample shape, outputs) -> layer, as those of `nn.zoo`.
    classes: the labels in the order of their indices, where the data may lack some.
    loss, optimizer, schedule, training, strategy: softmax cross-entropy, Adam, a constant rate, 10 epochs of
      minibatches of 32, and tree aggregation where not given. metrics: those of the loss.
    weights: a model folder or safetensors file to start from. workers: shards, and as many tasks at a time; 0 takes
      the slots that there are. scale_lr multiplies the learning rate by their number (Goyal et al. 2017).
    master: what workers on Arrow data are; "processes" where they train among themselves, on a core each (see
      `backends.ProcessBackend`), or a backend.
    on_start: hears of the task once the data are known, before the first step.

    Errors: DataError for data that cannot be trained on, ConfigError or ValueError for settings that do not go
    together or with the data, TrainingError where training fails.
    """
    loss, optimizer = loss or SoftmaxCrossEntropy(), optimizer or Adam()
    training, strategy = training or Training(), strategy or TreeAggregate()
    spec = replace(spec, target=loss.target, dtype=training.dtype)
    labels = None if classes is None else LabelMap(tuple(classes))
    if spec.label is None:
        raise ConfigError("Training needs targets: name their column in DataSpec.label (data.label).")
    strategy, workers = strategy.plan(workers, backend_of(data, workers, master).slots())
    given: dict[str, Any] = {"labels": labels, "workers": workers, "master": master, "spare": strategy.spare}
    with spooled(data, spec, valid=valid, **given) as (backend, shards):
        info, training_workers = shards.info, len(shards.handles) - strategy.spare
        if scale_lr:
            optimizer = replace(optimizer, lr=optimizer.lr * training_workers)  # type: ignore[type-var]
        model, chosen = _model(net, loss, metrics, info)
        task = Task(uuid.uuid4().hex, model, optimizer, training, info, chosen, schedule or Constant())
        _log_plan(task, training_workers)
        if on_start is not None:
            on_start(task)
        run = Run(_first_weights(task, weights, backend), schedule_state=task.schedule.init())
        run.opt_state = optimizer.init(run.params[: model.layout.num_trainable])
        loop = Loop(task, run, callbacks, _checkpoints(checkpoints, task, run, backend))
        strategy.train(loop, shards, backend)
    return TrainedModel(model, run.params, info, chosen.metrics, run.history, run.stop_reason, loop.profile)


def _model(net: Layer | Build, loss: Loss, metrics: Sequence[Metric], info: DataInfo) -> tuple[Model, MetricSet]:
    """The network for these data and the metrics for it. Errors: ConfigError where they do not fit together."""
    outputs = len(info.labels.classes) if info.labels is not None else math.prod(info.target_shape)
    try:
        built = net if isinstance(net, Layer) else net(info.shape, outputs)
        model = Model(built, loss, info.shape)
        classes = None if info.labels is None else outputs
        loss.check(model.out_shape, classes, None if info.labels is not None else info.target_shape)
        return model, MetricSet(loss, tuple(metrics) or default_metrics(loss), model.out_shape)
    except ValueError as e:
        raise ConfigError(f"The model does not fit the data, whose samples have shape {info.shape}: {e}") from e


def _log_plan(task: Task, workers: int) -> None:
    info, training = task.info, task.training
    log.info(
        "%s training and %s validation rows for %d workers; global batch %d, about %.4g rows a worker; %d updates an "
        "epoch, %d epochs; %s parameters",
        f"{info.train_rows:,}",
        f"{info.valid_rows:,}",
        workers,
        training.batch_size * training.accumulate,
        training.batch_size * training.accumulate / workers,
        task.steps_per_epoch,
        training.epochs,
        f"{task.model.layout.num_trainable:,}",
    )


def _first_weights(task: Task, path: str | None, backend: Backend) -> Array:
    """Weights drawn from the seed, or those of a file or model folder."""
    dtype = np.dtype(task.training.dtype)
    params = task.model.init(np.random.default_rng((task.training.seed, INIT)), dtype)
    if path is not None:
        load_weights(backend.files(path), path, task.model.layout, params)
    return params


def _checkpoints(plan: CheckpointPlan | None, task: Task, run: Run, backend: Backend) -> Checkpoints | None:
    """The writer of checkpoints; brings run to where it should start from."""
    if plan is None:
        return None
    layout = task.model.layout
    saved = Checkpoints(
        backend.files(plan.folder),
        plan.folder,
        layout,
        plan.every_steps,
        plan.every_epochs,
        plan.keep_last,
        plan.keep_best,
        plan.mode,
        plan.config,
    )
    if plan.resume == "auto":
        saved.restore(run)
    elif plan.resume != "never":
        source = Checkpoints(backend.files(plan.resume), plan.resume, layout, config=plan.config)
        if not source.restore(run):
            raise ConfigError(f"checkpoint.resume: there is no checkpoint in {plan.resume}.")
    return saved
