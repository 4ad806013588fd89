"""Who sends what to whom in which step: one generator per algorithm."""

from __future__ import annotations

from sparkdl.comm.schedules.barrier import dissemination
from sparkdl.comm.schedules.base import How, Recv, Rooted, Schedule, Send, Step, among, cuts, pieces, planned, shifted
from sparkdl.comm.schedules.chain import chain, chain_broadcast, chain_reduce
from sparkdl.comm.schedules.halving import Folded, rabenseifner, recursive_doubling
from sparkdl.comm.schedules.hierarchical import Hierarchical
from sparkdl.comm.schedules.ring import RingAllgather, RingReduceScatter, ring, segmented_ring
from sparkdl.comm.schedules.star import star
from sparkdl.comm.schedules.tree import tree, tree_broadcast, tree_reduce

__all__ = [
    "ALLREDUCE",
    "Folded",
    "Hierarchical",
    "How",
    "Recv",
    "RingAllgather",
    "RingReduceScatter",
    "Rooted",
    "Schedule",
    "Send",
    "Step",
    "among",
    "chain",
    "chain_broadcast",
    "chain_reduce",
    "cuts",
    "dissemination",
    "pieces",
    "planned",
    "rabenseifner",
    "recursive_doubling",
    "ring",
    "segmented_ring",
    "shifted",
    "star",
    "tree",
    "tree_broadcast",
    "tree_reduce",
]

ALLREDUCE: dict[str, Schedule] = {
    "star": star,
    "tree": tree,
    "recursive_doubling": recursive_doubling,
    "ring": ring,
    "segmented_ring": segmented_ring,
    "chain": chain,
    "rabenseifner": rabenseifner,
}
"""The allreduce algorithms that need nothing but ranks, by name."""
