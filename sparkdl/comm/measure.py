"""Times what the chooser needs on the transport at hand: alpha, beta and gamma, and short races between algorithms.

All ranks measure at the same time, so that contention for cores and links shows, and take the slowest rank's figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from sparkdl.comm.collectives import Algorithm, allreduce, barrier
from sparkdl.comm.cost import Link
from sparkdl.comm.transport.base import Array, Transport

__all__ = ["Entrant", "measure_link", "race", "save_links"]

PROBE_BYTES = (8, 1 << 16, 1 << 20)
QUICK_S = 2e-3  # a link that moves the middle probe in this time is worth the long one
RACE_BYTES = tuple(1 << k for k in (9, 12, 15, 18, 20, 22))
ROUNDS = 3, 25  # at least and at most, of each race


class Entrant(NamedTuple):
    """An algorithm with its segment, and what the model says it takes."""

    name: str
    segment_bytes: int
    predicted_s: float


def measure_link(t: Transport, rings: Sequence[Sequence[int]]) -> Link:
    """alpha, beta, gamma while the ranks of each ring all send to their right and receive from their left.

    alpha is the larger of that exchange's and of a ping-pong's between neighbours; ranks outside the rings look on.
    """
    ring = next((r for r in rings if t.rank in r and len(r) > 1), ())
    small, middle, large = PROBE_BYTES
    alpha = max(_shift(t, ring, small, 12), _pingpong(t, ring, small, 12))
    alpha, short = _slowest(t, [alpha, _shift(t, ring, middle, 3)])
    nbytes = large if short < QUICK_S else middle
    moved, summed = _slowest(t, [_shift(t, ring, nbytes, 5), _add(nbytes, 3)])
    return Link(max(alpha, 1e-7), max(moved - alpha, 0.1 * moved, 1e-9) / nbytes, summed / nbytes)


def save_links(path: str | Path, between: Link, within: Link | None = None) -> None:
    """Write measured links, between hosts and within one, as `simulate.link_file` reads them: TOML, or JSON by name."""
    tables = {
        name: {"alpha_us": link.alpha * 1e6, "gbit_s": 8e-9 / link.beta, "gamma": link.gamma}
        for name, link in (("between", between), ("within", within))
        if link is not None
    }
    if str(path).endswith(".json"):
        text = json.dumps(tables, indent=1)
    else:
        rows = (
            f"[{name}]\n" + "".join(f"{key} = {value:.6g}\n" for key, value in t.items()) for name, t in tables.items()
        )
        text = "\n".join(rows)
    Path(path).write_text(text, encoding="utf-8")


def race(
    t: Transport,
    known: Mapping[str, Algorithm],
    entrants: Callable[[int], Sequence[Entrant]],
    budget_s: float,
) -> dict[str, dict[int, float]]:
    """Seconds of the entrants at growing lengths, as far as `budget_s` goes: {name: {bytes: seconds}}."""
    start, slowdown = time.perf_counter(), 1.0
    times: dict[str, dict[int, float]] = {}
    elapsed = 0.0
    for i, nbytes in enumerate(RACE_BYTES):
        field = entrants(nbytes)
        # Every figure this rests on has been agreed, so that all ranks run as many rounds and stop at the same length.
        round_s = slowdown * sum(e.predicted_s for e in field)
        share_s = (budget_s - elapsed) / (len(RACE_BYTES) - i)
        rounds = min(ROUNDS[1], max(ROUNDS[0], int(share_s / round_s) - 1))
        if elapsed + (rounds + 1) * round_s > budget_s:
            break
        vec = np.zeros(nbytes // 4, np.float32)
        laps = [[_lap(t, known[e.name], e, vec) for e in field] for _ in range(rounds + 1)]
        *flat, elapsed = _slowest(t, [*(lap for row in laps[1:] for lap in row), time.perf_counter() - start])
        for i, entrant in enumerate(field):
            times.setdefault(entrant.name, {})[nbytes] = median(flat[i :: len(field)])
        slowdown = max(times[e.name][nbytes] / e.predicted_s for e in field)
    return times


def _lap(t: Transport, algorithm: Algorithm, entrant: Entrant, vec: Array) -> float:
    barrier(t)
    start = time.perf_counter()
    allreduce(t, vec, "sum", algorithm, entrant.segment_bytes)
    return time.perf_counter() - start


def _slowest(t: Transport, seconds: Sequence[float]) -> list[float]:
    """The largest of all ranks' figures, found on rank 0 and told to all."""
    figures = np.array(seconds)
    allreduce(t, figures, "max", "tree")
    return [float(x) for x in figures]


def _shift(t: Transport, ring: Sequence[int], nbytes: int, times: int) -> float:
    """Median seconds of one exchange around the ring, in which all links are busy at once."""
    out, into = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    barrier(t)
    if not ring:
        return 0.0
    place = ring.index(t.rank)
    right, left = ring[(place + 1) % len(ring)], ring[place - 1]

    def exchange() -> None:
        send = t.isend(right, 0, out)
        t.recv(left, 0, into)
        send.wait()

    return _timed(exchange, times)


def _pingpong(t: Transport, ring: Sequence[int], nbytes: int, times: int) -> float:
    """Median seconds of one way between neighbours; the last of an odd number looks on."""
    ball = np.zeros(nbytes, np.uint8)
    barrier(t)
    place = ring.index(t.rank) if ring else 0
    if (place ^ 1) >= len(ring):
        return 0.0
    peer = ring[place ^ 1]

    def rally() -> None:
        if place % 2:
            t.recv(peer, 0, ball)
        t.isend(peer, 0, ball).wait()
        if not place % 2:
            t.recv(peer, 0, ball)

    return _timed(rally, times) / 2


def _add(nbytes: int, times: int) -> float:
    a, b = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    return _timed(lambda: np.add(a, b, out=a), times)


def _timed(action: Callable[[], object], times: int) -> float:
    """Median seconds of `action`, after one run that does not count."""
    laps = []
    for _ in range(times + 1):
        start = time.perf_counter()
        action()
        laps.append(time.perf_counter() - start)
    return median(laps[1:])
