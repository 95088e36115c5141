"""One batch: items of a dataset, read together and collated."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.loading.collate import Collate, Stack
from headrace.views import fetch, is_windowed

__all__ = ["BatchMaker", "named_items"]

_MOST_NAMED = 16


class BatchMaker:
    """make(items) -> the collated batch of these items of the dataset. Pickles as dataset and collate function.

    A rank that gets no rows in a step gets the batch of no items: zero rows from a Collate (ours are), what a collate
    function of the user's makes of `[]` otherwise. An item that is a batch itself (a row of token-budget batches) is
    collated as one. What is raised carries a note that names the items.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Sequence[Any]], Any] | None) -> None:
        self.dataset = dataset
        self.collate_fn: Callable[[Sequence[Any]], Any] = Stack() if collate_fn is None else collate_fn
        self._read: Callable[[NDArray[np.int64]], Sequence[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}  # found anew in each process, which opens the dataset there

    def __call__(self, items: NDArray[np.int64]) -> Any:
        """The batch of these items (numbers of the dataset, in 0..len-1)."""
        try:
            if len(items) == 0:
                return self._empty()
            read = self._read
            if read is None:
                read = self._read = _reading(self.dataset)
            samples = read(items)
            if len(samples) != len(items):
                raise ValueError(
                    f"{type(self.dataset).__name__}.__getitems__ gave {len(samples)} samples for {len(items)} items"
                )
            if getattr(self.dataset, "rows_are_batches", False):
                (samples,) = samples  # the plan gives each rank one a step
                return self.collate_fn(samples) if len(samples) else self._empty()
            return self.collate_fn(samples)
        except Exception as error:
            error.add_note(f"while loading {self.named(items.tolist())}")
            raise

    def named(self, items: Sequence[int]) -> str:
        """These items as text: samples by number, rows of packs and batches by window; the first ones of many."""
        if not is_windowed(self.dataset) or len(items) == 0:
            return f"samples {named_items(items)}"
        windows = self.dataset.windows_of(np.asarray(items, np.int64))
        return ", ".join(
            f"rows {named_items(rows.tolist())} of window {window} in epoch {epoch}"
            for epoch, window, rows, _ in windows
        )

    def _empty(self) -> Any:
        if isinstance(self.collate_fn, Collate):
            no_rows = getattr(self.dataset, "no_rows", None)  # of a packed dataset, which has batches, not just samples
            return self.collate_fn.empty(self._any_sample()) if no_rows is None else self.collate_fn(no_rows())
        return self.collate_fn([])

    def _any_sample(self) -> Any:
        """Some sample, to see what samples look like."""
        dataset = self.dataset.base if getattr(self.dataset, "rows_are_batches", False) else self.dataset
        first = getattr(dataset, "first_position", 0)  # a mixture that was changed has no item 0
        return fetch(dataset, np.array([first], np.int64))[0] if first else dataset[0]


def named_items(items: Sequence[int]) -> str:
    """These numbers as text, the first ones if there are many."""
    shown = ", ".join(map(str, items[:_MOST_NAMED]))
    return f"{shown}, ... ({len(items)} in all)" if len(items) > _MOST_NAMED else shown


def _reading(dataset: Any) -> Callable[[NDArray[np.int64]], Sequence[Any]]:
    """How to read many items at once: our own datasets take arrays, others lists of Python integers, or one a call."""
    batched = getattr(dataset, "__getitems__", None)
    if batched is None:
        return lambda items: [dataset[item] for item in items.tolist()]
    if hasattr(dataset, "settings"):
        return batched  # type: ignore[no-any-return]
    return lambda items: batched(items.tolist())
