"""Ranks that act as one worker: within a team they are synchronous, and others hear from the first of them alone."""

from __future__ import annotations

from sparkdl.backends.base import Place
from sparkdl.comm import Metered, allreduce, broadcast, reduce
from sparkdl.comm.transport.among import Among
from sparkdl.nn import Array
from sparkdl.strategies.peer import Peer

__all__ = ["Team"]


class Team:
    """This rank's team, `group` consecutive ranks; the last team may be smaller. All ranks make theirs together.

    The first `spare` ranks do not train; each of them is alone, and no team. speakers: the first rank of each of the
    `count` teams; speaker: that of this one. trains, speaks: whether this rank is in a team, and its speaker. callers:
    the ranks that talk to others than their team, those who speak for one first.
    """

    def __init__(self, peer: Peer, group: int = 1, spare: int = 0) -> None:
        rank, size = peer.comm.rank, peer.comm.size
        self.spare, self.trains = spare, rank >= spare
        self.speakers = tuple(range(spare, size, group))
        self.count = len(self.speakers)
        self.speaker = self.speakers[(rank - spare) // group] if self.trains else rank
        self.speaks = self.trains and rank == self.speaker
        self.callers = (*self.speakers, *range(spare))
        self._comm: Metered | None = None
        if group > 1:
            members = range(self.speaker, min(self.speaker + group, size) if self.trains else rank + 1)
            (circle,) = peer.meet("teams", [Place(rank, size, tuple(r for r in members if r != rank))])
            self._comm = Metered(Among(circle, members))

    @property
    def calls(self) -> bool:
        """Whether this rank is one of `callers`."""
        return self.speaks or not self.trains

    @property
    def sent_bytes(self) -> int:
        """What this rank has sent to the others of its team."""
        return 0 if self._comm is None else self._comm.sent_bytes

    def add(self, vec: Array, everywhere: bool) -> None:
        """Sum vec (n,) over the team, in place, everywhere or where it speaks; in the latter case others use it up."""
        if self._comm is not None:
            (allreduce if everywhere else reduce)(self._comm, vec)

    def hand_on(self, *arrays: Array) -> None:
        """Arrays of the one who speaks to the whole team, in place."""
        if self._comm is not None:
            for a in arrays:
                broadcast(self._comm, a)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the team; after an error the others hear of it."""
        comm, self._comm = self._comm, None
        if comm is not None and error is None:
            comm.close()
        elif comm is not None:
            comm.abort(f"{type(error).__name__}: {error}")
