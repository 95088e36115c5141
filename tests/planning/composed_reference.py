"""Every view once more: one position at a time, in plain Python integers and lists, from docs/design.

A node has `n`, the positions of an epoch, and answers for endless positions: `place(position)` is the id of the item
that stands there, `tokens(position)` its length. Nothing here is vectorised and no code of headrace takes part, so
that a slip in an array (an overflow, a dtype, a window's edge) shows as a difference. composed_mixture.py and
composed_rows.py have the mixture, and the views whose items are rows.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from planning import reference

LISTED = 10_000  # items at most that a test goes through one by one


@lru_cache(maxsize=4096)
def table(n, seed):
    """All items of Permutation(n, seed), in order."""
    if n <= 1024:
        return reference.whole_or_some(n, seed, range(n))
    return [reference.by_network(n, round_keys(seed), position) for position in range(n)]


@lru_cache(maxsize=4096)
def round_keys(seed):
    return [reference.derive_seed(seed, "round", number) for number in range(8)]


def permuted(n, seed, position):
    """reference.permuted; but a table is sorted once, and keys are derived once."""
    return table(n, seed)[position] if n <= 1024 else reference.by_network(n, round_keys(seed), position)


@lru_cache(maxsize=4096)
def epoch_seed(seed, epoch):
    return reference.derive_seed(seed, "shuffle", epoch)


@dataclass(frozen=True, eq=False)
class Leaf:
    """n items with the ids first, first + 1, ...; item i has length_of(first + i, longest, salt) tokens.

    kind says what the dataset of it is like: "ours" knows lengths and shards, "foreign" is a list-like thing that knows
    nothing else, "keyed" gives a sort key for each item, and "measured" is a foreign one with lengths beside it.
    """

    n: int
    first: int = 0
    longest: int = 9
    salt: int = 1
    kind: str = "ours"
    shards: int = 1

    @property
    def shard_items(self):
        """Items of each shard: later ones have more, and the first may have none."""
        cuts = [self.n * k * k // (self.shards * self.shards) for k in range(self.shards + 1)]
        return [end - begin for begin, end in itertools.pairwise(cuts)]

    def place(self, position):
        return self.first + position % self.n

    def origin(self, position):
        """The name of the item's source in a mixture, and its number there."""
        return "", position % self.n

    def tokens(self, position):
        return length_of(self.place(position), self.longest, self.salt)

    @property
    def mean(self):
        """The mean length; for many items what their dataset declares it to be."""
        if self.n > LISTED:
            return Fraction(self.longest, 2)
        return Fraction(sum(self.tokens(item) for item in range(self.n)), self.n)

    @cached_property
    def leaves(self):
        return [self]


def length_of(item, longest, salt):
    """A length in 0..longest that looks arbitrary, by arithmetic that arrays of int64 can do, too."""
    return (item % 1_000_003 * 7919 + salt * 104_729 + item // 1_000_003) % 1_000_033 % (longest + 1)


class Over:
    """A node over one other."""

    def place(self, position):
        return self.base.place(self.below(position))

    def origin(self, position):
        return self.base.origin(self.below(position))

    def tokens(self, position):
        return self.base.tokens(self.below(position))

    @property
    def leaves(self):
        return self.base.leaves


@dataclass(frozen=True, eq=False)
class Shuffled(Over):
    base: object
    seed: int

    @property
    def n(self):
        return self.base.n

    def below(self, position):
        epoch, index = divmod(position, self.n)
        return epoch * self.n + permuted(self.n, epoch_seed(self.seed, epoch), index)


@dataclass(frozen=True, eq=False)
class Pooled(Over):
    """A pooled shuffle of a leaf's shards."""

    base: object
    seed: int
    pool_items: int
    lanes: int = 1

    @property
    def n(self):
        return self.base.n

    def below(self, position):
        epoch, index = divmod(position, self.n)
        lanes = min(self.lanes, self.n)
        number, lane = divmod(index, lanes)
        items, longer = divmod(self.n, lanes)
        in_lane = items + (lane < longer)
        pools = reference.derive_seed(self.seed, "pools")
        number = reference.permuted_in_block(number, in_lane, self.pool_items, pools, epoch * lanes + lane)
        place = lane * items + min(lane, longer) + number
        sizes = self.base.shard_items
        for shard in table(len(sizes), reference.derive_seed(self.seed, "shards", epoch)):
            if place < sizes[shard]:
                return epoch * self.n + sum(sizes[:shard]) + place
            place -= sizes[shard]
        raise AssertionError(position)


@dataclass(frozen=True, eq=False)
class Selected(Over):
    """How "ids", "bitmap" and "exclude" are given; few are the positions that stay, or for "exclude" those that go."""

    base: object
    few: tuple
    how: str = "ids"

    @property
    def n(self):
        return self.base.n - len(self.few) if self.how == "exclude" else len(self.few)

    def below(self, position):
        epoch, index = divmod(position, self.n)
        if self.how != "exclude":
            return epoch * self.base.n + sorted(self.few)[index]
        for gone in sorted(self.few):
            index += gone <= index
        return epoch * self.base.n + index


@dataclass(frozen=True, eq=False)
class Sharded(Over):
    base: object
    total: int
    current: int
    mode: str
    padded: bool

    @property
    def chunk(self):
        return -(-self.base.n // self.total)

    @cached_property
    def n(self):
        if self.padded:
            return self.chunk
        if self.mode == "sequential":
            return max(0, -((self.current - self.base.n) // self.total))
        return min(self.chunk, max(0, self.base.n - self.chunk * self.current))

    def inside(self, index):
        if self.mode == "sequential":
            return index * self.total + self.current
        return self.chunk * self.current + index

    def below(self, position):
        epoch, index = divmod(position, self.n)
        return epoch * self.base.n + min(self.inside(index), self.base.n - 1)


@dataclass(frozen=True, eq=False)
class BufferSorted(Over):
    """Sorted by lengths, which is what the leaves' keys are too."""

    base: object
    buffer: int
    pack: int
    seed: int = 0

    @property
    def n(self):
        return self.base.n

    @cached_property
    def orders(self):
        return {}

    def below(self, position):
        epoch, index = divmod(position, self.n)
        window, place = divmod(index, self.buffer)
        begin = epoch * self.n + window * self.buffer
        if (epoch, window) not in self.orders:
            count = min(self.buffer, self.n - window * self.buffer)
            keys = [self.base.tokens(begin + k) for k in range(count)]
            self.orders[epoch, window] = buckets(keys, self.pack, reference.derive_seed(self.seed, "buckets", window))
        return begin + self.orders[epoch, window][place]


def buckets(keys, pack, seed):
    """The places in a window, by its keys: sorted, cut into packs, the packs permuted, and each inside."""
    ties = table(len(keys), reference.derive_seed(seed, "ties"))
    ordered = sorted(ties, key=keys.__getitem__)
    inside = reference.derive_seed(seed, "inside")
    packs = []
    for begin in range(0, len(keys), pack):
        ranks = range(begin, min(begin + pack, len(keys)))
        packs.append([ordered[rank] for rank in sorted(ranks, key=lambda rank: reference.mixed(rank, inside))])
    return [place for number in table(len(packs), reference.derive_seed(seed, "packs")) for place in packs[number]]
