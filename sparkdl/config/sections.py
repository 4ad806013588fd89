"""The sections of a configuration. What optimizers, losses and the like take is said by their own classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from sparkdl.comm.cost import Link
from sparkdl.config.choices import ModelConfig
from sparkdl.config.places import show
from sparkdl.config.schema import PATH, Inline
from sparkdl.data import DataSpec
from sparkdl.fields import COUNT, NON_NEGATIVE, POSITIVE, Interval
from sparkdl.nn import Loss
from sparkdl.nn.losses import SoftmaxCrossEntropy
from sparkdl.optim import Adam, Constant, Optimizer, Schedule
from sparkdl.simulate import Compute
from sparkdl.strategies import Strategy, TreeAggregate
from sparkdl.train.callbacks import BestModel, EarlyStopping, StopAtValue
from sparkdl.train.metrics import Metric
from sparkdl.train.monitor import Mode, direction
from sparkdl.train.task import Training

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "LinkConfig",
    "LinksConfig",
    "OutputConfig",
    "SimulateConfig",
    "TrainingConfig",
]

Count = Annotated[int, COUNT["within"]]
Natural = Annotated[int, Interval(0, float("inf"), "[)", integer=True)]
Path = Annotated[str, PATH]


@dataclass(frozen=True)
class DataConfig:
    """[data]: which rows, and the keys of `DataSpec` that say what their columns mean.

    `train`, `valid` and `test` are what `spark.read.format(format).options(**options)` loads; without `format` the
    file's extension says it. Validation rows come from `valid`, or from `train` by `valid_fraction` or `valid_column`.
    `classes` lists the labels in the order of their indices where the data may lack some. `synthetic` puts so many
    random rows with the same columns in the place of all others, for trials of speed.
    """

    columns: Annotated[DataSpec, Inline(without=("target", "dtype"))]
    train: Path | None = None
    valid: Path | None = None
    test: Path | None = None
    format: str | None = None
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    classes: tuple[int | str, ...] | None = None
    synthetic: Count | None = None

    def __post_init__(self) -> None:
        if self.train is None and self.synthetic is None:
            raise ValueError("train is required: a path. Or give a number of synthetic rows.")
        if self.columns.label is None:
            raise ValueError("label is required: a string, the column that training learns to predict.")
        by_rule = [name for name in ("valid_fraction", "valid_column") if getattr(self.columns, name)]
        if self.valid is not None and by_rule:
            raise ValueError(f"valid and data.{by_rule[0]} exclude each other. Keep one.")
        if self.classes is not None and len({*self.classes}) < max(2, len(self.classes)):
            raise ValueError(f"classes must be a list of at least 2 different labels; got {show(self.classes)}.")


@dataclass(frozen=True)
class TrainingConfig:
    """[training]: the keys of `Training` and of its `Clip` (`clip_norm`, `clip_value`), and what drives a run.

    `metrics` are those of the loss where none are named. `scale_lr` multiplies the learning rate by the number of
    workers. `master` "threads" trains in this process, without Spark, and "processes" on processes of this machine,
    which only modes whose workers train among themselves use; `workers` 0 takes as many as there are slots.
    """

    settings: Annotated[Training, Inline()] = field(default_factory=Training)
    metrics: tuple[Metric, ...] = ()
    early_stopping: EarlyStopping | None = None
    best_model: BestModel | None = None
    stop_at: StopAtValue | None = None
    time_budget_s: Annotated[float, POSITIVE["within"]] | None = None
    scale_lr: bool = False
    master: Literal["", "threads", "processes"] = ""
    workers: Natural = 0


@dataclass(frozen=True)
class CheckpointConfig:
    """[checkpoint]: none are written without a `folder`. `every_steps` and `every_epochs` are off at 0.

    The last `keep_last` stay, and the best by the figure `keep_best` (`val_loss`; `mode` says whether "min" or "max" is
    better). `resume` goes on from the newest one in `folder` ("auto"), never, or from that of another folder.
    """

    folder: Path | None = None
    every_steps: Natural = 0
    every_epochs: Natural = 1
    keep_last: Count = 2
    keep_best: str | None = None
    mode: Mode = "auto"
    resume: Literal["auto", "never"] | Path = "auto"

    def __post_init__(self) -> None:
        if self.keep_best is not None:
            direction(self.keep_best, self.mode)


@dataclass(frozen=True)
class OutputConfig:
    """[output]: the model's folder, and files of figures; `metrics` is `metrics.json` beside the model by default."""

    model: Path | None = None
    overwrite: bool = False
    history: Path | None = None
    metrics: Path | None = None


@dataclass(frozen=True)
class LinkConfig:
    """A link: a message takes `alpha_us` microseconds and its bytes at `gbit_s` 10^9 bits a second.

    `gamma` is the seconds that adding up a byte takes.
    """

    alpha_us: float = field(default=50.0, metadata=POSITIVE)
    gbit_s: float = field(default=10.0, metadata=POSITIVE)
    gamma: float = field(default=1e-10, metadata=NON_NEGATIVE)

    @property
    def link(self) -> Link:
        """As the cost model has it."""
        return Link(self.alpha_us * 1e-6, 8e-9 / self.gbit_s, self.gamma)


@dataclass(frozen=True)
class LinksConfig:
    """A file of links: between hosts, and within one where that differs."""

    between: LinkConfig
    within: LinkConfig | None = None


@dataclass(frozen=True)
class SimulateConfig:
    """[simulate]: the cluster that `python -m sparkdl simulate` supposes.

    A worker's local step is one of `rows` rows, or of its share of `training.batch_size` (0), and takes `compute_s`, or
    what it takes on this machine (0); the other keys of `simulate.Compute` spread that. `per_host` workers share a host
    and its link, whose parameters stand here or in `link_file`. `steps` are played with the random numbers of `seed`,
    more of them where few workers draw random times.
    """

    compute_s: float = field(default=0.0, metadata=NON_NEGATIVE)
    rows: Natural = 0
    compute: Annotated[Compute, Inline(without=("seconds",))] = field(default_factory=Compute)
    per_host: Count = 1
    link: Annotated[LinkConfig, Inline()] = field(default_factory=LinkConfig)
    link_file: Path | None = None
    steps: Count = 20
    seed: Natural = 0


@dataclass(frozen=True)
class Config:
    """A whole configuration, its text already turned into objects."""

    data: DataConfig
    model: ModelConfig
    loss: Loss = field(default_factory=SoftmaxCrossEntropy)
    optimizer: Optimizer = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=Constant)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    strategy: Strategy = field(default_factory=TreeAggregate)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
