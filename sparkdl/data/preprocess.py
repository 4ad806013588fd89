"""From features as stored to features as a network takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.findings import Array
from sparkdl.data.moments import Moments

__all__ = ["Preprocess"]


@dataclass(frozen=True, eq=False)
class Preprocess:
    """x -> x * scale, and (x * scale - mean) / std where there are a mean and a std, of a sample's shape or (C,).

    dtype is that of the result. Integers and float64 that do not fit it are computed in float64 first.
    """

    dtype: str
    scale: float = 1.0
    mean: Array | None = None
    std: Array | None = None

    @classmethod
    def fit(cls, dtype: str, scale: float, moments: Moments, shape: tuple[int, ...]) -> Preprocess:
        """Standardise by the moments of the unscaled training rows; a constant feature is divided by 1."""
        mean, std = moments.mean_std()
        std = abs(scale) * std
        return cls(dtype, scale, (scale * mean).reshape(shape), np.where(std > 0, std, 1.0).reshape(shape))

    def __call__(self, x: Array) -> Array:
        """x (N, *shape) of any numeric dtype -> (N, *shape) of self.dtype; x is unchanged and may be returned."""
        work = np.result_type(x.dtype, self.dtype)
        if self.scale != 1.0:
            x = np.multiply(x, work.type(self.scale), dtype=work)
        if self.mean is not None and self.std is not None:
            x = np.subtract(x, self.mean.astype(work, copy=False), dtype=work)
            x /= self.std.astype(work, copy=False)
        return x.astype(self.dtype, copy=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats exactly."""
        arrays = {"mean": self.mean, "std": self.std}
        shape = None if self.mean is None else list(self.mean.shape)
        return {"dtype": self.dtype, "scale": self.scale, "shape": shape} | {
            name: None if a is None else a.ravel().tolist() for name, a in arrays.items()
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preprocess:
        mean, std = (
            None if data[name] is None else np.array(data[name], np.float64).reshape(data["shape"])
            for name in ("mean", "std")
        )
        return cls(data["dtype"], data["scale"], mean, std)
