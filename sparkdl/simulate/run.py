"""What a mode of training would do on a cluster: how fast it runs, and how stale its updates are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparkdl.comm.compress import Segment
from sparkdl.simulate.cluster import Cluster, Compute
from sparkdl.simulate.setting import Mode, Setting

__all__ = ["Report", "Staleness", "Throughput", "simulate"]


class Throughput(NamedTuple):
    """samples_per_s of all workers; step_s, seconds of a worker's local step with all that belongs to it, on average.

    efficiency: samples_per_s to that of as many workers that wait for nothing and take compute.seconds each.
    sent_bytes: by a worker per local step. waiting: share of its time in which a worker waits for others to come.
    """

    samples_per_s: float
    step_s: float
    efficiency: float
    sent_bytes: float
    waiting: float


class Staleness(NamedTuple):
    """By how many updates of other workers the weights of an update were behind, or averaging by how many steps."""

    mean: float
    most: int


class Report(NamedTuple):
    """One run of the simulator."""

    throughput: Throughput
    staleness: Staleness


def simulate(
    mode: Mode,
    cluster: Cluster,
    compute: Compute,
    nbytes: float,
    batch: float = 1,
    steps: int = 10,
    seed: int = 0,
    itemsize: int = 4,
    segments: Sequence[Segment] = (),
    slots: int = 0,
) -> Report:
    """Play `steps` local steps per worker of `batch` samples each, with a vector of `nbytes`; same seed, same report.

    itemsize, segments: of the vector's elements and its trainable tensors, which say how far a compressor gets; its own
    time counts as none. slots: vectors of the optimizer, for modes that bring them together.
    """
    rng = np.random.default_rng(seed)
    outcome = mode.run(Setting(cluster, compute, nbytes, steps, rng, itemsize, segments, slots))
    rate = outcome.worker_steps / outcome.seconds
    throughput = Throughput(
        samples_per_s=rate * batch,
        step_s=cluster.workers / rate,
        efficiency=rate * compute.seconds / cluster.workers,
        sent_bytes=outcome.sent_bytes,
        waiting=outcome.waiting_s * rate / cluster.workers,
    )
    return Report(throughput, Staleness(float(outcome.staleness.mean()), int(outcome.staleness.max())))
