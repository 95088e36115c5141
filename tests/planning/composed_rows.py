"""Views whose items are rows, once more: one window, one document and one row at a time, in plain Python.

A node has `windows`, and `rows(epoch, window)`: the rows of a window in their order. A row of Packed is a list of
(endless position in the base, start, stop).
"""

import bisect
import itertools
from dataclasses import dataclass
from functools import cached_property

from planning import reference
from planning.composed_reference import table


class Windowed:
    """Rows that are made a window of the base's positions at a time; the last window takes the rest."""

    @property
    def windows(self):
        return max(1, self.base.n // self.window) if self.base.n else 0

    @cached_property
    def made(self):
        return {}

    def rows(self, epoch, window):
        if (epoch, window) not in self.made:
            begin = epoch * self.base.n + window * self.window
            last = window == self.windows - 1
            end = (epoch + 1) * self.base.n if last else begin + self.window
            positions = list(range(begin, end))
            self.made[epoch, window] = self.planned(positions, [self.base.tokens(p) for p in positions], epoch, window)
        return self.made[epoch, window]

    def epoch(self, number):
        """All rows of an epoch."""
        return [row for window in range(self.windows) for row in self.rows(number, window)]

    @property
    def leaves(self):
        return self.base.leaves


@dataclass(frozen=True, eq=False)
class Packed(Windowed):
    base: object
    capacity: int
    window: int
    strategy: str = "best_fit"
    long: str = "split"
    seed: int = 0

    def planned(self, positions, lengths, epoch, window):
        documents = [
            (position, length)
            for position, length in zip(positions, lengths, strict=True)
            if length and (length <= self.capacity or self.long == "split")
        ]
        if self.strategy == "concat":
            return concatenated(documents, self.capacity)
        pieces = [
            (position, start, min(start + self.capacity, length))
            for position, length in documents
            for start in range(0, length, self.capacity)
        ]
        if self.strategy == "best_fit":
            pieces.sort(key=lambda piece: piece[1] - piece[2])  # stable: of equal ones the first comes first
        rows = self.fitted(pieces)
        seed = reference.derive_seed(self.seed, "pack", epoch, window)
        return [sorted(rows[number]) for number in table(len(rows), seed)]

    def fitted(self, pieces):
        return (
            best_fitted(pieces, self.capacity) if self.strategy == "best_fit" else first_fitted(pieces, self.capacity)
        )


def best_fitted(pieces, capacity):
    """Each into the row with the least room that is enough; of equal rooms, the one that a row has had for longest."""
    rows, rooms = [], []  # rooms: (room, since, row) of each row, in this order
    for time, piece in enumerate(pieces):
        size = piece[2] - piece[1]
        place = bisect.bisect(rooms, (size,))
        if place == len(rooms):
            room, row = capacity, len(rows)
            rows.append([])
        else:
            room, _, row = rooms.pop(place)
        rows[row].append(piece)
        bisect.insort(rooms, (room - size, time, row))
    return rows


def first_fitted(pieces, capacity):
    rows, rooms = [], []
    for piece in pieces:
        size = piece[2] - piece[1]
        row = next((row for row, room in enumerate(rooms) if room >= size), len(rows))
        if row == len(rows):
            rows.append([])
            rooms.append(capacity)
        rows[row].append(piece)
        rooms[row] -= size
    return rows


def concatenated(documents, capacity):
    rows, room = [], 0
    for position, length in documents:
        start = 0
        while start < length:
            if room == 0:
                rows.append([])
                room = capacity
            stop = min(length, start + room)
            rows[-1].append((position, start, stop))
            room -= stop - start
            start = stop
    return rows


@dataclass(frozen=True, eq=False)
class TokenBudget(Windowed):
    """A row is a batch: a list of endless positions in the base."""

    base: object
    max_tokens: int
    together: int
    window: int
    padded: bool = True
    cost: tuple = (1, 0)
    long: str = "drop"
    most: int | None = None
    seed: int = 0

    def planned(self, positions, lengths, epoch, window):
        kept = [k for k, length in enumerate(lengths) if length <= self.max_tokens or self.long == "alone"]
        kept.sort(key=lambda k: -max(1, lengths[k]))
        sizes = [max(1, lengths[k]) for k in kept]
        units = self.units(sizes)
        batches = self.cut(sizes) if self.padded else self.dealt(sizes, units)
        costs = [(units[batch[0]] * len(batch) if batch else 0) for batch in batches]
        if not self.padded:
            costs = [sum(units[k] for k in batch) for batch in batches]
        seed = reference.derive_seed(self.seed, "window", epoch, window)
        by_cost = sorted(range(len(batches)), key=lambda number: -costs[number])
        rank = table(len(batches), reference.derive_seed(seed, "batches"))
        rows = []
        for step in table(len(batches) // self.together, reference.derive_seed(seed, "steps")):
            places = range(step * self.together, (step + 1) * self.together)
            rows += [by_cost[place] for place in sorted(places, key=rank.__getitem__)]
        return [[positions[kept[k]] for k in batches[row]] for row in rows]

    def units(self, sizes):
        """What each sample costs, as an integer: in 2^38ths of the dearest where the cost is not linear."""
        if self.cost[1] == 0 or not sizes:
            return sizes
        linear, square = (one / max(self.cost) for one in self.cost)
        costs = [size * (size * square + linear) for size in sizes]
        return [int(cost / costs[0] * 2.0**38) + 1 for cost in costs]

    def cut(self, sizes):
        def greedy(begin, tokens):
            batches = []
            while begin < len(sizes):
                count = max(1, min(tokens // sizes[begin], self.most or len(sizes)))
                batches.append(list(range(begin, min(begin + count, len(sizes)))))
                begin += count
            return batches

        wanted = -(-len(greedy(0, self.max_tokens)) // self.together) * self.together
        if wanted >= len(sizes):
            return [[k] for k in range(len(sizes))] + [[] for _ in range(wanted - len(sizes))]
        tokens = next(tokens for tokens in itertools.count(0) if len(greedy(0, tokens)) <= wanted)
        whole = greedy(0, tokens)
        for kept in range(len(whole) + 1):
            begin = whole[kept][0] if kept < len(whole) else len(sizes)
            batches = whole[:kept] + greedy(begin, tokens - 1)
            if len(batches) <= wanted:
                return batches
        raise AssertionError(sizes)

    def dealt(self, sizes, units):
        alone = sum(size > self.max_tokens for size in sizes)
        rest = sizes[alone:]
        at_least = max(
            -(-sum(rest) // self.max_tokens),
            sum(size > self.max_tokens // 2 for size in rest),
            -(-len(rest) // (self.most or max(1, len(rest)))),
        )

        def fits(steps):
            for measure in (units, sizes):
                batches = self.deal(measure, sizes, alone, steps * self.together)
                if batches is not None:
                    return batches
            return None

        fewest = -(-(alone + at_least) // self.together)
        enough = -(-len(sizes) // self.together)
        steps, ahead = fewest, 1
        while fits(steps) is None:
            fewest, steps, ahead = steps + 1, min(steps + ahead, enough), 2 * ahead
        while fewest < steps:
            middle = (fewest + steps) // 2
            if fits(middle) is None:
                fewest = middle + 1
            else:
                steps = middle
        return fits(steps)

    def deal(self, measure, sizes, alone, num_batches):
        batches = [[k] for k in range(alone)] + [[] for _ in range(num_batches - alone)]
        loads = [0] * num_batches
        for k in range(alone, len(sizes)):
            able = [b for b in range(alone, num_batches) if self.most is None or len(batches[b]) < self.most]
            if not able:
                return None
            chosen = min(able, key=lambda b: loads[b])
            batches[chosen].append(k)
            loads[chosen] += measure[k]
            if sum(sizes[j] for j in batches[chosen]) > self.max_tokens:
                return None
        return batches
