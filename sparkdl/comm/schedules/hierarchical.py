"""Two levels: sum within each host, between the hosts, and spread within each host again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkdl.comm.schedules.base import Schedule, Step, among, cuts, shifted
from sparkdl.comm.schedules.halving import rabenseifner
from sparkdl.comm.schedules.ring import RingAllgather, RingReduceScatter
from sparkdl.comm.schedules.tree import tree_broadcast, tree_reduce
from sparkdl.comm.topology import Hosts

__all__ = ["Hierarchical"]


@dataclass(frozen=True)
class Hierarchical:
    """Allreduce over `hosts`: what crosses between them is 2 (h - 1) / h of the vector per host, not per rank.

    With `leaders` = 1 each host's sum meets on its lowest rank (few rounds: for short vectors). With more, the
    vector is cut in that many slices, the i-th of which meets on each host's i-th rank: all of them add, and several
    streams leave the host. `between` is the allreduce among the leaders of one slice.
    """

    hosts: Hosts
    leaders: int = 1
    between: Schedule = rabenseifner

    def __post_init__(self) -> None:
        if not 1 <= self.leaders <= self.hosts.leaders:
            most = self.hosts.leaders
            raise ValueError(
                f"leaders must lie between 1 and {most}, the ranks of the smallest host; got {self.leaders}"
            )

    def __call__(self, rank: int, size: int, count: int, segment: int, /) -> Iterator[Step]:
        """The steps of `rank`."""
        if size != len(self.hosts.groups):
            raise ValueError(f"the hosts of {len(self.hosts.groups)} ranks were given; the group has {size}")
        host = self.hosts.host_of(rank)
        bounds = cuts(count, self.leaders)
        gather: Schedule = tree_reduce
        spread: Schedule = tree_broadcast
        if self.leaders > 1:
            uneven = bounds + (count,) * (len(host) - self.leaders)  # ranks beyond the leaders own an empty chunk
            gather, spread = RingReduceScatter(uneven), RingAllgather(uneven)
        yield from among(host, gather, rank, count, segment)
        place = host.index(rank)
        if place < self.leaders:
            peers = [ranks[place] for ranks in self.hosts.members]
            own = bounds[place + 1] - bounds[place]
            yield from shifted(among(peers, self.between, rank, own, segment), bounds[place])
        yield from among(host, spread, rank, count, segment)
