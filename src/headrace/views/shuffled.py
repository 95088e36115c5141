"""Every epoch in a random order of its own: one keyed permutation a (seed, epoch), never stored."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from headrace.planning import ORDER_VERSION, shuffled
from headrace.views.protocol import Int64s, MapDataset, Setting
from headrace.views.view import View

__all__ = ["ShuffledDataset"]


class ShuffledDataset(View):
    """base in a global random order that seed and epoch decide: each item once an epoch.

    `view[i]` is item i of epoch 0; `locate` and `__getitems__` take endless positions (position // len is the epoch).
    O(1) memory and start-up at any size. The order is version 1 and never changes.
    """

    orders_anew: ClassVar[bool] = True

    def __init__(self, base: MapDataset, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"seed must be an integer, not {seed!r}")
        super().__init__(base)
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"ShuffledDataset({self.base!r}, seed={self.seed})"

    def __len__(self) -> int:
        return len(self.base)

    def locate(self, positions: Int64s) -> Int64s:
        """The base's endless positions behind these endless positions; IndexError for negative ones."""
        return shuffled(positions, len(self.base), self.seed)

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """The scope, the seed and the version of the order."""
        return {"shuffle": "global", "seed": self.seed, "order_version": ORDER_VERSION}
