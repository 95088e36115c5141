"""A shuffle that reads few shards at a time: pools of items, from shards in random order, in lanes read in turn.

    shards, permuted       | 5      | 2        | 7   | 0      | 4     | 1       |     anew each epoch
    lanes                  |--- lane 0 ----------|--- lane 1 -------------------|     as many items each, to within one
    pools                  |  pool 0  |  pool 1  |  pool 0  |  pool 1   |             pool_items; the last is shorter
                              items are permuted inside a pool

    position in the epoch     0       1       2       3       4  ...                  position i: lane i mod lanes
    is item k of its lane     lane 0  lane 1  lane 0  lane 1  lane 0 ...              k = i // lanes

At any moment items come from the shards of one pool a lane. A shard on the border of two lanes is read by both.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning.blocks import permuted_in_blocks
from headrace.planning.permutation import Permutation, derive_seed
from headrace.planning.shuffle import checked_positions

__all__ = ["PooledShuffle"]

_Numbers = NDArray[np.int64]
_EPOCHS_KEPT = 4


class _Epoch(NamedTuple):
    """The shards of an epoch in its order."""

    starts: _Numbers  # (num_shards + 1,) items before the k-th shard of the order, and all
    order: _Numbers  # (num_shards,) which shard is the k-th
    rank: _Numbers  # (num_shards,) at which k a shard stands


class PooledShuffle:
    """shuffle(positions) gives the base's endless positions, each item once an epoch; shuffle.inverse undoes it.

    shard_items has shape (num_shards,): the items of each shard, empty ones allowed. More lanes than items are as many
    lanes as items. An epoch costs three integers a shard, made at its first use; a position about 0.2 microseconds.
    OptionError for pools of no items, and for no lanes.
    """

    def __init__(self, shard_items: _Numbers, pool_items: int, lanes: int, seed: int) -> None:
        self.shard_items = np.asarray(shard_items, np.int64)
        if pool_items < 1:
            raise OptionError("pool_items", pool_items, "at least 1")
        if lanes < 1:
            raise OptionError("lanes", lanes, "at least 1")
        self.pool_items, self.lanes, self.seed = int(pool_items), int(lanes), int(seed)
        self.num_items = int(self.shard_items.sum())
        self._shard_starts = np.concatenate([np.zeros(1, np.int64), self.shard_items.cumsum()])
        self._num_lanes = max(1, min(self.lanes, self.num_items))
        self._lane_items, self._longer_lanes = divmod(self.num_items, self._num_lanes)
        self._epoch = lru_cache(maxsize=_EPOCHS_KEPT)(self._ordered)  # of a pure function

    def __reduce__(self) -> tuple[Any, ...]:
        return PooledShuffle, (self.shard_items, self.pool_items, self.lanes, self.seed)

    def __call__(self, positions: _Numbers) -> _Numbers:
        """The base's endless positions behind these endless positions, of the same shape.

        IndexError and TypeError as shuffled() of planning has them.
        """
        return self._by_epoch(positions, self._items)

    def inverse(self, items: _Numbers) -> _Numbers:
        """The endless positions at which these endless positions of the base stand."""
        return self._by_epoch(items, self._indices)

    def _by_epoch(self, positions: _Numbers, find: Callable[[int, _Numbers], _Numbers]) -> _Numbers:
        checked = checked_positions(positions, self.num_items)
        out = np.empty(checked.shape, np.int64)
        if checked.size == 0:
            return out
        epochs, numbers = np.divmod(checked, self.num_items)
        first = int(epochs.flat[0])
        if (epochs == first).all():
            return first * self.num_items + find(first, numbers)
        for epoch in sorted(set(epochs.ravel().tolist())):
            chosen = epochs == epoch
            out[chosen] = epoch * self.num_items + find(epoch, numbers[chosen])
        return out

    def _items(self, epoch: int, indices: _Numbers) -> _Numbers:
        """The items at these indices of an epoch."""
        numbers, lanes = np.divmod(indices, self._num_lanes)
        places = self._lane_starts(lanes) + self._in_pools(epoch, lanes, numbers, inverse=False)
        shards = self._epoch(epoch)
        ranks = np.searchsorted(shards.starts, places, side="right") - 1  # empty shards are stepped over
        items: _Numbers = self._shard_starts[shards.order[ranks]] + (places - shards.starts[ranks])
        return items

    def _indices(self, epoch: int, items: _Numbers) -> _Numbers:
        """The indices of these items in an epoch."""
        shards = self._epoch(epoch)
        homes = np.searchsorted(self._shard_starts, items, side="right") - 1
        places = shards.starts[shards.rank[homes]] + (items - self._shard_starts[homes])
        size = self._lane_items
        longer = self._longer_lanes * (size + 1)  # items of the lanes that have one more
        lanes = np.where(places < longer, places // (size + 1), self._longer_lanes + (places - longer) // max(size, 1))
        numbers = self._in_pools(epoch, lanes, places - self._lane_starts(lanes), inverse=True)
        indices: _Numbers = numbers * self._num_lanes + lanes
        return indices

    def _lane_starts(self, lanes: _Numbers) -> _Numbers:
        return lanes * self._lane_items + np.minimum(lanes, self._longer_lanes)

    def _in_pools(self, epoch: int, lanes: _Numbers, numbers: _Numbers, *, inverse: bool) -> _Numbers:
        """The numbers in their lanes, permuted inside pools; each lane of each epoch has permutations of its own."""
        seed = derive_seed(self.seed, "pools")
        keys = epoch * self._num_lanes + lanes
        if self._longer_lanes == 0:
            return permuted_in_blocks(numbers, self._lane_items, self.pool_items, seed, keys, inverse=inverse)
        out = np.empty(numbers.shape, np.int64)
        longer = lanes < self._longer_lanes
        for chosen, size in ((longer, self._lane_items + 1), (~longer, self._lane_items)):
            out[chosen] = permuted_in_blocks(
                numbers[chosen], size, self.pool_items, seed, keys[chosen], inverse=inverse
            )
        return out

    def _ordered(self, epoch: int) -> _Epoch:
        numbers = np.arange(len(self.shard_items), dtype=np.int64)
        order = Permutation(len(numbers), derive_seed(self.seed, "shards", epoch))(numbers)
        starts = np.concatenate([np.zeros(1, np.int64), self.shard_items[order].cumsum()])
        rank = np.empty_like(order)
        rank[order] = numbers
        return _Epoch(starts, order, rank)
