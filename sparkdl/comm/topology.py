"""Which ranks share a host, and who speaks for them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Hosts"]


@dataclass(frozen=True)
class Hosts:
    """Ranks by host: `groups[r]` is the host of rank r, any hashable name; ranks of a host need not be neighbours."""

    groups: tuple[Hashable, ...]

    @classmethod
    def of(cls, groups: Sequence[Hashable]) -> Hosts:
        """From the host names in rank order; hosts are numbered in order of appearance, so that equal layouts match."""
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(g, len(numbers)) for g in groups))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, ascending; hosts in the order of their lowest rank."""
        hosts: dict[Hashable, list[int]] = {}
        for rank, group in enumerate(self.groups):
            hosts.setdefault(group, []).append(rank)
        return tuple(tuple(ranks) for ranks in hosts.values())

    @property
    def leaders(self) -> int:
        """How many ranks of each host can speak for it: as many as the smallest host has."""
        return min(map(len, self.members), default=0)

    @property
    def nested(self) -> bool:
        """Whether there are several hosts and one of them has several ranks; else a hierarchy is pointless."""
        return 1 < len(self.members) < len(self.groups)

    def host_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that share the host of `rank`."""
        return next(ranks for ranks in self.members if rank in ranks)
