"""Workers of one host that update the same weights where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.simulate.setting import Mode, Outcome, Setting

__all__ = ["SharedMemory"]


@dataclass(frozen=True)
class SharedMemory(Mode):
    """Nobody sends and nobody waits; an update is stale by what the others have written since its weights were read."""

    def run(self, setting: Setting) -> Outcome:
        ends = setting.draw(setting.steps).cumsum(axis=0)
        starts = np.vstack([np.zeros(setting.cluster.workers), ends[:-1]])
        written = np.sort(ends, axis=None)
        behind = np.searchsorted(written, ends) - np.searchsorted(written, starts, side="right")
        # Until the first worker is done with all of its steps, all are at work.
        counted = behind[ends <= ends[-1].min()]
        rate = float((setting.steps / ends[-1]).sum())
        return Outcome(rate, 1.0, 0.0, counted, 0.0)
