"""Every epoch in a random order of its own: one keyed permutation a (seed, epoch), or pools of shards; never stored."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np

from headrace.errors import OptionError
from headrace.planning import ORDER_VERSION, shuffled
from headrace.planning.pools import PooledShuffle
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s, MapDataset, Setting
from headrace.views.view import View

__all__ = ["ShuffledDataset"]

_SCOPES = "'global' or 'pooled'"
_SHARDS_A_POOL = 4


class ShuffledDataset(View):
    """base in a random order that seed and epoch decide: each item once an epoch.

    | argument | meaning |
    | --- | --- |
    | scope | "global": any item anywhere; "pooled": few shards at a time, for object stores and caches |
    | pool_items | pooled: items that are mixed; default: as many as four shards have |
    | lanes | pooled: parts of the epoch, read in turn, each with its own run of shards and pools of its own |

    `view[i]` is item i of epoch 0; `locate` and `__getitems__` take endless positions (position // len is the epoch).
    A global order takes O(1) memory and start-up at any size, a pooled one a few integers a shard. Shard boundaries
    come from the base's `shard_items`, or its `shard_lengths` where these count its items; OptionError where it has
    none. Lanes change the order, and serve locality: with a world size that divides them, and a global batch that is
    a multiple of them, each rank reads the shards of its own lanes only. More lanes than items are as many as items.
    The order is version 1 and never changes.
    """

    orders_anew: ClassVar[bool] = True

    def __init__(
        self,
        base: MapDataset,
        seed: int,
        scope: str = "global",
        *,
        pool_items: int | None = None,
        lanes: int = 1,
    ) -> None:
        super().__init__(base)
        self.seed = whole_number("seed", seed)
        self.lanes = whole_number("lanes", lanes, least=1)
        self._pool_items = None if pool_items is None else whole_number("pool_items", pool_items, least=1)
        if scope not in ("global", "pooled"):
            raise OptionError("scope", scope, _SCOPES)
        self.scope = str(scope)
        if self.scope == "global" and (pool_items is not None or self.lanes != 1):
            given = ("pool_items", pool_items) if pool_items is not None else ("lanes", lanes)
            raise OptionError(*given, "left out, unless scope='pooled'")
        if self.scope == "pooled" and not _may_have_shards(base):
            raise self._no_shards("has none")
        self._pools: PooledShuffle | None = None  # made at first use: it asks the base, which opens then

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": None}

    def __repr__(self) -> str:
        if self.scope == "global":
            return f"ShuffledDataset({self.base!r}, seed={self.seed})"
        pools = f"pool_items={self._pool_items}, lanes={self.lanes}"
        return f"ShuffledDataset({self.base!r}, seed={self.seed}, scope='pooled', {pools})"

    def __len__(self) -> int:
        return len(self.base)

    def locate(self, positions: Int64s) -> Int64s:
        """The base's endless positions behind these endless positions; IndexError for negative ones."""
        if self.scope == "global":
            return shuffled(positions, len(self.base), self.seed)
        return self._pooled()(positions)

    def positions_of(self, base_positions: Int64s) -> Int64s:
        """The endless positions at which these endless positions of the base stand."""
        if self.scope == "global":
            return shuffled(base_positions, len(self.base), self.seed, inverse=True)
        return self._pooled().inverse(base_positions)

    @property
    def pool_items(self) -> int | None:
        """Items of a pool; None where the scope is global."""
        return None if self.scope == "global" else self._pooled().pool_items

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """Scope, seed and version of the order; where it is pooled, pools, lanes and a digest of the shards, too."""
        seed: dict[str, Setting] = {"seed": self.seed, "order_version": ORDER_VERSION}
        if self.scope == "global":
            return {"shuffle": "global", **seed}
        pools = self._pooled()
        shards = blake2b(pools.shard_items.astype("<i8").tobytes(), digest_size=16).hexdigest()
        settings: dict[str, Setting] = {"pool_items": pools.pool_items, "lanes": pools.lanes, "shards": shards}
        return {"shuffle": "pooled", **settings, **seed}

    def _pooled(self) -> PooledShuffle:
        pools = self._pools
        if pools is None:
            items = self._shard_items()
            pool_items = self._pool_items
            if pool_items is None:
                num_shards = max(1, int((items > 0).sum()))
                pool_items = max(1, -(-_SHARDS_A_POOL * int(items.sum()) // num_shards))
            pools = self._pools = PooledShuffle(items, pool_items, self.lanes, self.seed)
        return pools

    def _shard_items(self) -> Int64s:
        """The items of each shard of the base."""
        items = getattr(self.base, "shard_items", None)
        if items is None:
            items = getattr(self.base, "shard_lengths", None)
        if items is None:
            raise self._no_shards("has none")
        items = np.asarray(items)
        if items.ndim != 1 or (items.size and (items.dtype.kind not in "iu" or int(items.min()) < 0)):
            raise self._no_shards("gives no list of counts")
        if int(items.sum()) != len(self.base):
            raise self._no_shards(f"counts {int(items.sum())} in its shards, for {len(self.base)} items")
        return items.astype(np.int64, copy=False)

    def _no_shards(self, problem: str) -> OptionError:
        return OptionError(
            "scope",
            "pooled",
            f"'global' over {type(self.base).__name__}: pools are made of shards, whose items the base must name in "
            f"shard_items or shard_lengths, and it {problem}",
        )


def _may_have_shards(base: Any) -> bool:
    """Whether base has an attribute that names the items of shards. Opens nothing: a property counts as one."""
    names = ("shard_items", "shard_lengths")
    return any(hasattr(type(base), name) for name in names) or any(hasattr(base, name) for name in names)
