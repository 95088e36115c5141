"""Which item each draw of a stream is: everything is seen before anything comes again.

    draw, endless    0 ... n-1 | n ... 2n-1 | ...        a pass through the n items of the stream each

Shuffled, each pass is in an order of its own; a pass and an epoch, of k draws, are two things, unless k is n. Without a
shuffle a pass is the stored order, and where an epoch has less than all items, k of n, it is so many parts of it:

    items       0 1 | 2 3 4 | 5 6 | 7 8 9                k = 4 rows of neighbours, as long as one another to within one
    column 0      1     3     5       8                  one item of each row: an epoch, spread over all items and in
    column 1    0         4     6   7                    stored order; which item of the row is random
    column 2            2             9                  what is left, of the longer rows; then the next pass
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning.blocks import permuted_in_blocks
from headrace.planning.permutation import ROUNDS, Words, derive_seed, mixed, walked
from headrace.planning.pools import PooledShuffle
from headrace.planning.shuffle import shuffled_each

__all__ = ["Shuffle", "StreamDraws", "StreamShards", "stored_order"]

_Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How a stream is shuffled: "global" is any item anywhere; "pooled" reads few shards at a time.

    Pools have pool_items items each, and there are so many lanes of them, read in turn. A stream that fits into one
    pool is shuffled globally. OptionError for an unknown scope, and for pools or lanes below 1.
    """

    scope: Literal["pooled", "global"] = "pooled"
    pool_items: int = 4_000_000
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.scope not in ("pooled", "global"):
            raise OptionError("shuffle", self.scope, "'pooled' or 'global'")
        for name in ("pool_items", "lanes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise OptionError(name, value, "at least 1")


@dataclass(frozen=True, slots=True, eq=False)
class StreamShards:
    """One stream: the items of each of its shards, shape (num_shards,), and how many rows an epoch has of it."""

    shard_items: Sequence[int] | _Int64s
    chosen: int


class StreamDraws:
    """The items of streams with these shards, of which an epoch has `chosen` rows each; fixed: the same in every epoch.

    The items of a stream in a fixed order are its draws 0 to chosen - 1, over again: shuffled anew each time, where
    anything is shuffled.
    """

    def __init__(
        self, shards: Sequence[_Int64s], chosen: Sequence[int], shuffle: Shuffle | None, seed: int, *, fixed: bool
    ) -> None:
        self._sizes = [int(items.sum()) for items in shards]
        self._shards, self._chosen = shards, chosen
        self._shuffle, self._seed, self._fixed = shuffle, seed, fixed
        self._pools: dict[int, PooledShuffle] = {}  # made at first use, of pure functions

    def items(self, streams: _Int64s, draws: _Int64s) -> _Int64s:
        """The item that each of these draws is, counted in its stream; shape (n,), which is not empty."""
        first = int(streams[0])
        if (streams == first).all():
            return self._of_each(draws, [0, len(draws)], [first])
        by_stream = np.argsort(streams, kind="stable")
        listed = streams[by_stream]
        begins = np.flatnonzero(np.diff(listed, prepend=-1))
        out = np.empty(len(draws), np.int64)
        out[by_stream] = self._of_each(draws[by_stream], [*begins.tolist(), len(draws)], listed[begins].tolist())
        return out

    def _of_each(self, draws: _Int64s, bounds: Sequence[int], streams: Sequence[int]) -> _Int64s:
        """The items of draws[bounds[k] : bounds[k + 1]], which are of streams[k]."""
        together = [k for k, stream in enumerate(streams) if self._is_global(stream)]
        if len(together) == len(streams):
            return self._in_all(draws, bounds, streams)
        out = np.empty(len(draws), np.int64)
        for k, stream in enumerate(streams):
            if not self._is_global(stream):
                out[bounds[k] : bounds[k + 1]] = self._alone(draws[bounds[k] : bounds[k + 1]], stream)
        if together:
            places = np.concatenate([np.arange(bounds[k], bounds[k + 1]) for k in together])
            counts = [bounds[k + 1] - bounds[k] for k in together]
            starts = np.cumsum([0, *counts]).tolist()
            out[places] = self._in_all(draws[places], starts, [streams[k] for k in together])
        return out

    def _is_global(self, stream: int) -> bool:
        shuffle = self._shuffle
        return shuffle is not None and (shuffle.scope == "global" or self._sizes[stream] <= shuffle.pool_items)

    def _in_all(self, draws: _Int64s, bounds: Sequence[int], streams: Sequence[int]) -> _Int64s:
        """The items in global orders: thousands of streams at once."""
        seeds = [self._seed_of(stream) for stream in streams]
        lengths = np.diff(bounds)
        if self._fixed:
            again = [derive_seed(seed, "fixed") for seed in seeds]
            chosen = [self._chosen[stream] for stream in streams]
            draws = shuffled_each(draws, bounds, chosen, again) % np.repeat(np.array(chosen, np.int64), lengths)
        sizes = [self._sizes[stream] for stream in streams]
        return shuffled_each(draws, bounds, sizes, seeds) % np.repeat(np.array(sizes, np.int64), lengths)

    def _alone(self, draws: _Int64s, stream: int) -> _Int64s:
        """The items of one stream, as they are stored or in pools."""
        seed, chosen, shuffle = self._seed_of(stream), self._chosen[stream], self._shuffle
        if shuffle is None:
            return stored_order(draws % chosen if self._fixed else draws, self._sizes[stream], chosen, seed)
        if self._fixed:
            epochs, numbers = np.divmod(draws, chosen)
            pool = min(chosen, int(shuffle.pool_items) * int(shuffle.lanes))  # no further: few shards at a time
            draws = permuted_in_blocks(numbers, chosen, pool, derive_seed(seed, "fixed"), epochs)
        pools = self._pools.get(stream)
        if pools is None:
            pools = PooledShuffle(self._shards[stream], shuffle.pool_items, shuffle.lanes, seed)
            self._pools[stream] = pools
        return pools(draws) % pools.num_items

    def _seed_of(self, stream: int) -> int:
        return derive_seed(self._seed, "stream", stream)


def stored_order(draws: _Int64s, num_items: int, chosen: int, seed: int) -> _Int64s:
    """The items of a stream of which an epoch has `chosen` draws, in stored order as the head of this file draws it.

    Every epoch's draws rise, and begin anew twice at most; not at all where num_items is a multiple of chosen.
    """
    passes, numbers = np.divmod(draws, num_items)
    if chosen >= num_items:
        return numbers
    length, longer = divmod(num_items, chosen)  # of each row; how many rows have one item more
    columns, rows = np.divmod(numbers, chosen)
    if len(of_longer := np.flatnonzero(columns == length)):  # row k of the last column is the k-th longer one
        rows[of_longer] = _quotients(rows[of_longer] + 1, chosen, longer, up=True) - 1
    before = _quotients(rows, longer, chosen)  # longer rows before each; they are spread evenly
    lengths = length + _quotients(rows + 1, longer, chosen) - before
    places = np.empty_like(rows)
    keys = mixed(rows.view(np.uint64), mixed(passes.view(np.uint64), np.uint64(derive_seed(seed, "rows"))))
    for size in (length, length + 1):
        of_size = np.flatnonzero(lengths == size)
        if len(of_size):
            places[of_size] = _permuted(columns[of_size].view(np.uint64), size, keys[of_size]).view(np.int64)
    items: _Int64s = rows * length + before + places
    return items


def _permuted(numbers: Words, size: int, keys: Words) -> Words:
    """The numbers, all below size, each by a permutation of range(size) that has a key of its own."""
    *rounds, turn = [mixed(np.full(1, number, np.uint64), keys) for number in range(ROUNDS + 1)]
    # On few items the network prefers some to others by a few parts in a hundred; turned, each is as likely.
    return (walked(numbers, size, rounds, inverse=False) + turn % np.uint64(size)) % np.uint64(size)


def _quotients(numbers: _Int64s, times: int, divisor: int, *, up: bool = False) -> _Int64s:
    """numbers * times / divisor, rounded down or up; the numbers are at most divisor."""
    if divisor * times >= 1 << 63:  # beyond three billion rows an epoch: in Python's integers
        numbers = numbers.astype(object)
    products = numbers * times
    return (-(-products // divisor) if up else products // divisor).astype(np.int64)
