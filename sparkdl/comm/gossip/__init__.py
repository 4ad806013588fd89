"""Decentralised averaging: topologies, mixing weights, and the exchanges over them."""

from __future__ import annotations

from sparkdl.comm.gossip.base import Neighbours, Topology
from sparkdl.comm.gossip.mixing import (
    compressed_mix,
    compressed_mix_init,
    consensus_distance,
    mix,
    push_sum_mix,
)
from sparkdl.comm.gossip.pairwise import Bipartite, answer, ask, say_goodbye
from sparkdl.comm.gossip.topologies import (
    TOPOLOGIES,
    Exponential,
    Full,
    Hierarchical,
    OnePeerExponential,
    RandomOut,
    RandomPairs,
    Ring,
    Star,
    Torus,
)
from sparkdl.comm.gossip.weights import (
    Rule,
    Weights,
    check_agreement,
    check_topology,
    mixing_matrix,
    spectral_gap,
    weights_of,
)

__all__ = [
    "TOPOLOGIES",
    "Bipartite",
    "Exponential",
    "Full",
    "Hierarchical",
    "Neighbours",
    "OnePeerExponential",
    "RandomOut",
    "RandomPairs",
    "Ring",
    "Rule",
    "Star",
    "Topology",
    "Torus",
    "Weights",
    "answer",
    "ask",
    "check_agreement",
    "check_topology",
    "compressed_mix",
    "compressed_mix_init",
    "consensus_distance",
    "mix",
    "mixing_matrix",
    "push_sum_mix",
    "say_goodbye",
    "spectral_gap",
    "weights_of",
]
