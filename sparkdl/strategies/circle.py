"""Further circles of ranks, beside that in which all of them meet: for servers, which a thread of their own drives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from sparkdl.backends.base import Group, Place, Seat
from sparkdl.comm import AllGather, Transport, TransportOptions

__all__ = ["Meet", "meeting"]

Meet = Callable[[str, Sequence[Place]], list[Transport]]
"""Takes places, at least one, in the circle of a name; all ranks call it together. The caller closes the transports."""


def meeting(seat: Seat, group: Group, options: TransportOptions, allgather: AllGather) -> Meet:
    """How this rank takes places in further circles. Errors: CommError."""

    def meet(name: str, places: Sequence[Place]) -> list[Transport]:
        circle, joint = group._replace(job_id=f"{group.job_id}/{name}"), _Joint(allgather, len(places))
        with ThreadPoolExecutor(len(places), thread_name_prefix="sparkdl-meeting") as pool:
            found = [pool.submit(seat.connect, circle, options, joint, place) for place in places]
            wait(found)
        failed = [e for future in found if (e := future.exception()) is not None]
        if failed:
            for future in found:
                if future.exception() is None:
                    future.result().close()
            raise next((e for e in failed if not isinstance(e, threading.BrokenBarrierError)), failed[0])
        return [future.result() for future in found]

    return meet


class _Joint:
    """An allgather for `count` threads of each process, by one allgather of the processes."""

    def __init__(self, allgather: AllGather, count: int) -> None:
        self._allgather = allgather
        self._given: list[str] = []
        self._found: list[str] = []
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(count, action=self._exchange)

    def __call__(self, text: str) -> list[str]:
        with self._lock:
            self._given.append(text)
        self._barrier.wait()
        return self._found  # the next exchange waits for this thread too

    def _exchange(self) -> None:
        given, self._given = self._given, []
        self._found = [text for texts in self._allgather(json.dumps(given)) for text in json.loads(texts)]
