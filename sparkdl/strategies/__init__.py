"""Modes of training: how local gradients become the next parameters."""

from sparkdl.strategies.base import Strategy
from sparkdl.strategies.tree_aggregate import TreeAggregate

__all__ = ["STRATEGIES", "Strategy", "TreeAggregate"]

# What text in a configuration may name.
STRATEGIES: dict[str, type[Strategy]] = {"tree_aggregate": TreeAggregate}
