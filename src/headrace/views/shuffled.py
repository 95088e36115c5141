"""Every epoch in a random order of its own: one keyed permutation a (seed, epoch), never stored."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.planning import ORDER_VERSION, shuffled
from headrace.views.protocol import MapDataset, Setting, dataset_settings, fetch

__all__ = ["ShuffledDataset"]


class ShuffledDataset:
    """base in a global random order that seed and epoch decide: each item once an epoch.

    `view[i]` is item i of epoch 0; `locate` and `__getitems__` take endless positions (position // len is the epoch).
    O(1) memory and start-up at any size. The order is version 1 and never changes.
    """

    ordered = True

    def __init__(self, base: MapDataset, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"seed must be an integer, not {seed!r}")
        self.base = base
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"ShuffledDataset({self.base!r}, seed={self.seed})"

    def __len__(self) -> int:
        return len(self.base)

    def locate(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The base's endless positions behind these endless positions; IndexError for negative ones."""
        return shuffled(positions, len(self.base), self.seed)

    def __getitems__(self, positions: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples at these endless positions, as one batch."""
        return fetch(self.base, self.locate(np.asarray(positions)))

    def __getitem__(self, index: int | slice) -> Any:
        """Sample index of epoch 0, negative from the end; a slice gives a sequence of samples. IndexError outside."""
        length = len(self)
        if isinstance(index, slice):
            return self.__getitems__(np.arange(*index.indices(length), dtype=np.int64))
        number = operator.index(index)
        if not -length <= number < length:
            raise IndexError(f"index {number} is outside a dataset of {length} samples")
        return self.__getitems__(np.array([number % length], np.int64))[0]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The base's lengths in the order of epoch 0; AttributeError where the base has none."""
        lengths = np.asarray(self.base.lengths, np.int64)  # type: ignore[attr-defined]
        return lengths[self.locate(np.arange(len(self), dtype=np.int64))]

    @property
    def settings(self) -> dict[str, Setting]:
        """The base's settings and this order's."""
        inner = dataset_settings(self.base)
        prefix = ""
        while f"{prefix}shuffle" in inner:
            prefix += "outer_"  # a shuffle over a shuffle is a third order; its settings must not hide the inner ones
        return {
            **inner,
            f"{prefix}shuffle": "global",
            f"{prefix}seed": self.seed,
            f"{prefix}order_version": ORDER_VERSION,
        }
