"""A mixture once more, from docs/design/mixture.md: one draw at a time, in Python's unbounded integers and fractions.

It shares no code with headrace.planning: legs are found from position 0 on, a draw by counting all draws before it.
"""

import heapq
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

from planning import reference

UNIT = 1 << 126
WORD = 1 << 64
BLOCK = 256


def largest_remainder(numbers, total):
    whole = sum(numbers)
    exact = [Fraction(number * total, whole) for number in numbers]
    parts = [floor(share) for share in exact]
    order = sorted(range(len(parts)), key=lambda s: (parts[s] - exact[s], s))
    for s in order[: total - sum(parts)]:
        parts[s] += 1
    return parts


def shares_of(weights):
    top = max(weights)
    return largest_remainder([floor(Fraction(w) / Fraction(top) * (1 << 192)) for w in weights], UNIT)


class Tree:
    """Deals draws by weights; counts(n) says how many of the first n each source has."""

    def __init__(self, weights):
        self.size = len(weights)
        leaves = [("leaf", s) for s, weight in enumerate(weights) if weight]
        heap = [(weights[leaf[1]], number, leaf) for number, leaf in enumerate(leaves)]
        heapq.heapify(heap)
        made = len(leaves)
        while len(heap) > 1:
            a, _, left = heapq.heappop(heap)
            b, _, right = heapq.heappop(heap)
            share = min(max(floor(Fraction(a * WORD, a + b) + Fraction(1, 2)), 1), WORD - 1)
            heapq.heappush(heap, (a + b, made, ("split", share, left, right)))
            made += 1
        self.root = heap[0][2]

    def counts(self, n):
        counts = [0] * self.size
        todo = [(self.root, n)]
        while todo:
            node, draws = todo.pop()
            if node[0] == "leaf":
                counts[node[1]] = draws
            else:
                left = (draws * node[1] + WORD // 2) // WORD
                todo += [(node[2], left), (node[3], draws - left)]
        return counts

    def source(self, n):
        before, after = self.counts(n), self.counts(n + 1)
        (source,) = [s for s in range(self.size) if after[s] > before[s]]
        return source


def piecewise(points, means=None):
    """[(from position, shares of samples)] of weights that hold until the next ones do."""
    return [(position, in_samples(shares_of(weights), means)) for position, weights in points]


def in_samples(shares, means):
    """Shares of samples from shares of tokens, where means are given."""
    return shares_of([Fraction(share) / mean for share, mean in zip(shares, means, strict=True)]) if means else shares


def linear(points, means=None):
    """The same of weights that go over into one another, each ramp in 64 pieces."""
    pieces = []
    for (begin, first), (end, second) in pairwise(points):
        a, b = shares_of(first), shares_of(second)
        edges = sorted({begin + (end - begin) * j // 64 for j in range(65)})
        for low, high in pairwise(edges):
            into, whole = low + high - 2 * begin, 2 * (end - begin)
            middle = [x * (whole - into) + y * into for x, y in zip(a, b, strict=True)]
            pieces.append((low, in_samples(middle, means) if means else shares_of(middle)))
    return [*pieces, *piecewise(points[-1:], means)]


def quotas(targets, caps, total):
    counts = [max(0, floor(Fraction(t, UNIT))) for t in targets]
    counts = [k if cap is None else min(k, cap) for k, cap in zip(counts, caps, strict=True)]
    everyone = range(len(counts))
    while sum(counts) < total:
        free = [s for s in everyone if caps[s] is None or counts[s] < caps[s]]
        for s in sorted(free, key=lambda s: (counts[s] * UNIT - targets[s], s))[: total - sum(counts)]:
            counts[s] += 1
    while sum(counts) > total:
        free = [s for s in everyone if counts[s] > 0]
        for s in sorted(free, key=lambda s: (targets[s] - counts[s] * UNIT, s))[: sum(counts) - total]:
            counts[s] -= 1
    return counts


class Mixture:
    """pieces: [(from position, shares)]; draw(position) is (source, which of its draws), None behind the end."""

    def __init__(self, pieces, limits, epoch_size, seed, start=0, drawn=None):
        self.epoch_size, self.seed, self.start = epoch_size, seed, start
        drawn = list(drawn or [0] * len(limits))
        self.blocks = {}
        self.legs = []  # (start, end, counts before, tree)
        position, ahead, self.end = start, [0] * len(limits), None
        while True:
            number = max(k for k, piece in enumerate(pieces) if piece[0] <= position)
            shares = list(pieces[number][1])
            length = pieces[number + 1][0] - position if number + 1 < len(pieces) else None
            left = [None if limit is None else max(0, limit - c) for limit, c in zip(limits, drawn, strict=True)]
            gone = [s for s, rest in enumerate(left) if rest == 0 and shares[s]]
            for s in gone:
                shares[s] = 0
            if not any(shares):
                self.end = position
                return
            if gone:
                shares = largest_remainder(shares, UNIT)
            caps = [left[s] if share else 0 for s, share in enumerate(shares)]
            lengths = [] if length is None else [length]
            for s, share in enumerate(shares):
                if share and caps[s] is not None:
                    lengths.append(max(1, ceil(Fraction(caps[s] * UNIT - ahead[s], share))))
            if None not in caps:
                lengths.append(sum(caps))
            if not lengths or position + min(lengths) > 1 << 62:
                self.legs.append((position, None, list(drawn), Tree(shares)))
                return
            length = min(lengths)
            targets = [ahead[s] + length * share for s, share in enumerate(shares)]
            counts = quotas(targets, caps, length)
            self.legs.append((position, position + length, list(drawn), Tree(counts)))
            ahead = [t - k * UNIT for t, k in zip(targets, counts, strict=True)]
            if any(k and k == cap for k, cap in zip(counts, caps, strict=True)):
                ahead = [0] * len(counts)
            drawn = [c + k for c, k in zip(drawn, counts, strict=True)]
            position += length

    def root_source(self, number):
        (leg,) = [leg for leg in self.legs if leg[0] <= number and (leg[1] is None or number < leg[1])]
        return leg[3].source(number - leg[0])

    def root_counts(self, number):
        if number == self.start:
            return self.legs[0][2] if self.legs else [0]
        leg = max((leg for leg in self.legs if leg[0] < number), key=lambda leg: leg[0])
        return [c + k for c, k in zip(leg[2], leg[3].counts(number - leg[0]), strict=True)]

    def block(self, position):
        """The sources of the block that position is in, and where it begins."""
        epoch = position // self.epoch_size
        begin, end = max(epoch * self.epoch_size, self.start), (epoch + 1) * self.epoch_size
        if self.end is not None:
            end = min(end, self.end)
        start = begin + (position - begin) // BLOCK * BLOCK
        if start not in self.blocks:
            seed = reference.derive_seed(self.seed, "mixture")
            numbers = range(start, min(start + BLOCK, end))
            listed = sorted(self.root_source(number) for number in numbers)
            moved = [reference.permuted_in_block(n - begin, end - begin, BLOCK, seed, epoch) for n in numbers]
            self.blocks[start] = [listed[number + begin - start] for number in moved]
        return self.blocks[start], start

    def draw(self, position):
        if self.end is not None and position >= self.end:
            return None
        sources, start = self.block(position)
        source = sources[position - start]
        return source, self.root_counts(start)[source] + sources[: position - start].count(source)
