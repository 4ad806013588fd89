"""Update rules, schedules and clipping, over flat vectors."""

from sparkdl.fields import Interval
from sparkdl.optim.adagrad import AdaGrad
from sparkdl.optim.adam import Adam, AdamW, Nadam
from sparkdl.optim.base import Optimizer, Segment, State
from sparkdl.optim.blocks import Span
from sparkdl.optim.clip import Clip, clip_by_norm, clip_by_value, norm
from sparkdl.optim.layerwise import LAMB, LARS
from sparkdl.optim.outer import BMUF, OUTER, Average, DiLoCo, Elastic, OuterOptimizer, SlowMo
from sparkdl.optim.registry import OPTIMIZERS, SCHEDULES
from sparkdl.optim.rmsprop import RMSProp
from sparkdl.optim.rule import Elementwise, Rule
from sparkdl.optim.schedules import (
    Constant,
    Cosine,
    MultiStep,
    OneCycle,
    OnPlateau,
    Polynomial,
    Schedule,
    Step,
    WarmUp,
)
from sparkdl.optim.sgd import SGD

__all__ = [
    "BMUF",
    "LAMB",
    "LARS",
    "OPTIMIZERS",
    "OUTER",
    "SCHEDULES",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Average",
    "Clip",
    "Constant",
    "Cosine",
    "DiLoCo",
    "Elastic",
    "Elementwise",
    "Interval",
    "MultiStep",
    "Nadam",
    "OnPlateau",
    "OneCycle",
    "Optimizer",
    "OuterOptimizer",
    "Polynomial",
    "RMSProp",
    "Rule",
    "Schedule",
    "Segment",
    "SlowMo",
    "Span",
    "State",
    "Step",
    "WarmUp",
    "clip_by_norm",
    "clip_by_value",
    "norm",
]
