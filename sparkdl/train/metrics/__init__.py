"""Metrics as sums that add up across shards, and are divided only when a figure is asked for."""

from sparkdl.train.metrics.base import Metric
from sparkdl.train.metrics.classes import AUC, F1, Accuracy, Average, ConfusionMatrix, Precision, Recall, TopK
from sparkdl.train.metrics.metric_set import METRICS, MetricSet, decode_metric, default_metrics, encode_metric
from sparkdl.train.metrics.values import MAE, MSE, R2

__all__ = [
    "AUC",
    "F1",
    "MAE",
    "METRICS",
    "MSE",
    "R2",
    "Accuracy",
    "Average",
    "ConfusionMatrix",
    "Metric",
    "MetricSet",
    "Precision",
    "Recall",
    "TopK",
    "decode_metric",
    "default_metrics",
    "encode_metric",
]
