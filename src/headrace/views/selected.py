"""A part of a dataset: the samples that a bitmap, their numbers or a predicate over their lengths name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import OptionError, OrderError
from headrace.planning import Selection
from headrace.views.protocol import Int64s, MapDataset, Setting, check_same_length, is_ordered, lengths_at
from headrace.views.view import View

__all__ = ["SelectedDataset"]

LENGTHS_AT_ONCE = 1 << 16

Predicate = Callable[[Int64s], NDArray[np.bool_]]
Items = NDArray[np.bool_] | NDArray[np.int64] | Sequence[int]


class SelectedDataset(View):
    """The samples of base that keep names, less those that exclude names, in the base's order.

    keep is a bitmap of shape (len(base),), the numbers of samples in any order, or a function that is called once with
    the lengths of all samples and gives such a bitmap; None keeps all. exclude is a bitmap, or numbers that may repeat.

    Over a base that shuffles, the numbers are positions of each epoch: `ShuffledDataset(SelectedDataset(x, ids))` has
    the same samples every epoch, `SelectedDataset(ShuffledDataset(x), ids)` other ones. A function of lengths is
    refused there. Takes at most 9/64 of a byte a sample, and less where few are kept or few left out.

    OptionError for a bitmap of another length, and for a number that is outside or kept twice.
    """

    def __init__(
        self, base: MapDataset, keep: Items | Predicate | None = None, *, exclude: Items | None = None
    ) -> None:
        super().__init__(base)
        if keep is None and exclude is None:
            raise OptionError("keep", None, "a bitmap, numbers or a function of lengths, unless exclude is given")
        none: Sequence[int] = ()
        left = _selection(none if exclude is None else exclude, len(base), "exclude")
        self.selection = left if keep is None else self._kept(keep).intersection(left)

    def _kept(self, keep: Items | Predicate) -> Selection:
        if not callable(keep):
            return _selection(keep, len(self.base), "keep")
        if is_ordered(self.base) and not getattr(self.base, "same_each_epoch", False):
            raise OrderError(
                "a function of lengths sees epoch 0 only, and in the next epoch other samples stand in those places of "
                f"{type(self.base).__name__}: select below it, from what does not change"
            )
        given = keep(_all_lengths(self.base))
        bitmap = np.asarray(given)
        if bitmap.dtype != bool:
            raise TypeError(f"keep(lengths) must give an array of booleans, not {bitmap.dtype}")
        return _selection(bitmap, len(self.base), "keep(lengths)")

    def __repr__(self) -> str:
        return f"SelectedDataset({self.base!r}, {len(self.selection)} of {self.selection.num_items})"

    def __len__(self) -> int:
        return len(self.selection)

    def locate(self, positions: Int64s) -> Int64s:
        """The base's endless positions behind these endless positions; IndexError for negative ones.

        DatasetChangedError where the base has another length than when its samples were chosen.
        """
        check_same_length(self.base, self.selection.num_items)
        epochs, indices = np.divmod(self.checked(positions), max(1, len(self.selection)))
        return epochs * self.selection.num_items + self.selection.select(indices)

    def positions_of(self, base_positions: Int64s) -> Int64s:
        """The endless positions at which these endless positions of the base stand: (k,), of those that are chosen."""
        epochs, items = np.divmod(np.asarray(base_positions, np.int64), max(1, self.selection.num_items))
        chosen = self.selection.holds(items)
        return epochs[chosen] * len(self.selection) + self.selection.rank(items[chosen])

    @property
    def shard_items(self) -> Int64s:
        """The chosen samples of each shard of the base, for a pooled shuffle above; AttributeError without shards."""
        items = getattr(self.base, "shard_items", getattr(self.base, "shard_lengths", None))
        if items is None or int(np.sum(items)) != self.selection.num_items:
            raise AttributeError(f"{type(self.base).__name__} does not name the samples of its shards")
        return np.diff(self.selection.before(np.cumsum(items, dtype=np.int64)), prepend=0)

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """A digest of what is chosen, the same whichever way it was given, and how many."""
        return {"selected": self.selection.digest, "num_selected": len(self.selection)}


def _selection(items: ArrayLike, num_items: int, option: str) -> Selection:
    given = np.asarray(items)
    if given.dtype == bool:
        if given.shape != (num_items,):
            raise OptionError(option, f"bitmap of shape {given.shape}", f"a bitmap of shape ({num_items},)")
        return Selection.of_bitmap(~given if option == "exclude" else given)
    if option == "exclude":
        return Selection.without_ids(given, num_items)
    return Selection.of_ids(given, num_items, option=option)


def _all_lengths(base: Any) -> Int64s:
    """The lengths of epoch 0, in one array of 8 bytes a sample and no second one."""
    if not is_ordered(base) and getattr(base, "lengths", None) is not None:
        return np.asarray(base.lengths, np.int64)
    lengths = np.empty(len(base), np.int64)
    for begin in range(0, len(base), LENGTHS_AT_ONCE):
        end = min(begin + LENGTHS_AT_ONCE, len(base))
        lengths[begin:end] = lengths_at(base, np.arange(begin, end, dtype=np.int64))
    return lengths
