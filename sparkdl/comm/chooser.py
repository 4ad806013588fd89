"""Chooses the allreduce algorithm for each length: by the cost model with measured parameters, corrected by races.

The model alone would do on a network; on few cores shared by many ranks it does not, so the cheapest algorithms are
also raced at a few lengths, and judged by whether they fell behind what the model promised or ran ahead of it.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from sparkdl.comm.collectives import ALGORITHMS, SEGMENT_BYTES, Algorithm, Reduction, allreduce, broadcast
from sparkdl.comm.cost import COSTS, Link, best_segment, hierarchical_cost, shared_cost
from sparkdl.comm.measure import Entrant, measure_link, race
from sparkdl.comm.schedules import Hierarchical
from sparkdl.comm.shared import arenas, in_butterfly_order, is_short, zeros
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport.base import Array, Transport

__all__ = ["AllReducer", "Choice", "Links", "algorithms", "entrants", "runners", "tabulate"]

logger = logging.getLogger(__name__)

LENGTHS = tuple(1 << k for k in range(6, 31))  # bytes for which the table is made
FIELD = 3  # algorithms in a race
NOISE = 1.1  # a lead that may be chance
FAR = 16  # times the longest race: from there on it tells nothing
CROWDED = 1.5  # messages take that much longer when all ranks are busy: then the sum of their work counts, and
THRIFTY, THRIFTY_BYTES = ("star", "tree"), 1 << 20  # who has the least work races too, up to this length

BUTTERFLIES = ("recursive_doubling", "rabenseifner", "shared")  # the last where its arenas allow it

Times = Mapping[str, Mapping[int, float]]  # name -> bytes -> measured seconds


class Choice(NamedTuple):
    """Vectors of up to `limit` bytes take `algorithm`, with segments of `segment_bytes`."""

    limit: int
    algorithm: str
    segment_bytes: int


class Links(NamedTuple):
    """What was measured: over all ranks; between two while the others rest; within and between hosts of several.

    `arenas` tells who shares memory with whom, where anybody does; `names` which algorithms may be chosen, None: all.
    """

    flat: Link
    pair: Link | None = None
    within: Link | None = None
    between: Link | None = None
    arenas: Hosts | None = None
    names: frozenset[str] | None = None


def algorithms(hosts: Hosts) -> dict[str, Algorithm]:
    """The allreduce algorithms for ranks on these hosts, by name."""
    found = dict(ALGORITHMS)
    if hosts.nested:
        found["hierarchical"] = Hierarchical(hosts)
        if hosts.leaders > 1:
            found["hierarchical_sliced"] = Hierarchical(hosts, hosts.leaders)
    return found


def entrants(hosts: Hosts, links: Links, nbytes: int) -> list[Entrant]:
    """All algorithms with the model's time for a vector of `nbytes`, the cheapest first."""
    p = len(hosts.groups)
    found = []
    for name, cost in COSTS.items():
        segment = _segment(name, p, nbytes, links.flat)
        found.append(Entrant(name, segment, cost(p, nbytes, links.flat, segment)))
    if links.within and links.between:
        for name in algorithms(hosts).keys() - ALGORITHMS:
            leaders = 1 if name == "hierarchical" else hosts.leaders
            seconds = hierarchical_cost(hosts, nbytes, links.within, links.between, leaders)
            found.append(Entrant(name, SEGMENT_BYTES, seconds))
    if links.arenas:
        within, between = links.within or links.flat, links.between or links.flat
        seconds = shared_cost(links.arenas, nbytes, within, between, is_short(p, nbytes))
        found.append(Entrant("shared", SEGMENT_BYTES, seconds))
    allowed = [e for e in found if links.names is None or e.name in links.names]
    return sorted(allowed, key=lambda e: (e.predicted_s, e.name))


def runners(hosts: Hosts, links: Links, nbytes: int) -> list[Entrant]:
    """Who races: the cheapest by the model, which knows ports but not cores; on crowded cores, also who works least."""
    ranked = entrants(hosts, links, nbytes)
    flat, pair = links.flat, links.pair or links.flat
    crowded = flat.alpha > CROWDED * pair.alpha or flat.beta > CROWDED * pair.beta
    thrifty = THRIFTY if crowded and nbytes <= THRIFTY_BYTES else ()
    return [e for i, e in enumerate(ranked) if i < FIELD or e.name in thrifty]


