"""A global shuffle of endless positions: every epoch is a permutation of its own.

    position     0 ... n-1 | n ... 2n-1 | 2n ...
    epoch            0     |     1      |  2
    item         p0(index) | n + p1(index) | 2n + p2(index)        index = position mod n

Items are endless too: epoch * n is kept, so that a base that shuffles by epoch itself still sees which epoch it is in.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headrace.planning.permutation import Permutation, derive_seed

__all__ = ["ORDER_VERSION", "checked_positions", "shuffled", "shuffled_each"]

ORDER_VERSION = 1
LAST_POSITION = (1 << 63) - 1  # positions are int64


def shuffled(positions: NDArray[np.int64], num_items: int, seed: int, *, inverse: bool = False) -> NDArray[np.int64]:
    """The base's positions behind these positions, of the same shape; no position twice, no item twice an epoch.

    With inverse, the positions at which these of the base stand. IndexError for negative positions, for any position
    when num_items is 0, and for those in an epoch that does not end below 2**63; TypeError for what is not an integer.
    """
    positions = checked_positions(positions, num_items)
    if positions.size == 0:
        return np.empty(positions.shape, np.int64)

    def permuted(epoch: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        permutation = _epoch(num_items, seed, epoch)
        return permutation.inverse(numbers) if inverse else permutation(numbers)

    epochs, indices = np.divmod(positions, num_items)
    first = int(epochs.flat[0])
    if (epochs == first).all():
        return first * num_items + permuted(first, indices)
    items = np.empty(positions.shape, np.int64)
    for epoch in sorted(set(epochs.ravel().tolist())):
        chosen = epochs == epoch
        items[chosen] = epoch * num_items + permuted(epoch, indices[chosen])
    return items


def shuffled_each(
    positions: NDArray[np.int64], bounds: Sequence[int], num_items: Sequence[int], seeds: Sequence[int]
) -> NDArray[np.int64]:
    """shuffled(positions[bounds[k] : bounds[k + 1]], num_items[k], seeds[k]) for every k, one behind another.

    The same as one by one, and faster where there are many of few positions each. There is a k, and none is without
    positions.
    """
    starts = np.array(bounds[:-1], np.int64)
    counts = np.array(bounds[1:], np.int64) - starts
    lows, highs = np.minimum.reduceat(positions, starts), np.maximum.reduceat(positions, starts)
    lengths = np.array(num_items, np.int64)
    if (
        lows.min() < 0
        or lengths.min() == 0
        or (highs // np.maximum(lengths, 1) >= LAST_POSITION // lengths.max()).any()
    ):
        pieces = (positions[begin:end] for begin, end in pairwise(bounds))
        each = zip(pieces, num_items, seeds, strict=True)
        return np.concatenate([shuffled(piece, length, seed) for piece, length, seed in each])
    epochs = lows // lengths
    firsts = np.repeat(epochs * lengths, counts)
    permutations = [
        _epoch(length, seed, epoch) for length, seed, epoch in zip(num_items, seeds, epochs.tolist(), strict=True)
    ]
    across = np.flatnonzero(highs // lengths != epochs).tolist()  # these run on into another epoch
    indices = positions - firsts
    for k in across:
        indices[bounds[k] : bounds[k + 1]] = 0
    items = firsts + Permutation.of_each(permutations, bounds, indices)
    for k in across:
        items[bounds[k] : bounds[k + 1]] = shuffled(positions[bounds[k] : bounds[k + 1]], num_items[k], seeds[k])
    return items


def checked_positions(positions: NDArray[np.int64], num_items: int) -> NDArray[np.int64]:
    """These endless positions as int64; IndexError and TypeError as shuffled() says."""
    positions = np.asarray(positions)
    if positions.size == 0:
        return np.empty(positions.shape, np.int64)
    if positions.dtype.kind not in "iu":
        raise TypeError(f"positions must be integers, not {positions.dtype}")
    lowest, highest = int(positions.min()), int(positions.max())
    if num_items == 0 or lowest < 0:
        raise IndexError(f"position {lowest} is outside an order of {num_items} items an epoch")
    if (highest // num_items + 1) * num_items > LAST_POSITION + 1:
        raise IndexError(f"position {highest} is in an epoch of {num_items} items that does not end below 2**63")
    return positions.astype(np.int64, copy=False)


@lru_cache(maxsize=2048)  # of a pure function: only the making of keys is spared
def _epoch(num_items: int, seed: int, epoch: int) -> Permutation:
    return Permutation(num_items, derive_seed(seed, "shuffle", epoch))
