"""Proof, by running it on paper, that a schedule cannot block and that it computes what it should.

All ranks are played at once with no buffering whatever: a message moves only when its receiver asks for it and its
sender stands at the step that sends it, and a step ends only when all of its messages have moved. A real transport
buffers, and the executor waits for sends later than that, so that both can only be more permissive. What moves is
symbolic: each element is the set of ranks that contributed to it and the expression that adds them up, so that equal
expressions prove equal bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sparkdl.comm.schedules.base import Recv, Schedule, Send, Step, cuts, planned

__all__ = [
    "ScheduleError",
    "Term",
    "check_allgather",
    "check_allreduce",
    "check_broadcast",
    "check_reduce",
    "check_reduce_scatter",
    "play",
]


class ScheduleError(AssertionError):
    """A schedule that does not match, blocks, aliases, or computes something else; the message says where."""


class Term(NamedTuple):
    """A symbolic element: the bit set of the ranks that contributed, and the number of the expression that adds them.

    Rank r's own element is Term(1 << r, r); equal sums of equal terms have equal numbers.
    """

    ranks: int
    form: int


class _Player:
    """One rank: its steps, where it stands, and its symbolic vector."""

    def __init__(self, rank: int, steps: Sequence[Step], values: list[Term]) -> None:
        self.rank, self.steps, self.values = rank, steps, values
        self.at = -1
        self.unsent = 0  # messages of this step that nobody has taken
        self.wanted: deque[Recv] = deque()  # receives of this step to come; the rank is blocked in the first
        self.aside: list[tuple[Recv, list[Term]]] = []  # merges wait for the step's end

    @property
    def done(self) -> bool:
        return self.at == len(self.steps)

    @property
    def plight(self) -> str:
        what = f"waits for rank {self.wanted[0].peer}" if self.wanted else f"has {self.unsent} sends that nobody takes"
        return f"rank {self.rank}, step {self.at}, {what}"


class _Game:
    """All ranks of one schedule, played until every step is over or nothing moves.

    Elements between two neighbouring `edges` share all their messages, and are kept as one.
    """

    def __init__(self, plans: Sequence[Sequence[Step]], edges: Sequence[int]) -> None:
        self.place = {edge: i for i, edge in enumerate(edges)}
        self.players = [_Player(r, steps, [Term(1 << r, r)] * (len(edges) - 1)) for r, steps in enumerate(plans)]
        self.forms: dict[tuple[int, int], int] = {}
        self.offers: dict[tuple[int, int], deque[Send]] = {}  # (from, to) -> sends whose step has begun
        self.ready = deque(self.players)

    def run(self) -> list[list[Term]]:
        for player in self.players:
            self._enter(player)
        while self.ready:
            player = self.ready.popleft()
            while player.wanted and (offers := self.offers.get((player.wanted[0].peer, player.rank))):
                self._take(player, offers.popleft())
        stuck = [p.plight for p in self.players if not p.done]
        if stuck:
            raise ScheduleError(f"{len(stuck)} ranks are stuck: {'; '.join(stuck[:8])}")
        return [p.values for p in self.players]

    def _enter(self, player: _Player) -> None:
        """Begin the next step: offer its sends, and ask for its first receive."""
        player.at += 1
        if player.done:
            return
        sends, recvs = player.steps[player.at]
        player.unsent, player.wanted, player.aside = len(sends), deque(recvs), []
        for send in sends:
            self.offers.setdefault((player.rank, send.peer), deque()).append(send)
            self.ready.append(self.players[send.peer])

    def _take(self, player: _Player, send: Send) -> None:
        """Let the message the player waits for reach it."""
        recv = player.wanted.popleft()
        sender = self.players[recv.peer]
        if send.stop - send.start != recv.stop - recv.start:
            raise ScheduleError(f"rank {sender.rank}'s {send} meets rank {player.rank}'s {recv}, step {player.at}")
        incoming = sender.values[self.place[send.start] : self.place[send.stop]]
        if recv.how == "merge":
            player.aside.append((recv, incoming))
        else:
            self._store(player, recv, incoming)
        sender.unsent -= 1
        self._leave(sender)
        self._leave(player)

    def _leave(self, player: _Player) -> None:
        """Go on to the next step if this one is over."""
        if player.unsent or player.wanted or player.done:
            return
        for recv, incoming in player.aside:
            self._store(player, recv, incoming)
        self._enter(player)
        self.ready.append(player)

    def _store(self, player: _Player, recv: Recv, incoming: list[Term]) -> None:
        into = slice(self.place[recv.start], self.place[recv.stop])
        if recv.how != "copy":
            own = player.values[into]
            first, second = (incoming, own) if recv.how == "merge" and recv.peer < player.rank else (own, incoming)
            incoming = [self._add(a, b, player) for a, b in zip(first, second, strict=True)]
        player.values[into] = incoming

    def _add(self, a: Term, b: Term, player: _Player) -> Term:
        if a.ranks & b.ranks:
            raise ScheduleError(f"rank {player.rank}, step {player.at}: added twice, of {a.ranks:b} and {b.ranks:b}")
        return Term(a.ranks | b.ranks, self.forms.setdefault((a.form, b.form), len(self.players) + len(self.forms)))


def _check_step(rank: int, number: int, step: Step, size: int, count: int) -> None:
    """Raise ScheduleError unless the step stays within bounds and no slice of it is written while it is in use."""
    where = f"rank {rank}, step {number}"
    for m in step.messages:
        if m.peer == rank or not 0 <= m.peer < size or not 0 <= m.start < m.stop <= count:
            raise ScheduleError(f"{where}: [{m.start}, {m.stop}) of {count} elements, with rank {m.peer} of {size}")
    for i, recv in enumerate(step.recvs):
        busy = [] if recv.how == "merge" else list[Send | Recv](step.sends)
        busy += [r for r in step.recvs[:i] if recv.how == "copy" or r.how != recv.how]
        if any(m.start < recv.stop and recv.start < m.stop for m in busy):
            raise ScheduleError(f"{where}: {recv} overlaps another slice of {step}")


def play(
    schedule: Schedule, size: int, count: int, segment: int, bounds: Sequence[int] = ()
) -> tuple[list[list[Term]], list[int]]:
    """Run `schedule` on all ranks with no buffering; each starts with its own term in every element.

    Returns the edges that the messages, or `bounds`, cut the vector at, and before them each rank's final terms, one
    for every interval between two edges. Raises ScheduleError.
    """
    plans = [planned(schedule, rank, size, count, segment) for rank in range(size)]
    edges = {0, count, *bounds}
    for rank, steps in enumerate(plans):
        for number, step in enumerate(steps):
            _check_step(rank, number, step, size, count)
            for message in step.messages:
                edges.add(message.start)
                edges.add(message.stop)
    order = sorted(edges)
    return _Game(plans, order).run(), order


def check_allreduce(schedule: Schedule, size: int, count: int, segment: int) -> None:
    """Raise ScheduleError unless every element ends on all ranks with everyone's contribution, once, in one form."""
    values, edges = play(schedule, size, count, segment)
    for at, terms in zip(pairwise(edges), zip(*values, strict=True), strict=True):
        if terms[0].ranks != (1 << size) - 1 or len(set(terms)) != 1:
            raise ScheduleError(f"elements {at} end as {set(terms)}")