def tabulate(hosts: Hosts, links: Links, times: Times) -> tuple[Choice, ...]:
    """The table of choices, limits ascending: the lowest predicted time wins, after what the races showed."""
    far = FAR * max((nbytes for raced in times.values() for nbytes in raced), default=0)
    handicaps = _handicaps(hosts, links, times, far)
    best = []
    for nbytes in LENGTHS:
        field = entrants(hosts, links, nbytes)
        factors = {name: float(np.interp(math.log(nbytes), *curve)) for name, curve in handicaps.items()}
        unknown = max([0.0, *factors.values()])  # what was never raced is trusted no more than the worst that was
        seconds = {e: e.predicted_s * math.exp(factors.get(e.name, unknown)) for e in field}
        first = min(field, key=seconds.__getitem__)
        # The ring loads all links evenly and never changes partners: without a race it is taken where it seems as good
        # as other ways through links.
        rings = [e for e in field if e.name == "ring" and nbytes >= far and seconds[e] <= NOISE * seconds[first]]
        best.append(rings[0] if rings and first.name != "shared" else first)
    rows = []
    for i, (nbytes, entrant) in enumerate(zip(LENGTHS, best, strict=True)):
        last = i + 1 == len(best)
        if last or (entrant.name, entrant.segment_bytes) != (best[i + 1].name, best[i + 1].segment_bytes):
            limit = 1 << 62 if last else int(nbytes * math.sqrt(2))
            rows.append(Choice(limit, entrant.name, entrant.segment_bytes))
    return tuple(rows)


def _handicaps(hosts: Hosts, links: Links, times: Times, far: int) -> dict[str, tuple[list[float], list[float]]]:
    """By how much each algorithm fell behind the model in its races, against the median of its rivals.

    {name: (log bytes, log factors)}, to be interpolated. Less than NOISE counts as nothing, and so does everything from
    `far` bytes on: there bytes decide, which the model knows.
    """
    ratios: dict[int, dict[str, float]] = {}
    for name, raced in times.items():
        for nbytes, seconds in raced.items():
            predicted = next(e.predicted_s for e in entrants(hosts, links, nbytes) if e.name == name)
            ratios.setdefault(nbytes, {})[name] = math.log(seconds / predicted)
    curves: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in times}
    for nbytes in sorted(ratios):
        usual = median(ratios[nbytes].values())
        for name, ratio in ratios[nbytes].items():
            behind = ratio - usual
            curves[name][0].append(math.log(nbytes))
            curves[name][1].append(behind if abs(behind) > math.log(NOISE) else 0.0)
    for sizes, factors in curves.values():
        sizes.append(math.log(far))
        factors.append(0.0)
    return curves


def _segment(name: str, p: int, nbytes: int, link: Link) -> int:
    """Bytes of a segment, a power of two, so that neighbouring lengths share a row of the table."""
    if name != "chain":
        return SEGMENT_BYTES
    return 1 << round(math.log2(best_segment(p, nbytes, link)))


