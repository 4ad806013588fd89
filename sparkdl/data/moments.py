"""Mean and deviation of features from exact sums: the same bits whatever the order and grouping of the rows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from sparkdl.data.findings import Array
from sparkdl.errors import DataError

__all__ = ["ExactSum", "Moments"]

DIGIT = 30  # bits of one digit; int64 then holds the sum of 2^33 of them
CHUNK = 1 << 16  # elements handled at once: stays in a core's cache
SPLITTER = 2.0**27 + 1  # Veltkamp's: halves a float64's 53 bits


class ExactSum:
    """Sums of float64 columns without rounding: v = sum_k q_k 2^(DIGIT k) with integers q_k, and each q_k adds up."""

    def __init__(self) -> None:
        self.digits: dict[int, Array] = {}  # k -> (D,) int64

    def add(self, v: Array) -> None:
        """Add the rows of v (N, D) float64, which is overwritten. v must be finite."""
        while (top := np.abs(v).max(initial=0.0)) > 0.0:
            k = (int(np.frexp(top)[1]) - 1) // DIGIT  # top >= 2^(DIGIT k), so that some q is not 0
            q = np.rint(_shift(v, -DIGIT * k))
            v -= _shift(q, DIGIT * k)  # exact: both are multiples of v's last place
            self._add_digit(k, q.sum(axis=0).astype(np.int64))  # exact: below 2^53 for fewer than 2^22 rows

    def merge(self, other: ExactSum) -> None:
        """Add the other sum, in place."""
        for k, digit in other.digits.items():
            self._add_digit(k, digit)

    def total(self, columns: int) -> tuple[Array, int]:
        """(s (D,) of Python integers, e): the sums are s * 2^e."""
        low = min(self.digits, default=0)
        s = np.zeros(columns, object)
        for k, digit in self.digits.items():
            s = s + digit.astype(object) * (1 << DIGIT * (k - low))
        return s, DIGIT * low

    def to_json(self) -> dict[str, Any]:
        return {str(k): digit.tolist() for k, digit in self.digits.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ExactSum:
        new = cls()
        new.digits = {int(k): np.array(digit, np.int64) for k, digit in data.items()}
        return new

    def _add_digit(self, k: int, digit: Array) -> None:
        self.digits[k] = self.digits[k] + digit if k in self.digits else digit


class Moments:
    """Count, sum and sum of squares of each of D features over rows that arrive in any order; NaN is left out."""

    def __init__(self, columns: int) -> None:
        self.count = np.zeros(columns, np.int64)
        self.sum, self.square = ExactSum(), ExactSum()

    def add(self, x: Array) -> None:
        """Add the rows of x (N, D), of any numeric dtype.

        Errors: DataError for values whose squares leave the range of float64.
        """
        rows = max(1, CHUNK // max(1, x.shape[1]))
        for at in range(0, len(x), rows):
            v = x[at : at + rows].astype(np.float64)
            finite = np.isfinite(v)
            self.count += finite.sum(axis=0)
            v[~finite] = 0.0
            square, rest = _square(v)
            self.sum.add(v)
            self.square.add(square)
            self.square.add(rest)

    def merge(self, other: Moments) -> None:
        """Add the other's rows, in place."""
        self.count += other.count
        self.sum.merge(other.sum)
        self.square.merge(other.square)

    def mean_std(self) -> tuple[Array, Array]:
        """Mean (D,) and population deviation (D,), float64: rounded once, from exact sums."""
        (s, low), (q, low2) = self.sum.total(len(self.count)), self.square.total(len(self.count))
        one, two = Fraction(2) ** low, Fraction(2) ** low2
        mean, std = np.zeros(len(s)), np.zeros(len(s))
        for j, n in enumerate(map(int, self.count)):
            if n:
                mean[j] = float(m := s[j] * one / n)
                std[j] = float(q[j] * two / n - m * m) ** 0.5
        return mean, std

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count.tolist(), "sum": self.sum.to_json(), "square": self.square.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Moments:
        new = cls(0)
        new.count = np.array(data["count"], np.int64)
        new.sum, new.square = ExactSum.from_json(data["sum"]), ExactSum.from_json(data["square"])
        return new


def _shift(v: Array, bits: int) -> Array:
    """v * 2^bits, exactly."""
    return v * 2.0**bits if abs(bits) < 1000 else np.ldexp(v, bits)  # ldexp is several times slower


def _square(v: Array) -> tuple[Array, Array]:
    """v*v exactly as the sum of two float64 arrays (Dekker 1971)."""
    with np.errstate(over="ignore", invalid="ignore"):
        high = v * SPLITTER
        high -= high - v
        low = v - high
        square = v * v
        rest = ((high * high - square) + 2.0 * high * low) + low * low
    if not np.isfinite(rest).all():
        raise DataError(f"data.standardize needs features below 1e150; got {np.abs(v).max():g}. Rescale the column.")
    return square, rest
