"""Which rows form which minibatch: a function of the number of rows, the batch size and the seed, and of nothing else.

Rows are numbered 0..N-1 in the order of their hashes, a worker's shard being a range of numbers. The numbers are cut
into V *strata* of equal length; an epoch shuffles each stratum by itself and then deals one row of each stratum in
turn, so that a range of numbers has its share of every minibatch. The strata take turns in bit-reversed order, which
spreads any range evenly over a round (van der Corput 1935).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import ConfigError, DataError

__all__ = ["Array", "Plan"]

Array = np.ndarray[Any, np.dtype[Any]]
MAX_STRATA = 256
SHUFFLE = 2  # purpose of a generator in (seed, purpose, epoch, stratum)


@dataclass(frozen=True)
class Plan:
    """The minibatches of every epoch over `rows` rows; any number of workers sees the same ones.

    Every minibatch has batch_size rows, the last of an epoch what is left. steps_per_epoch ends epochs early; None
    goes through all rows.

    Errors: DataError without rows; ConfigError for steps_per_epoch beyond what the rows yield.
    """

    rows: int
    batch_size: int
    seed: int
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise DataError("there are no training rows. Check the filter, the split and data.handle_invalid.")
        if self.batch_size < 1:
            raise ConfigError(f"training.batch_size is at least 1; got {self.batch_size}.")
        if self.steps_per_epoch is not None and not 1 <= self.steps_per_epoch <= self._available:
            raise ConfigError(
                f"training.steps_per_epoch lies in [1, {self._available}] with {self.rows:,} rows in minibatches of "
                f"{self.batch_size:,}; got {self.steps_per_epoch}. Leave it out to use all rows."
            )

    @property
    def steps(self) -> int:
        """Minibatches in an epoch."""
        return self._available if self.steps_per_epoch is None else self.steps_per_epoch

    def batches(self, start: int, stop: int, epoch: int) -> Sequence[Array]:
        """For each step of the epoch the rows in [start, stop), as indices from start; empty where it has none.

        Memory: proportional to stop - start and to one stratum.
        """
        position, row = self._epoch(start, stop, epoch)
        order = np.argsort(position)
        bounds = np.searchsorted(position[order], self.batch_size * np.arange(1, self.steps + 1))
        return np.split(row[order], bounds)[: self.steps]

    @property
    def _available(self) -> int:
        return -(-self.rows // self.batch_size)

    def _epoch(self, start: int, stop: int, epoch: int) -> tuple[Array, Array]:
        """(places in the epoch, indices from start) of the rows in [start, stop), stratum by stratum."""
        n = self.rows
        strata = 1 << (min(self.batch_size, n, MAX_STRATA).bit_length() - 1)
        edges = np.arange(strata + 1) * n // strata
        size = np.diff(edges)  # differs by at most one between strata
        turn = _bit_reversed(strata)
        full = n // strata  # rounds in which every stratum deals a row
        longer = np.zeros(strata, np.int64)
        longer[turn] = size > full
        last_turn = (np.cumsum(longer) - longer)[turn]  # of the strata that have one more row
        places, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for q in np.flatnonzero((edges[:-1] < stop) & (edges[1:] > start)).tolist():
            row = edges[q] - start + np.random.default_rng((self.seed, SHUFFLE, epoch, q)).permutation(size[q])
            place = np.arange(size[q]) * strata + turn[q]
            place[full:] = full * strata + last_turn[q]
            own = (row >= 0) & (row < stop - start)
            places.append(place[own])
            rows.append(row[own])
        return np.concatenate(places), np.concatenate(rows)


def _bit_reversed(n: int) -> Array:
    """0..n-1, n a power of two, each with the order of its bits reversed: 0, 2, 1, 3 for n = 4."""
    order = np.zeros(1, np.int64)
    while len(order) < n:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order
