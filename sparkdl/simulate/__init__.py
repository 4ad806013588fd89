"""A discrete-event simulator of training modes on clusters of any size, over the schedules that the transports run."""

from __future__ import annotations

from sparkdl.simulate.cluster import ETHERNET, Cluster, Compute
from sparkdl.simulate.collective import Collective
from sparkdl.simulate.modes import AllReduce, AsyncGossip, Averaging, Gossip, Mode
from sparkdl.simulate.run import Report, Staleness, Throughput, simulate
from sparkdl.simulate.server import ParameterServer

__all__ = [
    "ETHERNET",
    "AllReduce",
    "AsyncGossip",
    "Averaging",
    "Cluster",
    "Collective",
    "Compute",
    "Gossip",
    "Mode",
    "ParameterServer",
    "Report",
    "Staleness",
    "Throughput",
    "simulate",
]
