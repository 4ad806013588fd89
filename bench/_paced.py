"""Workers whose minibatches take a given time, however many of them share a core, and that count what they send."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from sparkdl.comm.transport.mesh import Mesh
from sparkdl.train.gradient import ShardWorker

__all__ = ["Paced", "paced", "sent_bytes"]


@dataclass(frozen=True)
class Paced:
    """`ProcessBackend`'s first call in the process of a rank; pickles.

    Every gradient lasts `pace_s[rank]` seconds: it sleeps one half of what it lacks before the pass and one half after
    it, so that what can overlap with the rest of a pass finds as much of it as on a slower machine. `enter` puts the
    process on its host. What the rank has sent to others since its first gradient, trials of algorithms thus left out,
    is written to a file of its own in `folder` as it ends.
    """

    pace_s: tuple[float, ...]
    folder: str
    enter: Callable[[int], None] | None = None

    def __call__(self, rank: int) -> None:
        if self.enter is not None:
            self.enter(rank)
        begin = _count_into(Path(self.folder) / str(rank))
        ShardWorker.gradient = _slowed(ShardWorker.gradient, self.pace_s[rank], begin)


@contextmanager
def paced(seconds: float) -> Iterator[None]:
    """The same pace for the threads of this process."""
    plain = ShardWorker.gradient
    ShardWorker.gradient = _slowed(plain, seconds)
    try:
        yield
    finally:
        ShardWorker.gradient = plain


def sent_bytes(folder: str) -> float | None:
    """What a rank has sent, in the mean over the ranks; None where nothing was counted."""
    counts = [int(path.read_text()) for path in Path(folder).iterdir()]
    return sum(counts) / len(counts) if counts else None


def _slowed(gradient: Any, seconds: float, begin: Callable[[], None] | None = None) -> Any:
    spent = [0.0]  # what the last pass took by itself
    begun = [] if begin is None else [begin]

    def slowed(*args: Any, **more: Any) -> Any:
        if begun:
            begun.pop()()
        started = time.perf_counter()
        time.sleep(max(0.0, seconds - spent[0]) / 2)
        began = time.perf_counter()
        found = gradient(*args, **more)
        ended = time.perf_counter()
        spent[0] = ended - began
        time.sleep(max(0.0, started + seconds - ended))
        return found

    return slowed


def _count_into(path: Path) -> Callable[[], None]:
    """Count the bytes of messages into a file; returns what begins the count anew."""
    isend, sent = Mesh.isend, [0]

    def counting(self: Mesh, peer: int, tag: int, buf: Any) -> Any:
        sent[0] += buf.nbytes
        return isend(self, peer, tag, buf)

    Mesh.isend = counting
    Finalize(None, lambda: path.write_text(str(sent[0])), exitpriority=0)
    return partial(sent.__setitem__, 0, 0)