def check_reduce(schedule: Schedule, size: int, count: int, segment: int, root: int = 0) -> None:
    """Raise ScheduleError unless every element ends on `root` with everyone's contribution, once."""
    values, edges = play(schedule, size, count, segment)
    _check_full(values[root], edges, size)


def check_reduce_scatter(
    schedule: Schedule, size: int, count: int, segment: int, bounds: Sequence[int] | None = None
) -> None:
    """Raise ScheduleError unless chunk r ends on rank r with everyone's contribution, once."""
    bounds = bounds or cuts(count, size)
    values, edges = play(schedule, size, count, segment, bounds)
    for rank in range(size):
        a, b = edges.index(bounds[rank]), edges.index(bounds[rank + 1])
        _check_full(values[rank][a:b], edges[a:], size)


def check_broadcast(schedule: Schedule, size: int, count: int, segment: int, root: int = 0) -> None:
    """Raise ScheduleError unless all ranks end with the root's vector."""
    values, edges = play(schedule, size, count, segment)
    _check_owners(values, edges, [(0, count, root)])


def check_allgather(
    schedule: Schedule, size: int, count: int, segment: int, bounds: Sequence[int] | None = None
) -> None:
    """Raise ScheduleError unless chunk r of rank r ends on all ranks."""
    bounds = bounds or cuts(count, size)
    values, edges = play(schedule, size, count, segment, bounds)
    _check_owners(values, edges, [(a, b, r) for r, (a, b) in enumerate(pairwise(bounds))])


def _check_full(terms: Sequence[Term], edges: Sequence[int], size: int) -> None:
    for at, term in zip(pairwise(edges), terms, strict=False):
        if term.ranks != (1 << size) - 1:
            raise ScheduleError(f"elements {at} end with the contributions {term.ranks:b} of {size} ranks")


def _check_owners(values: list[list[Term]], edges: Sequence[int], owners: Iterable[tuple[int, int, int]]) -> None:
    for start, stop, owner in owners:
        for rank, terms in enumerate(values):
            for term in terms[edges.index(start) : edges.index(stop)]:
                if term != Term(1 << owner, owner):
                    raise ScheduleError(f"rank {rank}: [{start}, {stop}) should be rank {owner}'s; it is {term}")
