"""The weights put together again from the servers' parts and their copies, after a worker was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sparkdl.nn import Array
from sparkdl.strategies.peer import OWN
from sparkdl.strategies.reducing import MEMORY
from sparkdl.strategies.server_host import PART, WHOLE
from sparkdl.strategies.words import METRICS, Words
from sparkdl.train import Run

__all__ = ["AT", "RECENT", "restore"]

AT = "at"  # clock and step at a worker's last pull, and now
RECENT = "recent"  # a worker's figures since its last pull


class _Found(NamedTuple):
    """One part as some rank has it."""

    version: int
    now: Mapping[str, Array]
    before: Mapping[str, Array]


def restore(run: Run, words: Words, servers: int, whole_clocks: bool) -> bool:
    """Bring run to where the servers were; False, and nothing has changed, where a part is missing.

    With whole clocks all parts go back to the last clock that all of them have closed, which is one back at most, and
    the figures to what had been counted by then, but for those of the lost. Otherwise each part is at its newest.
    """
    parts = [_newest(words, k) for k in range(servers)]
    found = [part for part in parts if part is not None]
    if len(found) < servers:
        return False
    clock = min(part.version for part in found)
    if whole_clocks and any(part.version > clock + 1 for part in found):
        return False
    arrays = [part.before if whole_clocks and part.version > clock else part.now for part in found]
    begun = run.step - run.step_in_epoch
    words.count(run)
    if whole_clocks:
        run.step = _step_at(words, clock, run.step)
        run.step_in_epoch = run.step - begun
        run.epoch_metrics = _metrics_at(words, clock)
    run.params[...] = np.concatenate([a["params"] for a in arrays] + [arrays[0]["buffers"]])
    for name in run.opt_state:
        pieces = [a[f"slots/{name}"].reshape(-1) for a in arrays if f"slots/{name}" in a]
        if pieces:
            run.opt_state[name][...] = (pieces[0] if name in WHOLE else np.concatenate(pieces)).reshape(
                run.opt_state[name].shape
            )
    for name in words.names():
        if name.startswith((MEMORY, "opt/")):
            run.strategy_state[f"{OWN}{name}"] = words.rows(name, 0.0 if name.startswith(MEMORY) else 1.0)
    return True


def _newest(words: Words, k: int) -> _Found | None:
    """Part k as its server, or the one that keeps a copy, has it."""
    best: _Found | None = None
    for arrays in words.arrays.values():
        version = arrays.get(f"{PART}{k}/version")
        if version is not None and (best is None or version[0] > best.version):
            kinds = [
                {name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)}
                for start in (f"{PART}{k}/now/", f"{PART}{k}/before/")
            ]
            best = _Found(int(version[0]), *kinds)
    return best


def _step_at(words: Words, clock: int, otherwise: int) -> int:
    """run.step at the beginning of a clock."""
    for arrays in words.arrays.values():
        pulled, step, made, now = arrays[AT].tolist()
        if pulled == clock:
            return int(step)
        if made == clock:
            return int(now)
    return otherwise


def _metrics_at(words: Words, clock: int) -> Array:
    """The figures of the epoch at the beginning of a clock."""
    total = np.zeros_like(next(iter(words.arrays.values()))[METRICS])
    for arrays in words.arrays.values():
        total += arrays[METRICS]
        if arrays[AT][0] == clock:
            total -= arrays[RECENT]
    return total
