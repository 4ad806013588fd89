"""The names under which a configuration finds optimizers and schedules."""

from __future__ import annotations

from sparkdl.optim.adagrad import AdaGrad
from sparkdl.optim.adam import Adam, AdamW, Nadam
from sparkdl.optim.base import Optimizer
from sparkdl.optim.layerwise import LAMB, LARS
from sparkdl.optim.rmsprop import RMSProp
from sparkdl.optim.schedules import Constant, Cosine, MultiStep, OneCycle, OnPlateau, Polynomial, Schedule, Step
from sparkdl.optim.sgd import SGD

__all__ = ["OPTIMIZERS", "SCHEDULES"]

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adagrad": AdaGrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": Nadam,
    "lars": LARS,
    "lamb": LAMB,
}

# WarmUp has no name: it stands before any of these.
SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "multi_step": MultiStep,
    "cosine": Cosine,
    "polynomial": Polynomial,
    "one_cycle": OneCycle,
    "on_plateau": OnPlateau,
}
