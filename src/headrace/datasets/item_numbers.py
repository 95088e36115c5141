"""Numbers of items as users give them: any integers, negative ones from the end."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["item_numbers"]


def item_numbers(items: Sequence[int] | NDArray[np.integer[Any]], what: str) -> NDArray[np.int64]:
    """items as int64, by value; TypeError for what is no list of integers."""
    numbers = np.asarray(items)
    if numbers.dtype == np.int64 and numbers.ndim == 1:
        return numbers
    if numbers.ndim == 1 and numbers.dtype.kind in "fO" and all(isinstance(item, int | np.integer) for item in items):
        # Integers beyond 64 bits make NumPy give up; all of them are outside, on the same side.
        numbers = np.array([max(-(1 << 63), min(int(item), (1 << 63) - 1)) for item in items], np.int64)
    if (numbers.size and numbers.dtype.kind not in "iu") or numbers.ndim != 1:
        raise TypeError(f"{what} numbers must be a list of integers, not {numbers.dtype} of shape {numbers.shape}")
    if numbers.dtype == np.uint64:
        numbers = np.minimum(numbers, np.uint64(np.iinfo(np.int64).max))  # outside either way, but not negative
    return numbers.astype(np.int64)
