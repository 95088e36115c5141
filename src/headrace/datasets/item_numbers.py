"""Numbers of items as users give them: any integers, negative ones from the end."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["item_number", "item_numbers"]


def item_number(index: Any, num_items: int, what: str) -> int:
    """index as an int that NumPy can hold; TypeError for what is no integer, IndexError far outside."""
    number = operator.index(index)
    if not -(1 << 63) <= number < 1 << 63:
        raise IndexError(f"{what} {number} is outside a dataset of {num_items} {what}s")
    return number


def item_numbers(items: Sequence[int] | NDArray[np.integer[Any]], what: str) -> NDArray[np.int64]:
    """items as int64, by value; TypeError for what is no list of integers."""
    numbers = np.asarray(items)
    if numbers.dtype == np.int64 and numbers.ndim == 1:
        return numbers
    if (numbers.size and numbers.dtype.kind not in "iu") or numbers.ndim != 1:
        raise TypeError(f"{what} numbers must be a list of integers, not {numbers.dtype} of shape {numbers.shape}")
    if numbers.dtype == np.uint64:
        numbers = np.minimum(numbers, np.uint64(np.iinfo(np.int64).max))  # outside either way, but not negative
    return numbers.astype(np.int64)
