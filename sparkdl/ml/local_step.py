"""What the simulator must know of a fit: the network that a configuration builds, and how long its local step takes."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from sparkdl.config import Config
from sparkdl.data import LabelMap
from sparkdl.errors import ConfigError, DataError
from sparkdl.ml.job import SYNTHETIC_CLASSES, SYNTHETIC_SHAPE
from sparkdl.ml.sources import spooled
from sparkdl.nn import Array, Ctx, Model, Shape

__all__ = ["local_step_s", "network"]

STEPS, LEAST_S, ENOUGH_S = 7, 0.2, 2.0  # timed at least: so many, for so long; none is begun after ENOUGH_S


def network(config: Config) -> Model:
    """The network for the configuration's data. Errors: DataError, ConfigError where they cannot be had or do not fit.

    Where `data.shape` and `data.classes` do not say what it must be, the training rows are read, on this machine.
    """
    shape, outputs = _sizes(config)
    try:
        return Model(config.model.net(shape, outputs), config.loss, shape)
    except ValueError as e:
        raise ConfigError(f"The model does not fit the data, whose samples have shape {shape}: {e}") from e


def local_step_s(config: Config, model: Model, rows: int) -> float:
    """Median seconds of a local step of `rows` rows on this machine: gradients of random rows, and an update.

    Errors: ConfigError where the network cannot take random rows.
    """
    training, layout, rng = config.training.settings, model.layout, np.random.default_rng(0)
    params = model.init(rng, np.dtype(training.dtype))
    state = config.optimizer.init(params[: layout.num_trainable])
    x, y = _random_rows(model, rows, rng, params.dtype)
    laps: list[float] = []
    start = time.perf_counter()
    while (
        len(laps) < 2 or (spent := time.perf_counter() - start) < LEAST_S or (len(laps) <= STEPS and spent < ENOUGH_S)
    ):
        began, grad = time.perf_counter(), np.zeros_like(params)
        try:
            for _ in range(training.accumulate):
                sums, _ = model.accumulate(params, grad, x, y, None, Ctx(train=True, rng=rng))
        except (ValueError, IndexError) as e:
            raise ConfigError(
                f"the network cannot be measured with random rows ({e}). Set simulate.compute_s, the seconds of a "
                "worker's local step."
            ) from e
        mean = grad[: layout.num_trainable] / (sums.weight * training.accumulate or 1.0)
        training.clip.apply(mean)
        own = params[: layout.num_trainable]
        config.optimizer.step(own, mean, state, config.optimizer.lr, layout.trainable_segments)
        laps.append(time.perf_counter() - began)
    return median(laps[1:])  # the first meets cold caches


def _sizes(config: Config) -> tuple[Shape, int]:
    """The shape of a sample, and the number of classes or target entries."""
    data, target = config.data, config.loss.target
    count = None if data.classes is None else len(data.classes)
    if data.synthetic is not None:
        return data.columns.shape or SYNTHETIC_SHAPE, count or SYNTHETIC_CLASSES
    if data.columns.shape is not None and count is not None and target == "classes":
        return data.columns.shape, count
    spec = replace(data.columns, target=target, dtype=config.training.settings.dtype)
    labels = None if data.classes is None else LabelMap(data.classes)
    try:
        with spooled(data.train, spec, labels=labels, workers=1) as (_, shards):
            info = shards.info
    except DataError as e:
        raise DataError(
            f"data.train says what the network must be, but {e} With data.shape and data.classes it is not read."
        ) from e
    return info.shape, math.prod(info.target_shape) if info.labels is None else len(info.labels.classes)


def _random_rows(model: Model, rows: int, rng: np.random.Generator, dtype: Any) -> tuple[Array, Array]:
    """Features of zeros and ones, which are good tokens too, and targets that go with the network's outputs."""
    x = rng.integers(0, 2, (rows, *model.in_shape)).astype(dtype)
    if model.loss.target == "classes":
        return x, rng.integers(0, model.out_shape[-1], (rows, *model.out_shape[:-1]))
    return x, rng.integers(0, 2, (rows, *model.out_shape)).astype(dtype)
