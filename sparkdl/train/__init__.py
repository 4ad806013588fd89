"""Training without Spark: the task, what a worker computes, the loop, and all that watches it."""

from sparkdl.train.callbacks import BestModel, Callback, EarlyStopping, HistoryFile, StopAtValue, TimeBudget
from sparkdl.train.checkpoint import Checkpoints
from sparkdl.train.files import Files, LocalFiles
from sparkdl.train.gradient import TAIL, Part, ShardWorker, open_worker
from sparkdl.train.history import History
from sparkdl.train.interrupt import INTERRUPTED
from sparkdl.train.loop import Loop
from sparkdl.train.metrics import METRICS, Metric, MetricSet, default_metrics
from sparkdl.train.persist import load_weights
from sparkdl.train.profile import Profile
from sparkdl.train.progress import Progress
from sparkdl.train.run import Run
from sparkdl.train.steps import Step, Steps
from sparkdl.train.task import Task, Training
from sparkdl.train.update import StepSums, apply_update

__all__ = [
    "INTERRUPTED",
    "METRICS",
    "TAIL",
    "BestModel",
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "Files",
    "History",
    "HistoryFile",
    "LocalFiles",
    "Loop",
    "Metric",
    "MetricSet",
    "Part",
    "Profile",
    "Progress",
    "Run",
    "ShardWorker",
    "Step",
    "StepSums",
    "Steps",
    "StopAtValue",
    "Task",
    "TimeBudget",
    "Training",
    "apply_update",
    "default_metrics",
    "load_weights",
    "open_worker",
]
