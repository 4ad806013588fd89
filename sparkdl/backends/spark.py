"""Spark as the backend: broadcasts carry values out, one job a call brings a sum back."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkdl.backends.base import Remote, Seat, Shards, Slots
from sparkdl.backends.spark_errors import is_missing_shard, own_error, readable_errors
from sparkdl.backends.spark_files import files_for
from sparkdl.backends.spark_peers import SparkPeers
from sparkdl.backends.spark_shared import share
from sparkdl.data import Handle
from sparkdl.data.spark import SparkShards, settle
from sparkdl.train.files import Files

__all__ = ["SparkBackend", "tree_sum"]

log = logging.getLogger(__name__)

T = TypeVar("T")

REBUILDS = 2  # times that lost shards are written anew within one job


class SparkBackend:
    """Jobs over the persisted RDD of shard handles of a fit."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    @property
    def max_result_bytes(self) -> int | None:
        """`spark.driver.maxResultSize` in bytes; None where it is 0, which means no bound."""
        jvm: Any = self._context._jvm
        text = self._context.getConf().get("spark.driver.maxResultSize", "1g")
        return int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(text)) or None

    def files(self, path: str) -> Files:
        """Plain files where the path is on the driver's disk, Hadoop's file systems elsewhere."""
        return files_for(path, self._spark)

    @contextmanager
    def share(self, value: T) -> Iterator[Remote[T]]:
        """A Spark broadcast that is destroyed, its files with it, when the context closes.

        Where the JVM has ended, as by Ctrl-C in a terminal, there is nothing left to destroy, and nothing to add to
        whatever is being raised.
        """
        shared = share(self._context, value)
        try:
            yield shared
        finally:
            try:
                shared.destroy()
            except (Py4JError, OSError) as e:
                log.info("a broadcast has not been destroyed: %s", e)

    def tree_aggregate(self, shards: Shards, fn: Callable[[Handle], T], plus: Callable[[T, T], T], depth: int) -> T:
        """As `Backend.tree_aggregate`."""
        assert isinstance(shards, SparkShards)
        for rebuilds_left in reversed(range(REBUILDS + 1)):
            try:
                return tree_sum(shards.rdd.map(functools.partial(_settled, fn)), plus, depth)
            except (Py4JError, PySparkException) as e:
                if not (rebuilds_left and is_missing_shard(e)):
                    raise own_error(e) from e
                self.heal(shards)
        raise AssertionError("unreachable")

    @property
    def driver_host(self) -> str:
        """`spark.driver.host`, which executors reach already."""
        return self._context.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"

    def slots(self) -> Slots:
        """Tasks that may run at once under the default resource profile."""
        context: Any = self._context._jsc.sc()  # no public way to this figure, which the scheduler's own check uses
        count = context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile())
        dynamic = str(self._context.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
        return Slots(int(count), dynamic)

    def heal(self, shards: Shards) -> None:
        """As `Backend.heal`."""
        assert isinstance(shards, SparkShards)
        log.warning("a shard is not where it was written; writing all of them anew")
        with readable_errors():
            shards.rebuild()

    def spread(self, shards: Shards, parts: int) -> SparkShards:
        """As `Backend.spread`: the data are read again."""
        assert isinstance(shards, SparkShards)
        with readable_errors():
            return shards.over(parts)

    def run_peers(self, shards: Shards, fn: Callable[[Seat], None]) -> SparkPeers:
        """As `Backend.run_peers`: one barrier stage."""
        assert isinstance(shards, SparkShards)
        return SparkPeers(self._context, shards.rdd, fn, self.driver_host)


def tree_sum(values: RDD[T], plus: Callable[[T, T], T], depth: int) -> T:
    """The sum of an RDD that holds one value a partition, through depth - 1 shuffles and the driver.

    Differs from `RDD.treeAggregate` in one point: every node adds its inputs in the order of their partitions, not of
    their arrival, so that floating-point sums come out the same every time.
    """
    count = values.getNumPartitions()
    fan_in = max(2, math.ceil(count ** (1 / depth)))
    keyed: RDD[Any] = values.mapPartitionsWithIndex(_with_index)
    while count > fan_in:
        count = math.ceil(count / fan_in)
        keyed = keyed.map(functools.partial(_to_node, fan_in)).partitionBy(count, int)
        keyed = keyed.mapPartitionsWithIndex(functools.partial(_add_node, plus))
    parts: list[tuple[int, T]] = sorted(keyed.collect(), key=_index)
    return functools.reduce(plus, (value for _, value in parts))


def _settled(fn: Callable[[Handle], T], handle: Handle) -> T:
    """fn's value, and no garbage collection over what the process has loaded for it."""
    value = fn(handle)
    settle()
    return value


def _index(item: tuple[int, Any]) -> int:
    return item[0]


def _with_index(index: int, values: Iterable[T]) -> Iterator[tuple[int, T]]:
    for value in values:
        yield index, value


def _to_node(fan_in: int, item: tuple[int, T]) -> tuple[int, tuple[int, T]]:
    return item[0] // fan_in, item


def _add_node(plus: Callable[[T, T], T], node: int, items: Iterable[tuple[int, tuple[int, T]]]) -> Iterator[Any]:
    ordered = sorted((item for _, item in items), key=_index)
    yield node, functools.reduce(plus, (value for _, value in ordered))
