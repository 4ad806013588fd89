"""Modes of training: how local gradients become the next parameters."""

from sparkdl.strategies.allreduce import AllReduce
from sparkdl.strategies.base import Strategy
from sparkdl.strategies.gossip import Gossip
from sparkdl.strategies.hogwild import Hogwild
from sparkdl.strategies.model_averaging import ModelAveraging
from sparkdl.strategies.parameter_server import ParameterServer
from sparkdl.strategies.peers import PeerStrategy
from sparkdl.strategies.tree_aggregate import TreeAggregate

__all__ = [
    "STRATEGIES",
    "AllReduce",
    "Gossip",
    "Hogwild",
    "ModelAveraging",
    "ParameterServer",
    "PeerStrategy",
    "Strategy",
    "TreeAggregate",
]

# What text in a configuration may name.
STRATEGIES: dict[str, type[Strategy]] = {
    "tree_aggregate": TreeAggregate,
    "allreduce": AllReduce,
    "model_averaging": ModelAveraging,
    "gossip": Gossip,
    "hogwild": Hogwild,
    "parameter_server": ParameterServer,
}
