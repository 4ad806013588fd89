"""What a layer costs, in closed form: operations, the longest chain of them, memory."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cost", "sums_of_products", "tree"]


@dataclass(frozen=True)
class Cost:
    """The cost of one sample's forward pass in evaluation (work and depth as in Ben-Nun & Hoefler 2019).

    madds: multiply-adds of products with weights and of scores; element-wise work counts as none.
    work: operations. Additions, multiplications, divisions, comparisons and elementary functions are one each, an
        activation is one for an entry whatever its formula. Taps on padding count as any others.
    depth: operations on the longest path of those that wait for each other: the time on as many processors as one
        likes. Sums and maxima are trees; a layer, or a step of a recurrence, begins when all that it reads is there.
        `work / depth` is how many processors can be busy on average.
    moved: numbers read and written if every layer reads its input and its parameters from memory, once, and writes
        its output there.
    parameters: numbers that the layer keeps. Both times the size of a number are bytes.
    """

    madds: int = 0
    work: int = 0
    depth: int = 0
    moved: int = 0
    parameters: int = 0

    def then(self, other: Cost) -> Cost:
        """This and, after it, the other."""
        return self._plus(other, self.depth + other.depth)

    def beside(self, other: Cost) -> Cost:
        """This and the other at the same time."""
        return self._plus(other, max(self.depth, other.depth))

    def times(self, n: int) -> Cost:
        """This n times at the same time."""
        return Cost(n * self.madds, n * self.work, self.depth, n * self.moved, n * self.parameters)

    def _plus(self, other: Cost, depth: int) -> Cost:
        return Cost(
            self.madds + other.madds,
            self.work + other.work,
            depth,
            self.moved + other.moved,
            self.parameters + other.parameters,
        )


def tree(n: int) -> int:
    """ceil(log2 n): the depth of a sum, or of a maximum, of n terms."""
    return max(n - 1, 0).bit_length()


def sums_of_products(outputs: int, terms: int, bias: bool) -> Cost:
    """`outputs` numbers, each the sum of `terms` products and, with a bias, of one number more; no memory counted."""
    return Cost(outputs * terms, outputs * (2 * terms - (not bias)), 1 + tree(terms + bias))
