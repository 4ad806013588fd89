"""Gradients that leave in pieces, the last layers' first, while the backward pass still computes those before.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (arXiv:2006.15704), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from sparkdl.nn import Array
from sparkdl.nn.layout import Layout

__all__ = ["Buckets", "Courier", "bucket_bounds"]


def bucket_bounds(layout: Layout, itemsize: int, bucket_bytes: int) -> tuple[int, ...]:
    """Where the trainable entries are cut, descending from num_trainable to 0: each bucket ends at a parameter.

    A bucket takes parameters from the end until it has bucket_bytes; 0 makes one of all.
    """
    bounds = [layout.num_trainable]
    if bucket_bytes:
        for segment in reversed(layout.trainable_segments):
            if (bounds[-1] - segment.start) * itemsize >= bucket_bytes:
                bounds.append(segment.start)
    if bounds[-1] != 0 or len(bounds) == 1:
        bounds.append(0)
    return tuple(bounds)


class Courier:
    """Carries out reductions one after the other in a thread of its own, in the order in which they were handed over.

    `interrupt` ends the one under way when the courier is dismissed before its time.
    """

    def __init__(self, reduce: Callable[[Array], None], interrupt: Callable[[str], None]) -> None:
        self._reduce, self._interrupt = reduce, interrupt
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-courier")
        self._last: Future[None] | None = None

    def send(self, vec: Array) -> Future[None]:
        """Hand over vec, to be reduced in place."""
        self._last = self._pool.submit(self._reduce, vec)
        return self._last

    def close(self) -> None:
        """End the thread; whatever it still does is interrupted."""
        if self._last is not None and not self._last.done():
            self._interrupt("the step failed while its gradients were under way")
        self._pool.shutdown(wait=True, cancel_futures=True)


class Buckets:
    """One step vector, reduced bucket by bucket. `ready` hears from the backward pass; `finish` sends what is left.

    All ranks cut alike and send in the same order, whatever order their layers report in. The first parameters leave
    last, together with the buffers and the tail: one message fewer.
    """

    def __init__(self, layout: Layout, vec: Array, bounds: Sequence[int], courier: Courier) -> None:
        self._vec, self._bounds, self._courier = vec, tuple(bounds), courier
        self._starts = {s.name: s.start for s in layout.trainable_segments}
        self._owned: dict[str, list[str]] = {}
        self._waiting: list[set[str]] = []
        self._sent: list[Future[None]] = []
        self._rest = np.empty(bounds[-2] + vec.size - bounds[0], vec.dtype)
        self.begin()

    def begin(self) -> None:
        """A new step: nothing is ready."""
        cuts = self._bounds[:-1]
        self._waiting = [set() for _ in cuts]
        for name, start in self._starts.items():
            self._waiting[sum(start < cut for cut in cuts) - 1].add(name)
        self._sent = []

    def ready(self, path: str) -> None:
        """The gradients of the layer at path are complete; send the buckets that this completes."""
        if path not in self._owned:
            self._owned[path] = [name for name in self._starts if not path or name.startswith(f"{path}/")]
        for names in self._waiting:
            names.difference_update(self._owned[path])
        while len(self._sent) < len(self._bounds) - 2 and not self._waiting[len(self._sent)]:
            self._send_next()

    def finish(self) -> None:
        """Send the buckets that are left, the rest last, and return when all have been reduced. Errors: CommError."""
        while len(self._sent) < len(self._bounds) - 2:
            self._send_next()
        vec, rest, first = self._vec, self._rest, self._bounds[-2]
        np.concatenate((vec[:first], vec[self._bounds[0] :]), out=rest)
        self._sent.append(self._courier.send(rest))
        for future in self._sent:
            future.result()
        vec[:first], vec[self._bounds[0] :] = rest[:first], rest[first:]

    def _send_next(self) -> None:
        at = len(self._sent)
        self._sent.append(self._courier.send(self._vec[self._bounds[at + 1] : self._bounds[at]]))
