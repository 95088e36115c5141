"""Steps on their way to whoever reads them, announced to the caches below the dataset some thousand rows ahead.

The order is known, so files come in the order of their need. It is done here, in the loader's own process, for threads
and for worker processes alike: a cache is a directory that all processes of a node share.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.views import prefetch, takes_hints

__all__ = ["announced"]

_ROWS_AHEAD = 4096
_STEPS_AHEAD = 256

Items = TypeVar("Items", bound=Sequence[int] | NDArray[np.int64])


def announced(steps: Iterator[Items], dataset: Any, *, rows_ahead: int | None = None) -> Iterator[Items]:
    """The same steps. dataset is what their items are items of; where no cache is below it nothing is looked at.

    rows_ahead are the rows that are announced before they are read; default: the dataset's `rows_ahead`, or 4,096.
    """
    if rows_ahead is None:
        rows_ahead = getattr(dataset, "rows_ahead", None)
    most = _ROWS_AHEAD if rows_ahead is None else rows_ahead
    return _announced(steps, dataset, most) if most and takes_hints(dataset) else steps


def _announced(steps: Iterator[Items], dataset: Any, most_rows: int) -> Iterator[Items]:
    try:
        yield from _ahead(steps, dataset, most_rows)
    finally:
        # What nobody will read now need not be fetched, nor held. At the end of the process locks may be no one's.
        if not sys.is_finalizing():
            prefetch(dataset, np.zeros(0, np.int64))


def _ahead(steps: Iterator[Items], dataset: Any, most_rows: int) -> Iterator[Items]:
    ahead: deque[Items] = deque()
    failure: Exception | None = None  # of the order; its turn comes after the steps before it
    rows, is_over, until_next = 0, False, 0
    while True:
        while not is_over and (not ahead or (rows < most_rows and len(ahead) < _STEPS_AHEAD)):
            try:
                ahead.append(next(steps))
                rows += len(ahead[-1])
            except StopIteration:
                is_over = True
            except Exception as error:
                is_over, failure = True, error
        if not ahead:
            if failure is not None:
                raise failure
            return
        if until_next == 0:
            # Announced again when half of it is used up: what is on its way already just stays so.
            prefetch(dataset, np.concatenate([np.asarray(items, np.int64) for items in ahead]))
            until_next = max(1, len(ahead) // 2)
        until_next -= 1
        rows -= len(ahead[0])
        yield ahead.popleft()
