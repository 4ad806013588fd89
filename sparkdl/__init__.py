"""sparkdl trains deep neural networks on Apache Spark clusters, where the data already lies.

model = sparkdl.fit(df, net, sparkdl.DataSpec(features=("pixels",), label="label"))
model.transform(df), model.evaluate(df), model.save(path), sparkdl.load(path)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sparkdl.data import DataSpec
    from sparkdl.ml import TrainedModel, fit, load
    from sparkdl.train import Training

__all__ = ["DataSpec", "TrainedModel", "Training", "__version__", "fit", "load"]

# Imported on first use: a worker that needs kernels only must not pay for pyspark's SQL and for Spark's edge.
_HOMES = {
    "DataSpec": "sparkdl.data",
    "TrainedModel": "sparkdl.ml",
    "Training": "sparkdl.train",
    "fit": "sparkdl.ml",
    "load": "sparkdl.ml",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sparkdl' has no attribute {name!r}")