class AllReducer:
    """Allreduce over one transport, by the algorithm that suits each length.

    Made on all ranks at once: unless `algorithm` names one, they measure, race for up to `budget_s` seconds, and all
    take rank 0's table. `hosts` are the host names in rank order, by default the transport's. With `reproducible` the
    choice is among those that add up in one order (see `schedules.halving`), so that the bits of a sum depend on the
    number of ranks alone. `table` is one that was found before. `links` are those that were measured, if they were.
    """

    def __init__(
        self,
        t: Transport,
        hosts: Sequence[Hashable] | None = None,
        algorithm: str | None = None,
        budget_s: float = 0.5,
        reproducible: bool = False,
        table: Sequence[Choice] | None = None,
    ) -> None:
        self.transport = t
        self.hosts = Hosts.of(t.hosts if hosts is None else hosts)
        if len(self.hosts.groups) != t.size:
            raise ValueError(f"hosts must name one host for each of {t.size} ranks; got {len(self.hosts.groups)}")
        self.schedules = algorithms(self.hosts)
        if algorithm is not None and algorithm not in self.schedules:
            known = ", ".join(self.schedules)
            raise ValueError(f"no allreduce algorithm is called {algorithm!r} on these hosts; there are {known}")
        self.links: Links | None = None
        self._free = algorithm is None
        if algorithm is not None or t.size == 1:
            self.table: tuple[Choice, ...] = (Choice(1 << 62, algorithm or "ring", SEGMENT_BYTES),)
        elif table is not None:
            self.table = tuple(table)
        else:
            self.table = self._tune(budget_s, reproducible)
        self._limits = [choice.limit for choice in self.table]

    def choice(self, nbytes: int) -> Choice:
        """The row of the table for a vector of `nbytes`."""
        return self.table[bisect_left(self._limits, nbytes)]

    def allreduce(self, vec: Array, op: Reduction = "sum", tag: int = 0) -> None:
        """Reduce vec (n,) over all ranks, in place.

        On all of them it is a part of what `zeros` made, the same part, or on none.
        """
        _, name, segment_bytes = self.choice(vec.nbytes)
        if self._free and not is_short(self.transport.size, vec.nbytes) and self._is_common(vec):
            name = "shared"
        allreduce(self.transport, vec, op, self.schedules[name], segment_bytes, tag)

    def zeros(self, count: int, dtype: DTypeLike = np.float32) -> Array:
        """A vector (count,) of zeros that `allreduce` reduces fastest: in memory that all ranks of the host can read.

        All ranks call it together, with the same arguments; for vectors that live long, since the transport keeps their
        memory. Where ranks share none it is an ordinary vector.
        """
        return zeros(self.transport, count, np.dtype(dtype))

    def _is_common(self, vec: Array) -> bool:
        """Whether all ranks can read vec where it lies: then nothing is faster."""
        arena = self.transport.arena
        return arena is not None and len(arena.members) == self.transport.size and arena.find(vec)[0] >= 0

    def _tune(self, budget_s: float, reproducible: bool) -> tuple[Choice, ...]:
        t, hosts = self.transport, self.hosts
        flat = measure_link(t, [range(t.size)])
        links = Links(flat, flat if t.size == 2 else measure_link(t, [range(2)]))
        if hosts.nested:
            heads = [ranks[0] for ranks in hosts.members]
            links = links._replace(within=measure_link(t, hosts.members), between=measure_link(t, [heads]))
        layout = arenas(t)
        if len(layout.members) < t.size:
            links = links._replace(arenas=layout)
        if reproducible:
            links = links._replace(names=frozenset(BUTTERFLIES if in_butterfly_order(layout) else BUTTERFLIES[:2]))
        self.links = links
        times = race(t, self.schedules, lambda nbytes: runners(hosts, links, nbytes), budget_s)
        table = self._agreed(tabulate(hosts, links, times))
        if t.rank == 0:
            _log(t.size, links, table)
        return table

    def _agreed(self, table: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Rank 0's table."""
        names = list(self.schedules)
        code = np.zeros((len(LENGTHS), 3), np.int64)
        code[: len(table)] = [(c.limit, names.index(c.algorithm), c.segment_bytes) for c in table]
        broadcast(self.transport, code.reshape(-1))
        return tuple(Choice(limit, names[index], segment) for limit, index, segment in code.tolist() if limit)


def _log(size: int, links: Links, table: tuple[Choice, ...]) -> None:
    for name, link in links._asdict().items():
        if isinstance(link, Link):
            figures = link.alpha * 1e6, 1e-9 / link.beta, 1e-9 / link.gamma
            logger.info("%d ranks, %s: alpha %.0f us, 1/beta %.2f GB/s, 1/gamma %.2f GB/s", size, name, *figures)
    for choice in table:
        limit = f"up to {choice.limit} bytes" if choice.limit < 1 << 62 else "beyond"
        logger.info("allreduce %s: %s, segments of %d bytes", limit, choice.algorithm, choice.segment_bytes)
