"""Peers on Spark: the tasks of one barrier stage, which all run at the same time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, BarrierTaskContext, InheritableThread, SparkContext

from sparkdl.backends.base import Group, Place, Seat
from sparkdl.backends.meeting import meet
from sparkdl.backends.spark_errors import own_error
from sparkdl.comm import AllGather, Transport, TransportOptions
from sparkdl.data import Handle

__all__ = ["SparkPeers"]


class SparkPeers:
    """A barrier job that runs in a thread of its own, so that the driver's main thread stays free.

    The tasks run over the RDD of handles. Its cached blocks send each to its shard; where one is lost, its lineage
    writes the shard anew within the stage.
    """

    def __init__(self, context: SparkContext, rdd: RDD[Handle], fn: Callable[[Seat], None], driver_host: str) -> None:
        self._context, self._group = context, f"sparkdl-{uuid.uuid4().hex}"
        self._job = rdd.barrier().mapPartitions(partial(_sit, fn, driver_host))
        self._error: Exception | None = None
        self._thread = InheritableThread(target=self._run, name="sparkdl-peers")
        self._thread.daemon = True
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise own_error(self._error) from self._error

    def cancel(self) -> None:
        with suppress(Py4JError, OSError):  # the JVM has ended, and the job with it
            self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "sparkdl: training", interruptOnCancel=True)
            self._job.collect()
        except Exception as e:
            self._error = e


@dataclass(frozen=True)
class _SparkSeat:
    context: BarrierTaskContext
    handles: Iterable[Handle]
    driver_host: str

    @property
    def rank(self) -> int:
        return self.context.partitionId()

    @property
    def size(self) -> int:
        return len(self.context.getTaskInfos())

    @cached_property
    def handle(self) -> Handle:
        (handle,) = self.handles  # read to its end: a task that leaves input unread costs its worker
        assert handle.part == self.rank, (handle.part, self.rank)
        return handle

    def connect(
        self, group: Group, options: TransportOptions, allgather: AllGather, place: Place | None = None
    ) -> Transport:
        """Spark's own allGather would do as well, but takes a second each time."""
        return meet(self, group, options, allgather, place, self.driver_host)


def _sit(fn: Callable[[Seat], None], driver_host: str, handles: Iterable[Handle]) -> Iterator[Any]:
    fn(_SparkSeat(BarrierTaskContext.get(), handles, driver_host))
    return iter(())
