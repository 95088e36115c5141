"""Samples of like length beside one another: the order inside one window, from its keys and its number.

    window      keys            9 2 7 2 5 1 8            places 0..6
    sorted      by (key, tie)   5 3 1 | 4 2 6 | 0        cut into packs of pack_size; ties by a permutation of places
    packs       permuted        0 | 5 3 1 | 4 2 6        the short one among them
    inside      permuted        0 | 1 5 3 | 6 4 2        each pack in an order of its own

This is d9d's algorithm without its generator: a pure function of the keys, the window's number and the seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.planning.permutation import Permutation, derive_seed, mixed

__all__ = ["window_order"]

_EXACT = 1 << 53  # integers below it are floats, too
_Ints = NDArray[np.int64]


def window_order(keys: NDArray[Any] | Sequence[Any], pack_size: int, window: int, seed: int) -> _Ints:
    """The place in the window behind each position of it: a permutation of range(len(keys)), shape (len(keys),).

    keys has one row a sample: numbers or text of shape (samples,), several numbers each of shape (samples, k), which
    are compared one after the other, or any sequence of Python objects that can be compared. NaN comes last.
    """
    number = len(keys)
    if number == 0:
        return np.empty(0, np.int64)
    pack_size = min(pack_size, number)
    own_seed = derive_seed(seed, "buckets", window)
    ties = Permutation(number, derive_seed(own_seed, "ties"))(np.arange(number))
    by_key = ties[_sorted(keys, ties)]
    # Inside a pack, places are sorted by a hash of each, a bijection of 64 bits: one sort for all packs, without ties.
    hashes = mixed(np.arange(number, dtype=np.uint64), np.uint64(derive_seed(own_seed, "inside")))
    full = number // pack_size
    whole = hashes[: full * pack_size].reshape(full, pack_size)
    inside = np.arange(full, dtype=np.int64)[:, None] * pack_size + np.argsort(whole, axis=1)
    by_key[: full * pack_size] = by_key[inside.reshape(-1)]
    by_key[full * pack_size :] = by_key[full * pack_size + np.argsort(hashes[full * pack_size :])]
    packs = Permutation(-(-number // pack_size), derive_seed(own_seed, "packs"))(np.arange(-(-number // pack_size)))
    return by_key[_runs(packs * pack_size, pack_size, number)]


def _runs(starts: _Ints, size: int, end: int) -> _Ints:
    """The numbers of runs of `size` from these starts, one run after another, those below end."""
    numbers = (starts[:, None] + np.arange(size, dtype=np.int64)).reshape(-1)
    return numbers[numbers < end] if end % size else numbers


def _sorted(keys: NDArray[Any] | Sequence[Any], ties: _Ints) -> _Ints:
    """The numbers of `ties` in the order of the keys at those places; equal keys stay as they are."""
    columns = _as_array(keys)
    if columns is None:
        listed = [key.tolist() if isinstance(key, np.ndarray) else key for key in keys]  # rows compare as lists do
        return np.array(sorted(range(len(ties)), key=[listed[place] for place in ties.tolist()].__getitem__), np.int64)
    if columns.ndim == 1:
        return np.argsort(columns[ties], kind="stable")
    return np.lexsort(columns[ties].T[::-1])  # the first column decides


def _as_array(keys: NDArray[Any] | Sequence[Any]) -> NDArray[Any] | None:
    """keys as an array that NumPy sorts as Python would; None where there is none, so that Python must compare."""
    if isinstance(keys, list | tuple):
        kinds = {type(key) for key in keys}
        if kinds == {int} and all(-(1 << 63) <= key < 1 << 63 for key in keys):
            return np.array(keys, np.int64)
        floats, integers = float | np.float32 | np.float16, int | np.integer  # np.float64 is a float
        if all(isinstance(key, floats) or (isinstance(key, integers) and abs(int(key)) < _EXACT) for key in keys):
            return np.array(keys, np.float64)
        return None
    array = np.asarray(keys)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise OrderError(f"sort keys have shape {array.shape}; expected one key a sample, or a row of them each")
    return None if array.dtype.kind == "O" or array.dtype.names else array
