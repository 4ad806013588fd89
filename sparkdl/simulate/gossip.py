"""Modes without a centre: a worker waits for its neighbours, or for one of them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from sparkdl.comm.compress import Compressor, Uncompressed
from sparkdl.comm.gossip import Bipartite, Ring, Topology
from sparkdl.comm.schedules import tree_broadcast
from sparkdl.comm.transport.base import Array
from sparkdl.fields import COUNT, NATURAL
from sparkdl.simulate.collective import Timed
from sparkdl.simulate.delivery import Message, deliver
from sparkdl.simulate.exchange import SMALL, message_bytes
from sparkdl.simulate.lockstep import advance, shift_row
from sparkdl.simulate.ports import Ports
from sparkdl.simulate.setting import Mode, Outcome, Setting

__all__ = ["AsyncGossip", "Gossip"]

CROWD = 200_000  # messages of one mixing: beyond, ranks that all send equally far send in turn


@dataclass(frozen=True)
class Gossip(Mode):
    """After every `period` steps weights are mixed with those of the neighbours, for whom alone a worker waits.

    Every `listen` steps (0: never) rank 0 tells all whether to go on, down a tree.
    """

    topology: Topology = field(default_factory=Ring)
    period: int = field(default=1, metadata=COUNT)
    compressor: Compressor = field(default_factory=Uncompressed)
    listen: int = field(default=0, metadata=NATURAL)

    def run(self, setting: Setting) -> Outcome:
        size, word = setting.cluster.workers, None
        if self.listen and size > 1:
            word = Timed(tree_broadcast, setting.cluster, 1, 1, 1)
        clocks, messages, waited = np.zeros(size), 0, 0.0
        nbytes = message_bytes(setting, self.compressor)[0]
        for step, seconds in enumerate(setting.draw(setting.steps), 1):
            clocks = starts = clocks + seconds
            if step % self.period == 0:
                clocks, count = self._mixed(setting, clocks, step // self.period, nbytes)
                messages += count
            if word is not None and step % self.listen == 0:
                clocks = word.finish(clocks)
            exposed = clocks - starts
            waited += float(exposed.mean() - exposed.min())
        sent = messages * nbytes / (size * setting.steps)
        total = size * setting.steps
        return Outcome(total, float(clocks.max()), sent, np.arange(self.period), waited / setting.steps)

    def _mixed(self, setting: Setting, clocks: Array, turn: int, nbytes: float) -> tuple[Array, int]:
        """When each rank has mixed, and how many messages that took."""
        cluster, size = setting.cluster, setting.cluster.workers
        first = self.topology(turn, 0, size).targets
        if self.topology.rotational and size * len(first) > CROWD:
            rows = [shift_row(shift, nbytes, cluster) for shift in first]
            return advance(rows, clocks), size * len(first)
        lengths = (nbytes,) if isinstance(self.compressor, Uncompressed) else (SMALL / 2, nbytes)
        sends = [
            [Message(rank, peer, n) for peer in self.topology(turn, rank, size).targets for n in lengths]
            for rank in range(size)
        ]
        return np.array(deliver(sends, cluster, clocks)), sum(map(len, sends)) // len(lengths)


@dataclass(frozen=True)
class AsyncGossip(Mode):
    """After every `period` steps an active worker swaps weights with a passive one, whose own steps go on undisturbed.

    The passive worker's port, and the time to fold in what came, are all that several of them have to share.
    """

    pairs: Bipartite = field(default_factory=Bipartite)
    period: int = field(default=1, metadata=COUNT)

    def run(self, setting: Setting) -> Outcome:
        size, period, steps = setting.cluster.workers, self.period, -(-setting.steps // self.period)
        seconds = setting.draw(steps * period).reshape(steps, period, size).sum(axis=1)
        ports = Ports(setting.cluster, np.zeros(size))
        active = [rank for rank in range(size) if self.pairs.active(rank) and size > 1]
        ends = seconds.sum(axis=0)  # of those that swap with nobody, or are only asked
        # When a message can be on its way, from whom, to whom, and after which of the active one's periods.
        heap = [(float(seconds[0, a]), a, self._peer(0, a, size), 0) for a in active]
        heapq.heapify(heap)
        while heap:
            when, sender, receiver, step = heapq.heappop(heap)
            if (start := max(when, ports.ready(sender, receiver))) > when:  # others were first
                heapq.heappush(heap, (start, sender, receiver, step))
                continue
            ports.carry(sender, receiver, start, setting.nbytes, reduced=True)
            now = ports.into[receiver]
            if self.pairs.active(sender):
                heapq.heappush(heap, (now, receiver, sender, step))
            elif step + 1 < steps:
                peer = self._peer(step + 1, receiver, size)
                heapq.heappush(heap, (now + float(seconds[step + 1, receiver]), receiver, peer, step + 1))
            else:
                ends[receiver] = now
        rates = steps * period / ends
        sent = 2 * setting.nbytes / period * float(rates[active].sum() / rates.sum())
        return Outcome(float(rates.sum()), 1.0, sent, np.zeros(1), 0.0)

    def _peer(self, step: int, rank: int, size: int) -> int:
        peer = self.pairs.peer(step, rank, size)
        assert peer is not None
        return peer
