"""How ranks talk to each other. Knows nothing of Spark: a rendezvous is any allgather of small texts."""

from __future__ import annotations

from sparkdl.comm.chooser import AllReducer
from sparkdl.comm.collectives import (
    Reduction,
    allgather,
    allgatherv,
    allreduce,
    barrier,
    broadcast,
    chain_allreduce,
    hierarchical_allreduce,
    rabenseifner_allreduce,
    recursive_doubling_allreduce,
    reduce,
    reduce_scatter,
    ring_allreduce,
    segmented_ring_allreduce,
    shared_allreduce,
    star_allreduce,
    tree_allreduce,
)
from sparkdl.comm.rendezvous import AllGather, connect
from sparkdl.comm.schedules import cuts
from sparkdl.comm.topology import Hosts
from sparkdl.comm.transport import (
    CommError,
    MessageMismatch,
    Metered,
    Op,
    OperationTimeout,
    PeerAborted,
    PeerLost,
    Pending,
    RendezvousError,
    Transport,
    TransportOptions,
    inproc_group,
)

__all__ = [
    "AllGather",
    "AllReducer",
    "CommError",
    "Hosts",
    "MessageMismatch",
    "Metered",
    "Op",
    "OperationTimeout",
    "PeerAborted",
    "PeerLost",
    "Pending",
    "Reduction",
    "RendezvousError",
    "Transport",
    "TransportOptions",
    "allgather",
    "allgatherv",
    "allreduce",
    "barrier",
    "broadcast",
    "chain_allreduce",
    "connect",
    "cuts",
    "hierarchical_allreduce",
    "inproc_group",
    "rabenseifner_allreduce",
    "recursive_doubling_allreduce",
    "reduce",
    "reduce_scatter",
    "ring_allreduce",
    "segmented_ring_allreduce",
    "shared_allreduce",
    "star_allreduce",
    "tree_allreduce",
]
