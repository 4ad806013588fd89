"""Sums of compressed vectors over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparkdl.comm.chooser import AllReducer
from sparkdl.comm.collectives import allgather, allgatherv, allreduce
from sparkdl.comm.compress.base import Compressor, Reduce, Summable, finite, poisoned
from sparkdl.comm.compress.memory import State
from sparkdl.comm.schedules import cuts
from sparkdl.comm.transport.base import Array, Transport
from sparkdl.comm.transport.metered import Metered

__all__ = ["Traffic", "compressed_allreduce", "generator_for"]

PURPOSE = 0xC0  # sets these random numbers apart from others drawn with the same seed


class Traffic(NamedTuple):
    """Bytes that this rank sent, and what a ring would have sent of the vector as it is."""

    sent: int
    dense: int

    @property
    def ratio(self) -> float:
        """Sent to dense; 1 where a ring has nothing to send."""
        return self.sent / self.dense if self.dense else 1.0


class _Piece(NamedTuple):
    """The message of the result's elements [start, stop), or of an addend of them."""

    start: int
    stop: int
    message: Array


_Way = tuple[list[_Piece], Callable[[Array], None]]
"""What makes up the result, and what takes off a vector that which this rank got through."""


def generator_for(compressor: Compressor, seed: int, step: int, rank: int) -> np.random.Generator:
    """The random numbers of one message: the same on all ranks where messages are summed, else the rank's own."""
    shared = compressor.route == "reduce"
    return np.random.default_rng((seed, PURPOSE, step) if shared else (seed, PURPOSE, step, rank))


def compressed_allreduce(
    t: Transport,
    compressor: Compressor,
    vec: Array,
    state: State,
    seed: int,
    step: int,
    tag: int = 0,
    reducer: AllReducer | None = None,
) -> Traffic:
    """Sum over all ranks what compression leaves of vec (n,), in place; all ranks end with the same bits.

    `state`, from `compressor.init`, changes too. What was not sent stays in the memories: over any number of calls, the
    results and what all memories hold at the end make up the sum of all inputs. Where a rank's vector is not finite,
    every element is NaN on all ranks and no memory changes (by the dense route, NaN or infinite is what the sum of that
    element is). What must be exact, such as counts, is no part of vec. `reducer` chooses the allreduce of the routes
    that have one, by default a ring.
    """
    meter, dense = Metered(t), 2 * (t.size - 1) * vec.nbytes // t.size

    def reduce(part: Array) -> None:
        if reducer is None:
            allreduce(meter, part, tag=tag)
        else:
            _, name, segment_bytes = reducer.choice(part.nbytes)
            allreduce(meter, part, "sum", reducer.schedules[name], segment_bytes, tag)

    if not vec.size:
        return Traffic(0, 0)
    if compressor.route == "dense":
        reduce(vec)
        return Traffic(meter.sent_bytes, dense)
    rng = generator_for(compressor, seed, step, t.rank)
    due = compressor.memory.due(vec, state)
    if not finite(due):
        due = np.full_like(due, np.nan)
    if isinstance(compressor, Summable):
        pieces, subtract = _reduced(compressor, due, state, rng, reduce)
    elif compressor.route == "gather":
        pieces, subtract = _gathered(meter, compressor, due, state, rng, tag)
    else:
        pieces, subtract = _two_phase(meter, compressor, due, state, rng, tag)
    if any(poisoned(piece.message) for piece in pieces):
        vec.fill(np.nan)
    else:
        compressor.memory.keep(vec, due, subtract, state)
        vec.fill(0)
        for start, stop, message in pieces:
            compressor.add_into(vec[start:stop], message)
    return Traffic(meter.sent_bytes, dense)


def _reduced(compressor: Summable, due: Array, state: State, rng: np.random.Generator, reduce: Reduce) -> _Way:
    own, total = compressor.rounds(due, state, rng, reduce)
    return [_Piece(0, due.size, total)], lambda out: compressor.add_into(out, own, -1.0)


def _gathered(
    t: Transport, compressor: Compressor, due: Array, state: State, rng: np.random.Generator, tag: int
) -> _Way:
    own = compressor.message(due, state, rng)
    pieces = [_Piece(0, due.size, message) for message in allgatherv(t, own, tag)]
    return pieces, lambda out: compressor.add_into(out, own, -1.0)


def _two_phase(
    t: Transport, compressor: Compressor, due: Array, state: State, rng: np.random.Generator, tag: int
) -> _Way:
    """Chunk r of all ranks to rank r, and the message of its sum to all.

    A chunk does not travel to its own rank, so it is compressed once only, with the sum. That one rank's vector is not
    finite shows in the sum of each chunk, and so to everyone.
    """
    bounds = cuts(due.size, t.size)
    chunks = list(pairwise(bounds))
    a, b = chunks[t.rank]
    total = due[a:b].copy()
    incoming = np.empty(compressor.nbytes(b - a, due.itemsize), np.uint8)
    out, sends = [], []
    for shift in range(1, t.size):
        to, source = (t.rank + shift) % t.size, (t.rank - shift) % t.size
        piece = _Piece(*chunks[to], compressor.message(due[slice(*chunks[to])], state, rng))
        if piece.message.size:
            sends.append(t.isend(to, tag, piece.message))
            out.append(piece)
        if incoming.size:
            t.recv(source, tag, incoming)
            compressor.add_into(total, incoming)
    for send in sends:
        send.wait()
    places = (0, *np.cumsum([compressor.nbytes(stop - start, due.itemsize) for start, stop in chunks]).tolist())
    messages = np.empty(places[-1], np.uint8)
    messages[places[t.rank] : places[t.rank + 1]] = compressor.message(total, state, rng)
    allgather(t, messages, places, tag)
    pieces = [_Piece(*chunk, messages[i:j]) for chunk, (i, j) in zip(chunks, pairwise(places), strict=True)]

    def subtract(residual: Array) -> None:
        for start, stop, message in out:
            compressor.add_into(residual[start:stop], message, -1.0)
        residual[a:b] = total
        compressor.add_into(residual[a:b], pieces[t.rank].message, -1.0)

    return pieces, subtract
