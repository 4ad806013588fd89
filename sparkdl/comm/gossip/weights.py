"""With which weights ranks mix, and what follows from them: stochastic matrices, their checks, their spectral gap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from sparkdl.comm.collectives import allgatherv
from sparkdl.comm.gossip.base import Topology
from sparkdl.comm.transport.base import Array, Transport

__all__ = ["Rule", "Weights", "check_agreement", "check_topology", "mixing_matrix", "spectral_gap", "weights_of"]

Rule = Literal["metropolis", "column"]
"""metropolis: W_ij = 1 / max(d_i, d_j), d counting the rank itself, and W_ii what is left: doubly stochastic for
undirected graphs, and for directed ones in which all ranks have d - 1 sources and d - 1 targets. column: W_ij = 1 / d_j
with d_j - 1 targets: column stochastic for any graph."""


class Weights(NamedTuple):
    """One row of W: the rank's own weight, and that of each source, in the order of `Neighbours.sources`."""

    own: float
    sources: tuple[float, ...]


def weights_of(topology: Topology, step: int, rank: int, size: int, rule: Rule = "metropolis") -> Weights:
    """The weights with which `rank` takes in its own vector and those of its sources."""
    here = topology(step, rank, size)
    degree = 1 + len(here.targets)
    degrees = [1 + len(topology(step, source, size).targets) for source in here.sources]
    if rule == "column":
        return Weights(1 / degree, tuple(1 / d for d in degrees))
    sources = tuple(1 / max(degree, d) for d in degrees)
    return Weights(1 - sum(sources), sources)


def mixing_matrix(topology: Topology, size: int, step: int = 0, rule: Rule = "metropolis") -> Array:
    """W (size, size) of one step: x <- W x."""
    matrix = np.zeros((size, size))
    for rank in range(size):
        own, sources = weights_of(topology, step, rank, size, rule)
        matrix[rank, rank] = own
        matrix[rank, list(topology(step, rank, size).sources)] = sources
    return matrix


def spectral_gap(matrix: Array) -> float:
    """1 - rho, rho the second largest |eigenvalue| of W (P, P): per step, what ranks disagree on shrinks by rho.

    For a graph that changes, the product of the matrices of some steps tells for all of them. A lone rank has gap 1.
    """
    moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
    return float(1 - moduli[-2]) if moduli.size > 1 else 1.0


def check_topology(topology: Topology, size: int, steps: Iterable[int] = (0,), rule: Rule = "metropolis") -> None:
    """Raise ValueError, naming ranks, unless all lists agree and W is stochastic, doubly so for "metropolis"."""
    for step in steps:
        where = f"{topology} of {size} ranks, step {step}"
        everyone = [topology(step, rank, size) for rank in range(size)]
        for rank, (targets, sources) in enumerate(everyone):
            for peers in (targets, sources):
                if len(peers) != len({*peers} - {rank}) or not {*peers} <= set(range(size)):
                    raise ValueError(f"{where}: the neighbours {peers} of rank {rank} must be other ranks, each once")
            for target in targets:
                if rank not in everyone[target].sources:
                    raise ValueError(f"{where}: rank {rank} sends to rank {target}, which does not expect it")
            for source in sources:
                if rank not in everyone[source].targets:
                    raise ValueError(f"{where}: rank {rank} expects rank {source}, which does not send to it")
        matrix = mixing_matrix(topology, size, step, rule)
        for axis, sums in enumerate((matrix.sum(axis=1), matrix.sum(axis=0))):
            wrong = np.flatnonzero(np.abs(sums - 1) > 1e-12)
            if wrong.size and (axis or rule == "metropolis"):
                rank, kind = wrong[0], ("row", "column")[axis]
                raise ValueError(
                    f"{where}, {rule} weights: the {kind} of rank {rank} sums to {sums[rank]:.6g}, not 1. "
                    "Use push-sum for a graph that is not balanced."
                )
        if (matrix < -1e-15).any():
            raise ValueError(f"{where}, {rule} weights: some are negative")


def check_agreement(t: Transport, topology: Topology, step: int, tag: int = 0) -> None:
    """Raise ValueError unless those that will send to this rank, by their own account, are those it expects.

    All ranks call this at once, before they mix: what differs in their settings shows here, not as a wait for nothing.
    """
    here = topology(step, t.rank, t.size)
    told = allgatherv(t, np.array(here.targets, np.int64), tag)
    senders = {rank for rank, targets in enumerate(told) if t.rank in targets}
    if senders != {*here.sources}:
        raise ValueError(
            f"rank {t.rank}, step {step}: {topology} expects messages from {sorted(here.sources)}, but "
            f"{sorted(senders)} mean to send. All ranks must have the same topology and seed."
        )
