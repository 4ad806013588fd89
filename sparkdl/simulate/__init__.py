"""A discrete-event simulator of training modes on clusters of any size, over the schedules that the transports run."""

from __future__ import annotations

from sparkdl.simulate.cluster import ETHERNET, Cluster, Compute
from sparkdl.simulate.collective import Collective
from sparkdl.simulate.gossip import AsyncGossip, Gossip
from sparkdl.simulate.memory import SharedMemory
from sparkdl.simulate.modes import AllReduce, Averaging, ThroughDriver
from sparkdl.simulate.run import Report, Staleness, Throughput, simulate
from sparkdl.simulate.server import ParameterServer
from sparkdl.simulate.setting import Mode

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
    "SharedMemory",
    "Staleness",
    "ThroughDriver",
    "Throughput",
    "simulate",
]
