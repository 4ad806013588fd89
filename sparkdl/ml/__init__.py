"""Training and scoring as users call them."""

from sparkdl.ml.fitting import CheckpointPlan, fit
from sparkdl.ml.trained import TrainedModel, load

__all__ = ["CheckpointPlan", "TrainedModel", "fit", "load"]
