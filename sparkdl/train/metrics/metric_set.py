"""Loss and metrics of a fit in one vector of sums."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sparkdl.nn import Array, Loss, Shape
from sparkdl.train.metrics.base import Metric
from sparkdl.train.metrics.classes import AUC, F1, Accuracy, ConfusionMatrix, Precision, Recall, TopK
from sparkdl.train.metrics.values import MAE, MSE, R2

__all__ = ["METRICS", "MetricSet", "decode_metric", "default_metrics", "encode_metric"]

METRICS: dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy,
    "auc": AUC,
    "confusion_matrix": ConfusionMatrix,
    "f1": F1,
    "mae": MAE,
    "mse": MSE,
    "precision": Precision,
    "r2": R2,
    "recall": Recall,
    "top_k": TopK,
}


def encode_metric(metric: Metric) -> dict[str, Any]:
    """The metric as plain data: `{"kind": "top_k", "k": 3}`. Errors: ValueError for one that METRICS does not hold."""
    for kind, build in METRICS.items():
        if build is type(metric):
            return {"kind": kind, **vars(metric)}
    raise ValueError(f"{metric} cannot be written as data: its class is not in METRICS ({', '.join(METRICS)}).")


def decode_metric(data: str | Mapping[str, Any]) -> Metric:
    """The metric of a name in METRICS, or of a table with that name as "kind" and its arguments.

    Errors: ValueError for unknown names, with the nearest known one, and for arguments the metric refuses.
    """
    table = {"kind": data} if isinstance(data, str) else dict(data)
    kind = table.pop("kind", None)
    if kind not in METRICS:
        close = difflib.get_close_matches(str(kind), METRICS, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(METRICS)}."
        raise ValueError(f"There is no metric {kind!r}. {hint}")
    try:
        return METRICS[kind](**table)
    except TypeError as e:
        raise ValueError(f"metric {kind!r}: {e}") from e


def default_metrics(loss: Loss) -> tuple[Metric, ...]:
    """Accuracy where the loss links outputs to probabilities of classes, else MSE and MAE; none if none fits."""
    if not loss.comparable:
        return ()
    return (Accuracy(),) if _probabilities(loss) else (MSE(), MAE())


@dataclass(frozen=True)
class MetricSet:
    """The loss and some metrics over one flat float64 vector [loss sum, weight, rows | sums of each metric].

    Vectors of shards and batches are added; only `results` divides. Rows whose label is the loss's `ignore_index`
    count in `rows` and nowhere else. Where a loss takes several yes-or-no labels a row, metrics of classes count each
    as a row of its own. Errors: ValueError for two metrics of one name or one that does not go with the loss.
    """

    loss: Loss
    metrics: tuple[Metric, ...]
    out_shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", tuple(self.metrics))
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"Metrics must differ in name; got {', '.join(self.names)}.")
        if self.metrics and not self.loss.comparable:
            raise ValueError(
                f"No metric goes with {type(self.loss).__name__}, which compares no targets with predictions."
            )
        for metric in self.metrics:
            fits = _probabilities(self.loss) if metric.target == "classes" else self.loss.target == "values"
            if not fits:
                kind = "probabilities of classes" if metric.target == "classes" else "values"
                raise ValueError(
                    f"{metric.name} compares {kind}, which {type(self.loss).__name__} does not predict. "
                    f"Take {' and '.join(m.name for m in default_metrics(self.loss))}, or others of their kind."
                )
            metric.size(self._shape(metric))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures in `results`."""
        return ("loss", *(m.name for m in self.metrics))

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self._ends[-1]

    def zeros(self) -> Array:
        """The sums of no rows (size,)."""
        return np.zeros(self.size)

    def update(self, acc: Array, z: Array, y: Array, w: Array | None, known: tuple[float, float] | None = None) -> None:
        """Add the sums of a batch into acc, in place: outputs z (N, *out_shape), targets y, weights w (N,) or None.

        `known` is the loss's (loss_sum, weight_sum) of these rows where the caller has it already.
        """
        if len(z) == 0:
            return
        loss, weight = known if known is not None else self.loss(z, y, w)[:2]
        acc[:3] += loss, weight, len(z)
        weights = np.ones(len(z)) if w is None else w.astype(np.float64, copy=False)
        ignored = getattr(self.loss, "ignore_index", None)
        if ignored is not None:
            kept = y != ignored
            z, y, weights = z[kept], y[kept], weights[kept]
        if self.loss.target == "classes":
            y = y.astype(np.int64, copy=False)
        pred = self.loss.link(z)
        for metric, sums in self._views(acc):
            if self._separates(metric):
                labels = (y.reshape(-1) > 0.5).astype(np.int64)
                each = np.repeat(weights, math.prod(self.out_shape))
                metric.update(sums, z.reshape(-1, 1), pred.reshape(-1, 1), labels, each)
            else:
                metric.update(sums, z, pred, y, weights)

    def results(self, acc: Array) -> dict[str, Any]:
        """Name -> figure (a float, or lists for a confusion matrix). Sums without weight give no figures: {}."""
        if acc[1] == 0:
            return {}
        return {"loss": float(acc[0] / acc[1])} | {m.name: m.result(sums) for m, sums in self._views(acc)}

    @cached_property
    def _ends(self) -> list[int]:
        """Where the loss's and each metric's part of the vector ends."""
        return list(itertools.accumulate((m.size(self._shape(m)) for m in self.metrics), initial=3))

    def _separates(self, metric: Metric) -> bool:
        """Whether each entry of the outputs is a yes-or-no label of its own to this metric."""
        return metric.target == "classes" and self.loss.target == "values"

    def _shape(self, metric: Metric) -> Shape:
        return (1,) if self._separates(metric) else self.out_shape

    def _views(self, acc: Array) -> Iterator[tuple[Metric, Array]]:
        for metric, start, stop in zip(self.metrics, self._ends[:-1], self._ends[1:], strict=True):
            yield metric, acc[start:stop]


def _probabilities(loss: Loss) -> bool:
    return loss.target == "classes" or loss.from_logits
