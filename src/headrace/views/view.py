"""View: one base in another order, found by arithmetic. A kind of view says how long an epoch is and locates."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.planning.shuffle import LAST_POSITION
from headrace.views.hints import prefetch
from headrace.views.protocol import (
    Int64s,
    Setting,
    add_settings,
    checked_base,
    fetch,
    is_ordered,
    item_or_slice,
    knows_lengths,
    lengths_at,
)

__all__ = ["View"]


class View(ABC):
    """A map-style dataset whose items are its base's, in another order.

    Positions are endless: epoch and index follow by divmod, so views nest and each keeps its own epochs. `view[i]` is
    item i of epoch 0; `locate`, `lengths_at` and `__getitems__` take endless positions.
    """

    ordered: ClassVar[bool] = True
    orders_anew: ClassVar[bool] = False  # whether an epoch of it is not the one before, over a base that stays as it is

    def __init__(self, base: Any) -> None:
        self.base = checked_base(base, type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        # A view has no state of its own. Over a base that has one, torchdata's loader must find it and keep it.
        if name in ("state_dict", "load_state_dict") and "base" in self.__dict__:
            return getattr(self.base, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def locate(self, positions: Int64s) -> Int64s:
        """The base's endless positions behind these endless positions, of the same shape.

        IndexError for negative ones, for any in an empty view, and for those in an epoch that ends beyond 2**63.
        """

    @property
    @abstractmethod
    def own_settings(self) -> Mapping[str, Setting]:
        """What decides this order, beside the base. The first name stands for the kind of view."""

    @property
    def settings(self) -> dict[str, Setting]:
        """The base's settings and this order's."""
        return add_settings(self.base, self.own_settings or {"view": type(self).__name__})

    @property
    def same_each_epoch(self) -> bool:
        """Whether every epoch has the same items in the same places."""
        return not self.orders_anew and (
            not is_ordered(self.base) or bool(getattr(self.base, "same_each_epoch", False))
        )

    def __getitems__(self, positions: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples at these endless positions, as one batch."""
        return fetch(self.base, self.locate(np.asarray(positions)))

    def __getitem__(self, index: int | slice) -> Any:
        """Sample index of epoch 0, negative from the end; a slice gives a sequence of samples. IndexError outside."""
        return item_or_slice(self, index)

    def prefetch(self, positions: Int64s) -> None:
        """Expect these endless positions to be read, in this order: caches below fetch their files ahead. A hint."""
        prefetch(self, positions)

    def lengths_at(self, positions: Int64s) -> Int64s:
        """The lengths of the samples at these endless positions; TypeError where the base has none."""
        return lengths_at(self.base, self.locate(np.asarray(positions)))

    @property
    def lengths(self) -> Int64s:
        """The lengths of the samples of epoch 0, in its order; AttributeError where the base has none."""
        if not knows_lengths(self.base):
            raise AttributeError(f"{type(self.base).__name__} does not know the lengths of its samples")
        return self.lengths_at(np.arange(len(self), dtype=np.int64))

    def checked(self, positions: Int64s) -> Int64s:
        """positions as int64; IndexError and TypeError as locate() says."""
        given = np.asarray(positions)
        if given.size == 0:
            return given.astype(np.int64)
        if given.dtype.kind not in "iu":
            raise TypeError(f"positions must be integers, not {given.dtype}")
        length = len(self)
        lowest, highest = int(given.min()), int(given.max())
        if length == 0 or lowest < 0:
            raise IndexError(f"position {lowest} is outside an order of {length} items an epoch")
        for items, of in ((length, "an epoch"), (len(self.base), f"an epoch of {type(self.base).__name__}")):
            if (highest // length + 1) * items > LAST_POSITION + 1:
                raise IndexError(f"position {highest} is in {of} of {items} items that does not end below 2**63")
        return given.astype(np.int64, copy=False)
