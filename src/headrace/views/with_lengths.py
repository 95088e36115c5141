"""A dataset with the lengths of its samples beside it, for one that does not know them."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import OptionError, OrderError
from headrace.views.hints import prefetch, takes_hints
from headrace.views.protocol import Int64s, MapDataset, Setting, add_settings, fetch, is_ordered

__all__ = ["WithLengths"]


class WithLengths:
    """dataset as it is, and lengths, of shape (len(dataset),), for the views that plan by length.

    A sample's length is what a plan counts: tokens of a document, say. Sort keys of the dataset are left out: a buffer
    sort above goes by these lengths. Views go above: a dataset that orders itself is refused with OrderError.
    OptionError for lengths of another shape or below 0, TypeError for what is no integer.
    """

    def __init__(self, dataset: MapDataset, lengths: ArrayLike) -> None:
        if is_ordered(dataset) or hasattr(dataset, "as_view"):
            raise OrderError(f"lengths belong to items: WithLengths goes below {type(dataset).__name__}")
        given = np.asarray(lengths)
        if given.shape != (len(dataset),):
            raise OptionError("lengths", f"array of shape {given.shape}", f"one for each of {len(dataset)} samples")
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"lengths must be integers, not {given.dtype}")
        if given.size and int(given.min()) < 0:
            raise OptionError("lengths", int(given.min()), "lengths of at least 0")
        self.dataset = dataset
        self.lengths: Int64s = given.astype(np.int64)  # a copy: the caller's array may change

    def __repr__(self) -> str:
        return f"WithLengths({self.dataset!r}, {len(self.lengths)} lengths)"

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples with these numbers, as one batch."""
        return fetch(self.dataset, np.asarray(items, np.int64))

    def lengths_at(self, items: Int64s) -> Int64s:
        """The lengths of the samples with these numbers."""
        return self.lengths[items]

    @property
    def keeps_copies(self) -> bool:
        """The dataset's own: whether prefetch() does anything."""
        return takes_hints(self.dataset)

    def prefetch(self, items: Int64s) -> None:
        """The dataset's own hint."""
        prefetch(self.dataset, items)

    @property
    def shard_items(self) -> Any:
        """The dataset's own, for a pooled shuffle above."""
        return self.dataset.shard_items  # type: ignore[attr-defined]

    @property
    def shard_lengths(self) -> Any:
        """The dataset's own, for a pooled shuffle above."""
        return self.dataset.shard_lengths  # type: ignore[attr-defined]

    @cached_property
    def _digest(self) -> str:
        return blake2b(self.lengths.astype("<i8", copy=False).data, digest_size=16).hexdigest()

    @property
    def settings(self) -> dict[str, Setting]:
        """The dataset's settings and a digest of the lengths, which decide plans."""
        return add_settings(self.dataset, {"lengths": self._digest})
