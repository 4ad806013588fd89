"""Hyper-parameters that carry their own limits: `momentum: float = field(default=0.0, metadata=FRACTION)`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

__all__ = ["COUNT", "FRACTION", "NATURAL", "NON_NEGATIVE", "OPEN_UNIT", "POSITIVE", "UNIT", "Interval", "check_fields"]


@dataclass(frozen=True)
class Interval:
    """The numbers, or with `integer` the integers, between low and high; `ends` says which ends belong to it."""

    low: float
    high: float
    ends: str = "[]"
    integer: bool = False

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.integer else Real):
            return False
        x = float(value)
        above = x >= self.low if self.ends[0] == "[" else x > self.low
        below = x <= self.high if self.ends[1] == "]" else x < self.high
        return above and below

    def __str__(self) -> str:
        kind = "an integer" if self.integer else "a number"
        return f"{kind} in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"


POSITIVE: Mapping[str, Any] = {"within": Interval(0, math.inf, "()")}
NON_NEGATIVE: Mapping[str, Any] = {"within": Interval(0, math.inf, "[)")}
FRACTION: Mapping[str, Any] = {"within": Interval(0, 1, "[)")}
OPEN_UNIT: Mapping[str, Any] = {"within": Interval(0, 1, "()")}
UNIT: Mapping[str, Any] = {"within": Interval(0, 1, "[]")}
NATURAL: Mapping[str, Any] = {"within": Interval(0, math.inf, "[)", integer=True)}
COUNT: Mapping[str, Any] = {"within": Interval(1, math.inf, "[)", integer=True)}


def check_fields(obj: Any) -> None:
    """Hold each field of a dataclass against the interval in its metadata; None passes where it is the default.

    Accepted values become plain Python numbers, in place: a NumPy scalar would promote float32 arrays to float64.
    Raises ValueError naming class, field, value and interval.
    """
    for f in fields(obj):
        within, value = f.metadata.get("within"), getattr(obj, f.name)
        if within is None or (value is None and f.default is None):
            continue
        if value not in within:
            raise ValueError(f"{type(obj).__name__}({f.name}={value!r}): {f.name} must be {within}.")
        object.__setattr__(obj, f.name, int(value) if within.integer else float(value))
