"""How far a shuffle is from an ideal one, and how much it fetches: two numbers for each order, to choose pools by.

distance    1 - (mean distance in storage between two samples of one global batch) / (that of an ideal shuffle)
            0 is as good as ideal; 1 is no shuffle: a batch is a run of neighbours. Pools of k shards give about 1 / k
fetched     bytes an epoch of a reader that fetches whole shards and keeps those used last, up to so many bytes

Both are found from located positions alone, a sample of them from several epochs: in seconds at any size. The distance
has an error of about 0.003, and of some hundredths where an epoch has but a few pools.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.planning import Permutation, derive_seed, shuffled
from headrace.planning.pools import PooledShuffle

__all__ = ["Layout", "Quality", "shuffle_distance", "shuffle_qualities"]

_Int64s = NDArray[np.int64]

_PAIRS = 1 << 17
_EPOCHS = 8
_READS = 1 << 18  # of the model that is read through; more where there are more shards
_POOLS = (1, 4, 16, 64, 256)  # shards


@dataclass(frozen=True)
class Layout:
    """What is shuffled and who reads it. Shards have bytes in proportion to their items."""

    shard_items: _Int64s  # (num_shards,)
    num_bytes: int
    cache_bytes: int
    global_batch_size: int

    @property
    def num_items(self) -> int:
        """Items of all shards."""
        return int(self.shard_items.sum())


@dataclass(frozen=True)
class Quality:
    """What an order is worth. order is "none", "pooled" or "global"; pool_items is None but for pools."""

    order: str
    pool_items: int | None
    distance: float
    fetched_bytes: int


def shuffle_qualities(layout: Layout, pools: Sequence[int] = (), *, lanes: int = 1, seed: int = 0) -> list[Quality]:
    """The qualities of no shuffle, of pools of so many items each, and of a global shuffle, in this order.

    pools are by default those of 1, 4, 16, ... mean shards, up to half of them. [] for fewer than two items.
    """
    number = layout.num_items
    if number < 2:
        return []
    if not pools:
        num_shards = int((layout.shard_items > 0).sum())
        pools = [-(-number * shards // num_shards) for shards in _POOLS if 2 * shards <= num_shards]
    found = [_quality(layout, "none", None, lanes, seed)]
    found += [_quality(layout, "pooled", pool_items, lanes, seed) for pool_items in pools]
    return [*found, _quality(layout, "global", None, lanes, seed)]


def shuffle_distance(items: _Int64s, num_items: int) -> float:
    """The distance of an order from an ideal shuffle. items has shape (pairs, 2): pairs of one batch."""
    apart = float(np.abs(items[:, 0] - items[:, 1]).mean())
    return min(1.0, max(0.0, 1 - apart / ((num_items + 1) / 3)))  # (n + 1) / 3: two different numbers of range(n)


def _quality(layout: Layout, order: str, pool_items: int | None, lanes: int, seed: int) -> Quality:
    pairs = _pairs_of_batches(layout.num_items, layout.global_batch_size, seed)
    items = _located(layout.shard_items, order, pool_items, lanes, seed, pairs)
    fetched = _fetched(layout, order, pool_items, lanes, seed)
    return Quality(order, pool_items, shuffle_distance(items, layout.num_items), fetched)


def _located(
    shard_items: _Int64s, order: str, pool_items: int | None, lanes: int, seed: int, positions: _Int64s
) -> _Int64s:
    """The items at these endless positions."""
    number = int(shard_items.sum())
    match order:
        case "none":
            return positions % number
        case "global":
            return shuffled(positions, number, seed) % number
        case _:
            assert pool_items is not None
            return PooledShuffle(shard_items, pool_items, lanes, seed)(positions) % number


def _pairs_of_batches(num_items: int, global_batch_size: int, seed: int) -> _Int64s:
    """Endless positions of pairs of samples of a global batch, shape (pairs, 2), from all over some epochs."""
    batch = min(max(global_batch_size, 2), num_items)
    num_batches, num_pairs = num_items // batch, batch * (batch - 1)
    numbers = np.arange(min(_PAIRS, _EPOCHS * num_batches * num_pairs), dtype=np.int64)
    chosen = Permutation(_EPOCHS * num_batches, derive_seed(seed, "batches"))(numbers % (_EPOCHS * num_batches))
    epochs, batches = np.divmod(chosen, num_batches)
    first, second = np.divmod(Permutation(num_pairs, derive_seed(seed, "pairs"))(numbers % num_pairs), batch - 1)
    second += second >= first
    positions: _Int64s = (epochs * num_items + batches * batch)[:, None] + np.stack([first, second], axis=1)
    return positions


def _fetched(layout: Layout, order: str, pool_items: int | None, lanes: int, seed: int) -> int:
    """Bytes fetched an epoch: read through on a model with the same shards, of fewer items each.

    A shard that a pool needs is fetched once in model and original. If it is let go while its pool still needs it, it
    is fetched again, as often as there are reads: that part is scaled.
    """
    scale = max(1, -(-layout.num_items // max(_READS, 4 * len(layout.shard_items))))
    model = np.where(layout.shard_items > 0, np.maximum(1, layout.shard_items // scale), 0)
    number = int(model.sum())
    pool = number if pool_items is None else max(1, round(pool_items * number / layout.num_items))
    positions = np.arange(number, dtype=np.int64)
    homes = np.searchsorted(model.cumsum(), _located(model, order, pool, lanes, seed, positions), side="right")
    num_lanes = lanes if order == "pooled" else 1
    pools = positions // num_lanes // pool * num_lanes + positions % num_lanes
    num_items = max(1, layout.num_items)
    shard_bytes = [items * layout.num_bytes // num_items for items in layout.shard_items.tolist()]
    kept: OrderedDict[int, None] = OrderedDict()
    kept_bytes, once, again = 0, 0, 0
    needed_by: dict[int, set[int]] = {}
    for shard, of_pool in zip(homes.tolist(), pools.tolist(), strict=True):
        if shard in kept:
            kept.move_to_end(shard)
            continue
        users = needed_by.setdefault(shard, set())
        if of_pool in users:
            again += shard_bytes[shard]
        else:
            once += shard_bytes[shard]
            users.add(of_pool)
        kept[shard] = None
        kept_bytes += shard_bytes[shard]
        while kept_bytes > layout.cache_bytes and len(kept) > 1:
            kept_bytes -= shard_bytes[kept.popitem(last=False)[0]]
    return once + again * scale
