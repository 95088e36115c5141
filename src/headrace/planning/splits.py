"""Draws dealt to sources in exact proportions: a tree of splits in two, each a line of integer arithmetic.

                      draws 0 1 2 3 ...            the root has them all
                     /                 \\
          left(n) of the first n      n - left(n)  each node deals its own draws to its two children:
            /        \\                             left(n) = floor(n * a / (a + b) + 1/2), a and b their weights
        source 2   source 0

Draw n goes left if left(n + 1) > left(n); it is then draw left(n) of the left child, else draw n - left(n) of the
right one. So a draw finds its source by a walk down the tree, and a source's draw its place by a walk up: no state, no
search. Counts only grow, and sum up.

The tree is Huffman's: the two lightest nodes are joined until one is left. There the shares of any two steps in a row
multiply to at most 1/2: a grandchild was among the two lightest when it was joined, so it weighs no more than its
parent's sibling, which was there or was made later of heavier ones. A split rounds by at most 1/2, and passes on the
error from above times its share; so a source is off its share by at most 1/2 (1 + 1 + 1/2 + 1/2 + 1/4 + ...) = 2 draws,
and less in fact (under 1 nearly always), whatever the number of sources.

A share is held in 64 bits: it is exact to 2^-65, which over 2^62 draws is an eighth of a draw. With whole numbers that
sum to n for weights, the counts of n draws are exactly those.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.planning.permutation import Words

__all__ = ["Ranges", "Splits"]

_WORD = 1 << 64
_HALF = 1 << 63
_LOW = np.uint64(0xFFFFFFFF)
_31, _32, _ONE = np.uint64(31), np.uint64(32), np.uint64(1)


class Ranges(NamedTuple):
    """Draws of one source each, that are among those of ranges of draws."""

    of: NDArray[np.int64]  # (m,) the range
    sources: NDArray[np.int64]  # (m,)
    first: NDArray[np.int64]  # (m,) which of the source's draws the first one is
    counts: NDArray[np.int64]  # (m,) how many there are, at least 1


class Splits:
    """Endless draws among sources of these weights (integers of any size, of which some are above 0)."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.sources = [source for source, weight in enumerate(weights) if weight]
        self._num_sources = len(weights)
        number = len(self.sources)
        self._shares: list[int] = []  # of the left child, in 2^-64, for each inner node in the order made
        self._children: list[tuple[int, int]] = []  # nodes: leaves are 0..number-1, then inner ones
        self._parents = [(-1, 0)] * (2 * number - 1)  # (inner node, 1 if to the right)
        heap = [(weights[source], leaf) for leaf, source in enumerate(self.sources)]
        heapq.heapify(heap)
        while len(heap) > 1:
            left_weight, left = heapq.heappop(heap)
            right_weight, right = heap[0]
            inner = len(self._shares)
            both = left_weight + right_weight
            self._shares.append(min(max((2 * left_weight * _WORD + both) // (2 * both), 1), _WORD - 1))
            self._children.append((left, right))
            self._parents[left], self._parents[right] = (inner, 0), (inner, 1)
            heapq.heapreplace(heap, (both, number + inner))
        self._leaf_of = {source: leaf for leaf, source in enumerate(self.sources)}
        self._share_words = np.array(self._shares, np.uint64)
        self._source_numbers = np.array(self.sources, np.int64)
        self._child_nodes = np.array(self._children, np.int64).reshape(-1, 2)

    def ranges(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Ranges:
        """What the draws begins[k] to ends[k] (exclusive, at most 2^62) are, for each k, which must not be empty.

        A source is there once for each range that has it, in no order. It is a walk down with all ranges at once.
        """
        number = len(self.sources)
        of = np.arange(len(begins))
        low, high = begins.astype(np.uint64), ends.astype(np.uint64)
        if number == 1:
            return Ranges(
                of, np.full(len(of), self.sources[0], np.int64), low.view(np.int64), (high - low).view(np.int64)
            )
        inner = np.full(len(of), len(self._shares) - 1, np.int64)
        found = []
        while len(of):
            share = self._share_words[inner]
            left_low, left_high = _left_of(low, share), _left_of(high, share)
            nodes = self._child_nodes[inner].T.ravel()
            low, high = np.concatenate([left_low, low - left_low]), np.concatenate([left_high, high - left_high])
            of = np.concatenate([of, of])
            at_leaf = np.flatnonzero((nodes < number) & (low < high))
            found.append((of[at_leaf], nodes[at_leaf], low[at_leaf], high[at_leaf]))
            below = np.flatnonzero((nodes >= number) & (low < high))
            of, low, high, inner = of[below], low[below], high[below], nodes[below] - number
        of, leaves, low, high = (np.concatenate(column) for column in zip(*found, strict=True))
        return Ranges(of, self._source_numbers[leaves], low.view(np.int64), (high - low).view(np.int64))

    def counts(self, number: int) -> list[int]:
        """How many of the first `number` draws each source has, those without weight too."""
        nodes = [0] * len(self._parents)
        nodes[-1] = number
        leaves = len(self.sources)
        for inner in range(len(self._shares) - 1, -1, -1):
            own = nodes[leaves + inner]
            left = (own * self._shares[inner] + _HALF) >> 64
            left_child, right_child = self._children[inner]
            nodes[left_child], nodes[right_child] = left, own - left
        counts = [0] * self._num_sources
        for leaf, source in enumerate(self.sources):
            counts[source] = nodes[leaf]
        return counts

    def number_of(self, source: int, draw: int) -> int:
        """The draw of all that is this draw of source (which must have weight): the way back up."""
        node = self._leaf_of[source]
        while (parent := self._parents[node])[0] >= 0:
            inner, to_the_right = parent
            share = self._shares[inner]
            if to_the_right:
                draw = (draw * _WORD + _HALF) // (_WORD - share)
            else:
                draw = (draw * _WORD + _HALF - 1) // share
            node = len(self.sources) + inner
        return draw


def _left_of(numbers: Words, shares: Words) -> Words:
    """How many of so many draws go left: the high word of numbers * shares + 2^63, a number of 128 bits."""
    n_high, n_low = numbers >> _32, numbers & _LOW
    s_high, s_low = shares >> _32, shares & _LOW
    low = n_low * s_low
    cross, other = n_low * s_high, n_high * s_low
    middle = (low >> _32) + (cross & _LOW) + (other & _LOW)
    high: Words = n_high * s_high + (cross >> _32) + (other >> _32) + (middle >> _32)
    high += (middle >> _31) & _ONE  # 2^63 carries into the high word if the low word's first bit is set
    return high
