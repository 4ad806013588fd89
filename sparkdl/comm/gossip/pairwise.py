"""Asynchronous pairwise averaging: no rounds, and nobody waits but for the one asked (AD-PSGD).

Ranks are active or passive. An active rank asks a passive one at any time, by `ask`; a passive one answers, by
`answer`, from a thread for each rank that may ask, over a transport that joins just the two. Active ranks wait for
passive ones only and passive ones for nobody while they answer, so that no cycle of ranks can block. (Lian et al.
2018, arXiv:1710.06952.)

The exchange is atomic on both sides. The passive rank hands out x_p and adds (x_a - x_p) / 2 under one lock; the active
one adds (x_p - x_a) / 2, of the x_a that it sent, to whatever its own vector has become meanwhile. The two changes are
each other's negatives to the last bit: the sum over the ranks stays, whoever updates in between.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sparkdl.comm.transport.base import Array, Transport
from sparkdl.fields import Interval, check_fields

__all__ = ["Bipartite", "answer", "ask", "say_goodbye"]

GOODBYE, REQUEST = 0, 1


@dataclass(frozen=True)
class Bipartite:
    """Even ranks are active, odd ones passive, and an active rank asks a passive one drawn by lot each time."""

    seed: int = field(default=0, metadata={"within": Interval(0, inf, "[)", integer=True)})

    def __post_init__(self) -> None:
        check_fields(self)

    def active(self, rank: int) -> bool:
        """Whether the rank asks; the others answer."""
        return rank % 2 == 0

    def peers(self, rank: int, size: int) -> range:
        """Those that the rank may ask, or be asked by."""
        return range(1 if self.active(rank) else 0, size, 2)

    def peer(self, step: int, rank: int, size: int) -> int | None:
        """Whom the active rank asks in its `step`; None if it is alone."""
        peers = self.peers(rank, size)
        return peers[int(np.random.default_rng((self.seed, step, rank)).integers(len(peers)))] if peers else None


def ask(t: Transport, peer: int, vec: Array, lock: threading.Lock, tag: int = 0) -> None:
    """Average vec (n,) with that of a passive peer, in place. Whoever else changes vec does so under the lock."""
    with lock:
        own = vec.copy()
    sends = [t.isend(peer, tag, np.array([REQUEST])), t.isend(peer, tag, own)]
    change = np.empty_like(own)
    t.recv(peer, tag, change)
    for send in sends:
        send.wait()
    change -= own
    change /= 2
    with lock:
        vec += change


def answer(t: Transport, peer: int, vec: Array, lock: threading.Lock, tag: int = 0) -> bool:
    """Wait for a request of an active peer and average vec (n,) with what it sends, in place; False on its goodbye."""
    t.recv(peer, tag, request := np.empty(1, np.int64))
    if request[0] == GOODBYE:
        return False
    t.recv(peer, tag, change := np.empty_like(vec))
    with lock:
        own = vec.copy()
        change -= own
        change /= 2
        vec += change
    t.isend(peer, tag, own).wait()
    return True


def say_goodbye(t: Transport, peer: int, tag: int = 0) -> None:
    """Tell a passive peer that this rank will not ask again."""
    t.isend(peer, tag, np.array([GOODBYE])).wait()
