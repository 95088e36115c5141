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

import numpy as np
from numpy.typing import NDArray

from headrace.planning.permutation import Words

__all__ = ["Splits"]

_WORD = 1 << 64
_HALF = 1 << 63
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


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
        self._child_nodes = np.array(self._children, np.int64).reshape(-1, 2)

    def draws(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source behind each of these draws (0..2^62), and which of its own draws it is; shape (n,) both."""
        number = len(self.sources)
        left_over = numbers.astype(np.uint64)
        if number == 1:
            return np.full(len(numbers), self.sources[0], np.int64), left_over.view(np.int64)
        draws = np.empty(len(numbers), np.int64)
        leaves = np.empty(len(numbers), np.int64)
        places = np.arange(len(numbers))
        inner = np.full(len(numbers), len(self._shares) - 1, np.int64)
        while len(places):
            share = self._share_words[inner]
            left, low = _left_of(left_over, share)
            goes_left = low > ~share
            left_over = np.where(goes_left, left, left_over - left)
            children = self._child_nodes[inner]
            inner = np.where(goes_left, children[:, 0], children[:, 1]) - number
            at_leaf = inner < 0
            if at_leaf.any():
                arrived = places[at_leaf]
                draws[arrived] = left_over[at_leaf].view(np.int64)
                leaves[arrived] = inner[at_leaf] + number
                below = ~at_leaf
                places, inner, left_over = places[below], inner[below], left_over[below]
        return np.array(self.sources, np.int64)[leaves], draws

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
        """The draw of all that is this draw of source (which must have weight): the inverse of draws()."""
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


def _left_of(numbers: Words, shares: Words) -> tuple[Words, Words]:
    """The high and low words of numbers * shares + 2^63, a number of 128 bits."""
    n_high, n_low = numbers >> _32, numbers & _LOW
    s_high, s_low = shares >> _32, shares & _LOW
    low = n_low * s_low
    cross, other = n_low * s_high, n_high * s_low
    middle = (low >> _32) + (cross & _LOW) + (other & _LOW)
    high = n_high * s_high + (cross >> _32) + (other >> _32) + (middle >> _32)
    low = (middle << _32) | (low & _LOW)
    high += low >> np.uint64(63)
    low += np.uint64(_HALF)
    return high, low
