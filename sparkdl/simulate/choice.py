"""Which allreduce the chooser would take on a simulated cluster: by the cost model, without races."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from sparkdl.comm.chooser import BUTTERFLIES, Choice, Links, tabulate
from sparkdl.comm.shared import in_butterfly_order, is_short
from sparkdl.comm.topology import Hosts
from sparkdl.simulate.cluster import Cluster

__all__ = ["CHOSEN", "chosen"]

CHOSEN = ("auto", "fastest")
"""Names that leave the choice open: among algorithms that add up in one order, or among all."""


def chosen(name: str, cluster: Cluster, nbytes: float) -> str:
    """The algorithm for a vector of `nbytes` where `name` leaves the choice open; any other name stays."""
    if name not in CHOSEN or cluster.workers == 1:
        return "ring" if name in CHOSEN else name
    if cluster.per_host >= cluster.workers and not is_short(cluster.workers, int(nbytes)):
        return "shared"  # nothing is faster than vectors that all ranks can read where they lie
    table = _table(name, cluster)
    return table[bisect_left([row.limit for row in table], nbytes)].algorithm


@lru_cache(maxsize=64)
def _table(name: str, cluster: Cluster) -> tuple[Choice, ...]:
    hosts, within = Hosts.of(cluster.hosts), cluster.within or cluster.link
    links = Links(within if len(hosts.members) == 1 else cluster.link)
    if hosts.nested:
        links = links._replace(within=within, between=cluster.link)
    if cluster.per_host > 1:
        links = links._replace(arenas=hosts)
    if name == "auto":
        ordered = BUTTERFLIES if in_butterfly_order(hosts) else BUTTERFLIES[:2]
        links = links._replace(names=frozenset(ordered))
    return tabulate(hosts, links, {})
