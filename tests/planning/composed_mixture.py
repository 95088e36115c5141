"""A mixture once more: one position at a time, in Python's unbounded integers, from docs/design/mixture.md."""

import heapq
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from planning import reference
from planning.composed_reference import Leaf, epoch_seed, permuted

BLOCK = 256
UNIT = 1 << 126
RAMP = 64
MOST = 1 << 62


def exact(number):
    """The decimal number that was written."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def apportioned(numbers, total):
    """Integers that sum to total, in proportion: by largest remainder, of equal ones the first."""
    whole = sum(numbers)
    parts = [number * total // whole for number in numbers]
    remainder = [number * total % whole for number in numbers]
    for s in sorted(range(len(numbers)), key=lambda s: (-remainder[s], s))[: total - sum(parts)]:
        parts[s] += 1
    return parts


def shares_of(weights):
    largest = max(weights)
    return apportioned([int(Fraction(weight) / largest * (1 << 192)) for weight in weights], UNIT)


class Tree:
    """A Huffman tree of two-way splits, whose leaves are the sources with a weight."""

    def __init__(self, weights):
        heap = [(weight, s, s) for s, weight in enumerate(weights) if weight]
        heapq.heapify(heap)
        number = len(weights)
        while len(heap) > 1:
            a, _, left = heapq.heappop(heap)
            b, _, right = heapq.heappop(heap)
            factor = ((a << 65) + a + b) // (2 * (a + b))  # a / (a + b) in 2^-64, to the nearest
            factor = max(1, min((1 << 64) - 1, factor))
            heapq.heappush(heap, (a + b, number, (factor, left, right)))
            number += 1
        self.root = heap[0][2]

    def source(self, n):
        """Whose draw n is, and which one of its own."""
        node = self.root
        while isinstance(node, tuple):
            factor, left, right = node
            before, after = to_left(n, factor), to_left(n + 1, factor)
            node, n = (left, before) if after > before else (right, n - before)
        return node, n

    def number_of(self, source, draw, high):
        """The draw of all that is this draw of source, looked for below high."""
        low = 0
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.count(source, middle + 1) > draw else (middle + 1, high)
        return low

    def count(self, source, n):
        return self.counts(n).get(source, 0)

    def counts(self, n):
        counts, below = {}, [(self.root, n)]
        while below:
            node, n = below.pop()
            if isinstance(node, tuple):
                factor, left, right = node
                below += [(left, to_left(n, factor)), (right, n - to_left(n, factor))]
            else:
                counts[node] = n
        return counts


def to_left(n, factor):
    return (n * factor + (1 << 63)) >> 64


@dataclass(frozen=True)
class Leg:
    start: int
    end: int | None  # behind the last
    drawn: tuple
    tree: Tree

    def source(self, number):
        source, draw = self.tree.source(number - self.start)
        return source, self.drawn[source] + draw

    def counts(self, number):
        counts = self.tree.counts(number - self.start)
        return [before + counts.get(s, 0) for s, before in enumerate(self.drawn)]


@dataclass(frozen=True, eq=False)
class Mixed:
    """A mixture of nodes, named s0, s1, ...; weights and schedules as MixedDataset takes them, a number a node.

    One that was changed begins at position start, with so many draws of each source.
    """

    bases: tuple
    weights: tuple | None = None
    seed: int = 0
    schedule: tuple | None = None  # ((position, weights), ...)
    linear: bool = False
    unit: str = "samples"
    epoch_size: int | None = None
    exhausted: str = "repeat"
    max_epochs: int | tuple | None = None  # a tuple has None for sources without
    start: int = 0
    drawn: tuple | None = None

    @cached_property
    def points(self):
        if self.schedule is not None:
            points = [(position, [exact(w) for w in weights]) for position, weights in self.schedule]
        else:
            points = [(0, [base.n for base in self.bases] if self.weights is None else list(map(exact, self.weights)))]
        return [(position, shares_of(weights)) for position, weights in points]

    @cached_property
    def used(self):
        return [any(shares[s] for _, shares in self.points) for s in range(len(self.bases))]

    @cached_property
    def limits(self):
        most = self.max_epochs
        each = most if isinstance(most, tuple) else [most] * len(self.bases)
        return [
            None if k is None or not used else k * base.n
            for k, base, used in zip(each, self.bases, self.used, strict=True)
        ]

    def piece(self, position):
        """The shares at a position of the run, and where they end."""
        k = max(k for k, (begin, _) in enumerate(self.points) if begin <= position)
        begin, shares = self.points[k]
        end = self.points[k + 1][0] if k + 1 < len(self.points) else None
        if self.linear and end is not None:
            edges = sorted({begin + (end - begin) * piece // RAMP for piece in range(RAMP + 1)})
            after = next(edge for edge in edges if edge > position)
            into, whole = edges[edges.index(after) - 1] + after - 2 * begin, 2 * (end - begin)
            later = self.points[k + 1][1]
            shares, end = [a * (whole - into) + b * into for a, b in zip(shares, later, strict=True)], after
            if not self.divides:
                shares = shares_of(shares)
        if self.divides:
            shares = shares_of([w / self.mean(s) if w else 0 for s, w in enumerate(shares)])
        return shares, end

    @property
    def divides(self):
        """Whether weights are shares of tokens. Sizes are numbers of samples."""
        return self.unit == "tokens" and (self.weights is not None or self.schedule is not None)

    def mean(self, s):
        """The mean length of source s: of epoch 0, but of a mixture what whole epochs of its sources would give."""
        base = self.bases[s]
        if isinstance(base, Mixed):
            drawn = enumerate(base.counts(base.n))
            return sum((count * base.mean(k) for k, count in drawn if count), Fraction()) / base.n
        if isinstance(base, Leaf):
            return base.mean
        return Fraction(sum(base.tokens(position) for position in range(base.n)), base.n)

    @cached_property
    def legs(self):
        """All legs; the last one has no end, or ends where the order does."""
        legs, position = [], self.start
        drawn, ahead = list(self.drawn or [0] * len(self.bases)), [0] * len(self.bases)
        while True:
            shares, end = self.piece(position)
            rest = [None if limit is None else max(0, limit - k) for limit, k in zip(self.limits, drawn, strict=True)]
            if any(share and left == 0 for share, left in zip(shares, rest, strict=True)):
                shares = [0 if left == 0 else share for share, left in zip(shares, rest, strict=True)]
                if any(shares):
                    shares = apportioned(shares, UNIT)
            if not any(shares):
                return legs
            caps = [left if share else 0 for share, left in zip(shares, rest, strict=True)]
            lengths = [] if end is None else [end - position]
            lengths += [
                max(1, -((before - cap * UNIT) // share))
                for share, cap, before in zip(shares, caps, ahead, strict=True)
                if share and cap is not None
            ]
            if None not in caps:
                lengths.append(sum(caps))
            if not lengths or position + min(lengths) > MOST:
                return [*legs, Leg(position, None, tuple(drawn), Tree(shares))]
            length = min(lengths)
            targets = [before + length * share for before, share in zip(ahead, shares, strict=True)]
            counts = quotas(targets, caps, length)
            legs.append(Leg(position, position + length, tuple(drawn), Tree(counts)))
            position += length
            drawn = [k + now for k, now in zip(drawn, counts, strict=True)]
            ahead = [target - now * UNIT for target, now in zip(targets, counts, strict=True)]
            if any(now and now == cap for now, cap in zip(counts, caps, strict=True)):
                ahead = [0] * len(ahead)

    @property
    def end(self):
        """Where the order ends, None for never."""
        return self.legs[-1].end

    def leg(self, number):
        return next(leg for leg in self.legs if leg.end is None or number < leg.end)

    def wanted(self, s):
        """How many draws of source s are once through it."""
        return self.bases[s].n

    def through(self, s):
        """How many draws there are until source s has been drawn through once."""
        wanted = self.wanted(s)
        for leg in self.legs:
            if leg.end is None or leg.counts(leg.end)[s] >= wanted:
                return leg.start + leg.tree.number_of(s, wanted - 1 - leg.drawn[s], MOST) + 1
        raise AssertionError(s)

    @cached_property
    def n(self):
        if self.epoch_size is not None or not any(base.n for base in self.bases):
            return self.epoch_size or 0
        match self.exhausted:
            case "stop_first":
                return min(self.through(s) for s in range(len(self.bases)) if self.used[s])
            case "stop_all":
                return max(self.through(s) for s in range(len(self.bases)) if self.used[s])
        total = sum(base.n for base, used in zip(self.bases, self.used, strict=True) if used)
        return total if self.max_epochs is None or self.end is None else min(total, self.end)

    def counts(self, number):
        """How often each source was among the first so many draws."""
        leg = self.leg(number - 1) if number > self.start else self.legs[0]
        return leg.counts(number)

    @cached_property
    def blocks(self):
        return {}

    def draw(self, position):
        """The source at a position, and which of its draws it is."""
        first = max(position // self.n * self.n, self.start)  # blocks are counted from here
        begin = position - (position - first) % BLOCK
        if begin not in self.blocks:
            self.blocks[begin] = self.block(first, begin)
        return self.blocks[begin][position - begin]

    def block(self, first, begin):
        """The sources of a block are listed and permuted; the draws of each come in their order."""
        epoch = begin // self.n
        end = (epoch + 1) * self.n if self.end is None else min((epoch + 1) * self.n, self.end)
        seed = reference.derive_seed(self.seed, "mixture")
        drawn, found = self.counts(begin), []
        numbers = range(begin, min(begin + BLOCK, end))
        listed = sorted(self.leg(number).source(number)[0] for number in numbers)
        for position in numbers:
            place = first + reference.permuted_in_block(position - first, end - first, BLOCK, seed, epoch)
            source = listed[place - begin]
            found.append((source, drawn[source]))
            drawn[source] += 1
        return found

    @cached_property
    def seeds(self):
        return [reference.derive_seed(self.seed, "source", f"s{source}") for source in range(len(self.bases))]

    def below(self, position):
        """The source at a position, and its position there: a source without an order of its own is shuffled."""
        source, draw = self.draw(position)
        base = self.bases[source]
        if isinstance(base, Leaf):
            epoch, index = divmod(draw, base.n)
            draw = epoch * base.n + permuted(base.n, epoch_seed(self.seeds[source], epoch), index)
        return source, draw

    def place(self, position):
        source, draw = self.below(position)
        return self.bases[source].place(draw)

    def origin(self, position):
        source, draw = self.below(position)
        name, item = self.bases[source].origin(draw)
        return f"s{source}/{name}".rstrip("/"), item

    def tokens(self, position):
        source, draw = self.below(position)
        return self.bases[source].tokens(draw)

    @property
    def leaves(self):
        return [leaf for base in self.bases for leaf in base.leaves]


def quotas(targets, caps, total):
    """Whole numbers that sum to total: targets rounded down, and what is missing one each by largest remainder."""
    counts = [max(0, target // UNIT) for target in targets]
    counts = [count if cap is None else min(count, cap) for count, cap in zip(counts, caps, strict=True)]
    while missing := total - sum(counts):
        if missing > 0:
            free = [s for s, cap in enumerate(caps) if cap is None or counts[s] < cap]
            free.sort(key=lambda s: (counts[s] * UNIT - targets[s], s))
        else:
            free = [s for s, count in enumerate(counts) if count]
            free.sort(key=lambda s: (targets[s] - counts[s] * UNIT, s))
        for s in free[: abs(missing)]:
            counts[s] += 1 if missing > 0 else -1
    return counts
