"""The combine step of gossip: each rank takes in what its neighbours hold, one message an edge, full duplex."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sparkdl.comm.collectives import allreduce
from sparkdl.comm.compress import Compressor, Segment, State, Traffic, generator_for
from sparkdl.comm.gossip.base import Topology
from sparkdl.comm.gossip.weights import weights_of
from sparkdl.comm.transport.base import Array, Transport, combine
from sparkdl.comm.transport.metered import Metered

__all__ = ["compressed_mix", "compressed_mix_init", "consensus_distance", "mix", "push_sum_mix"]


def mix(t: Transport, topology: Topology, vec: Array, step: int, tag: int = 0) -> None:
    """x_i <- sum_j W_ij x_j with Metropolis weights, in place; vec (n,) of every rank. The mean stays.

    Before the local update it makes D-PSGD's combine-then-adapt, after it adapt-then-combine (Lian et al. 2017,
    arXiv:1705.09056). The graph must be balanced, see `check_topology`.
    """
    targets, sources = topology(step, t.rank, t.size)
    own, weights = weights_of(topology, step, t.rank, t.size)
    sends = [t.isend(peer, tag, vec) for peer in targets]
    total, incoming = vec * vec.dtype.type(own), np.empty_like(vec)
    for source, weight in zip(sources, weights, strict=True):
        t.recv(source, tag, incoming)
        incoming *= weight
        combine(total, incoming, "sum")
    for send in sends:
        send.wait()
    vec[...] = total


def push_sum_mix(t: Transport, topology: Topology, vec: Array, weight: float, step: int, tag: int = 0) -> float:
    """x <- A x in place, and w <- A w returned, with A_ij = 1 / (1 + targets of j): any directed graph will do.

    Sums over the ranks stay, so that z = x / w of every rank tends to the mean of x over that of w, which starts at 1.
    The gradient is taken at z, the step from x (SGP; Assran et al. 2019, arXiv:1811.10792).
    """
    targets, sources = topology(step, t.rank, t.size)
    share = np.append(vec, vec.dtype.type(weight))
    share /= 1 + len(targets)
    sends = [t.isend(peer, tag, share) for peer in targets]
    total = share.copy()
    for source in sources:
        t.recv_reduce(source, tag, total, "sum")
    for send in sends:
        send.wait()
    vec[...] = total[:-1]
    return float(total[-1])


def compressed_mix_init(compressor: Compressor, vec: Array, segments: Sequence[Segment] = ()) -> State:
    """The state of `compressed_mix` for vectors like vec (n,): what the others know of this rank, and it of them."""
    slots = compressor.slots(vec.size, vec.dtype, segments)
    return slots | {"public": np.zeros_like(vec), "neighbourhood": np.zeros_like(vec)}


def compressed_mix(
    t: Transport,
    topology: Topology,
    compressor: Compressor,
    vec: Array,
    state: State,
    seed: int,
    step: int,
    rate: float = 1.0,
    tag: int = 0,
) -> Traffic:
    """Mix by messages of what has changed, in place; the mean stays, whatever compression loses.

    Every rank has a public copy p_i that its neighbours can follow: send q_i = C(x_i - p_i); p_i <- p_i + q_i;
    s_i <- s_i + sum_j W_ij q_j; x_i <- x_i + rate (s_i - p_i). The rougher the compressor, the lower the rate must be.
    (CHOCO; Koloskova et al. 2019, arXiv:1902.00340.) Errors: ValueError where the graph changes from step to step.
    """
    if not topology.static:
        raise ValueError(f"compressed gossip needs the same neighbours in every step; {topology} changes them")
    meter, (targets, sources) = Metered(t), topology(step, t.rank, t.size)
    own, weights = weights_of(topology, step, t.rank, t.size)
    rng = generator_for(compressor, seed, step, t.rank)
    message = compressor.message(vec - state["public"], state, rng)
    length = np.array([message.size])
    sends = [meter.isend(peer, tag, part) for peer in targets for part in (length, message)]
    compressor.add_into(state["public"], message)
    compressor.add_into(state["neighbourhood"], message, own)
    for source, weight in zip(sources, weights, strict=True):
        t.recv(source, tag, count := np.empty(1, np.int64))
        t.recv(source, tag, incoming := np.empty(int(count[0]), np.uint8))
        compressor.add_into(state["neighbourhood"], incoming, weight)
    for send in sends:
        send.wait()
    change = state["neighbourhood"] - state["public"]
    change *= rate
    vec += change
    return Traffic(meter.sent_bytes, len(targets) * vec.nbytes)


def consensus_distance(t: Transport, vec: Array, tag: int = 0) -> float:
    """Root mean square, over the ranks, of |x_i - mean x|; the same on all ranks. Costs one allreduce of vec (n,)."""
    mean = vec.astype(np.float64)
    allreduce(t, mean, "mean", tag=tag)
    mean -= vec
    square = np.array([np.sum(np.square(mean))])
    allreduce(t, square, "mean", "tree", tag=tag)
    return math.sqrt(square[0])
