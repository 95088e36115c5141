"""A mixture: which source stands at which position, and which of its draws that is.

    position, endless   |---------------- epoch 0 ----------------|---------- epoch 1 ---
                        | block 0 | block 1 | ...        | short  | block 0 | ...            BLOCK positions each
    sources of a block  each as often as its count grows over the block (legs.py, splits.py), listed and permuted
    draws               of each source, in order: how often it was drawn before this position

Exact proportions alone would be a pattern, and every W-th position, which is what one rank reads, another one. So
sources are permuted inside blocks. Draws are not: whatever position a run is at, each source has been drawn 0, 1, ...
in order, so no item comes again before its source has been through, and what was consumed is one number a source.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.planning.blocks import permuted_in_blocks
from headrace.planning.legs import Legs
from headrace.planning.permutation import MAX_ITEMS, derive_seed

__all__ = ["BLOCK", "MixturePlan", "checked_positions"]

BLOCK = 256
_AT_A_TIME = 64  # blocks
_FEW = 4  # blocks that are worth remembering: what a small batch asks for

_Int64s = NDArray[np.int64]


class MixturePlan:
    """The order of a mixture whose legs are known, in epochs of epoch_size positions.

    legs.start is where it begins: with a mixture that was changed in the middle of an epoch, the blocks of the rest of
    this epoch are counted from there.
    """

    def __init__(self, legs: Legs, epoch_size: int, seed: int) -> None:
        self.legs = legs
        self.epoch_size = epoch_size
        self._seed = derive_seed(seed, "mixture")
        self._block = lru_cache(maxsize=16)(self._one_block)

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        """The source at each of these endless positions, and which of its draws it is; shape (n,) both.

        IndexError for negative positions and those beyond 2**62 or in an empty mixture; OrderError for those that the
        legs do not have.
        """
        positions = checked_positions(positions, self.epoch_size)
        if len(positions) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self.legs.check(int(positions.min()))
        self.legs.check(int(positions.max()))
        starts = self._block_starts(positions)
        distinct = np.sort(starts)
        distinct = distinct[np.concatenate([np.ones(1, bool), distinct[1:] != distinct[:-1]])]
        sources, draws = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        if len(distinct) <= _FEW:
            for start in distinct.tolist():
                chosen = starts == start
                offsets = positions[chosen] - start
                of_block, draws_of_block = self._block(start)
                sources[chosen], draws[chosen] = of_block[offsets], draws_of_block[offsets]
            return sources, draws
        rows = np.searchsorted(distinct, starts)
        by_row = np.argsort(rows, kind="stable")
        begins = np.searchsorted(rows[by_row], np.arange(0, len(distinct) + _AT_A_TIME, _AT_A_TIME))
        for number, first in enumerate(range(0, len(distinct), _AT_A_TIME)):
            chosen = by_row[begins[number] : begins[number + 1]]
            of_blocks, draws_of_blocks = self._blocks(distinct[first : first + _AT_A_TIME])
            cells = (rows[chosen] - first) * BLOCK + positions[chosen] - starts[chosen]
            sources[chosen], draws[chosen] = of_blocks.ravel()[cells], draws_of_blocks.ravel()[cells]
        return sources, draws

    def counts(self, position: int) -> list[int]:
        """How often each source has been drawn before this position (which may be the end of the order)."""
        if self.epoch_size == 0 or position <= self.legs.start:
            return self.legs.counts(position)
        start = int(self._block_starts(np.array([position - 1], np.int64))[0])
        if position - start == min(BLOCK, self._epoch_end(position - 1) - start):
            return self.legs.counts(position)
        counts = self.legs.counts(start)
        for source in self._block(start)[0][: position - start].tolist():
            counts[source] += 1
        return counts

    def position_of(self, source: int, draw: int) -> int | None:
        """The position of this draw of source, None where it never comes: the inverse of draws()."""
        number = self.legs.number_of(source, draw)
        if number is None or self.epoch_size == 0:
            return None
        start = int(self._block_starts(np.array([number], np.int64))[0])
        sources, draws = self._block(start)
        return start + int(np.flatnonzero((sources == source) & (draws == draw))[0])

    def positions_of(self, sources: Sequence[int] | _Int64s, draws: Sequence[int] | _Int64s) -> _Int64s:
        """position_of() each pair; -1 where it is None."""
        pairs = zip(np.asarray(sources).tolist(), np.asarray(draws).tolist(), strict=True)
        found = [self.position_of(source, draw) for source, draw in pairs]
        return np.array([-1 if position is None else position for position in found], np.int64)

    def targets(self, position: int) -> list[int]:
        """The exact share of each source in the first `position` draws, in 1 / UNIT of a draw."""
        return self.legs.targets(position)

    def reach(self, position: int) -> int:
        """position, or the end of the order where that comes before it."""
        return self.legs.reach(position)

    def _block_starts(self, positions: _Int64s) -> _Int64s:
        begins = np.maximum(positions // self.epoch_size * self.epoch_size, self.legs.start)
        return begins + (positions - begins) // BLOCK * BLOCK

    def _epoch_end(self, position: int) -> int:
        return (position // self.epoch_size + 1) * self.epoch_size

    def _one_block(self, start: int) -> tuple[_Int64s, _Int64s]:
        sources, draws = self._blocks(np.array([start], np.int64))
        return sources[0].copy(), draws[0].copy()

    def _blocks(self, starts: _Int64s) -> tuple[_Int64s, _Int64s]:
        """Sources and draws of whole blocks that rise, (len(starts), BLOCK) both; behind a short one lies anything."""
        sources, draws = np.empty((len(starts), BLOCK), np.int64), np.empty((len(starts), BLOCK), np.int64)
        epochs = starts // self.epoch_size
        begins = np.maximum(epochs * self.epoch_size, self.legs.start)
        totals = (epochs + 1) * self.epoch_size - begins
        reach = self.legs.reach(int(starts[-1]) + BLOCK)  # an order that ends inside an epoch ends its last block
        totals = np.minimum(totals, reach - begins, where=starts + BLOCK > reach, out=totals)
        sizes = np.minimum(BLOCK, totals - (starts - begins))
        ranges = self.legs.ranges(starts, starts + sizes)
        listed_sources = np.repeat(ranges.sources, ranges.counts)
        listed_draws = np.repeat(ranges.first - (ranges.counts.cumsum() - ranges.counts), ranges.counts)
        listed_draws += np.arange(len(listed_draws))
        listed_at = sizes.cumsum() - sizes
        for total, size in sorted(set(zip(totals.tolist(), sizes.tolist(), strict=True))):
            chosen = np.flatnonzero((totals == total) & (sizes == size))
            within = np.arange(size)
            indices = (starts[chosen] - begins[chosen])[:, None] + within
            of_each = np.broadcast_to(epochs[chosen, None], indices.shape)
            places = permuted_in_blocks(indices, total, BLOCK, self._seed, of_each) - indices[:, :1]
            listed = listed_at[chosen, None] + within
            of_position = np.take_along_axis(listed_sources[listed], places, axis=1)
            by_source = np.argsort(of_position.astype(_narrow(of_position)), axis=1, kind="stable")
            of_draws = np.empty(listed.shape, np.int64)
            np.put_along_axis(of_draws, by_source, listed_draws[listed], axis=1)
            sources[chosen, :size], draws[chosen, :size] = of_position, of_draws
        return sources, draws


def checked_positions(positions: _Int64s, epoch_size: int) -> _Int64s:
    """The positions as int64. IndexError for negative ones and those beyond 2**62 or in an empty mixture."""
    given = np.asarray(positions)
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iu":
        raise TypeError(f"positions must be integers, not {given.dtype}")
    lowest, highest = int(given.min()), int(given.max())
    if lowest < 0 or epoch_size == 0:
        raise IndexError(f"position {lowest} is outside a mixture of {epoch_size} samples an epoch")
    if highest >= MAX_ITEMS - epoch_size:
        raise IndexError(f"position {highest} is in an epoch that does not end below 2**62")
    return given.astype(np.int64, copy=False)


def _narrow(numbers: _Int64s) -> type[np.unsignedinteger[Any]]:
    """A type that holds these numbers, which NumPy sorts by their bits where it is as narrow as this."""
    return np.uint16 if int(numbers.max()) < 1 << 16 else np.uint64
