"""The legs of a mixture: stretches of positions over which shares stay the same.

    position   0 ........... | ............ | ............ | ...........................
    leg             0        |       1      |      2       |    3, without end
    ends where   the schedule goes on   a source has been drawn as often as it may

A leg with an end deals whole numbers of draws, quotas that sum to its length and follow the exact shares, so that
counts at its end are known without dealing; the leg without end deals by shares. Legs are found one after the other, as
far as someone asks, and remembered.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.planning.permutation import MAX_ITEMS
from headrace.planning.proportions import UNIT, apportioned, quotas
from headrace.planning.schedule import Schedule
from headrace.planning.splits import Ranges, Splits

__all__ = ["Leg", "Legs", "before_start", "behind_end"]


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """Positions start to end (None: without end), the counts of each source before it, the exact shares that hold in
    it, and the weights that its draws are dealt by."""

    start: int
    end: int | None
    drawn: tuple[int, ...]
    shares: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """The legs found so far, and what the next one goes on from. Never changed: threads and forks see it whole."""

    legs: list[Leg]
    starts: list[int]
    position: int
    drawn: list[int]
    ahead: list[int]  # exact share minus draws, in 1 / UNIT
    ended: bool = False  # whether the order ends at position

    def covers(self, position: int) -> bool:
        return bool(self.legs) and (self.legs[-1].end is None or position < self.position)

    def reaches(self, source: int, draw: int) -> bool:
        endless = bool(self.legs) and self.legs[-1].end is None and self.legs[-1].weights[source] > 0
        return endless or draw < self.drawn[source]

    def complete(self) -> bool:
        return self.ended or (bool(self.legs) and self.legs[-1].end is None)

    def leg_at(self, position: int) -> int:
        return bisect_right(self.starts, position) - 1


class Legs:
    """The legs from position `start` on, where each source has been drawn `drawn` times.

    limits says for each source how often it may be drawn in all, None for without limit; a source that has been leaves,
    and the others share its weight. When none with a share is left, the order ends.
    """

    def __init__(
        self, schedule: Schedule, limits: Sequence[int | None], *, start: int = 0, drawn: Sequence[int] | None = None
    ) -> None:
        self._schedule = schedule
        self._limits = list(limits)
        self.start = start
        self._first_drawn = list(drawn) if drawn is not None else [0] * len(self._limits)
        self._known = _Known([], [], start, self._first_drawn, [0] * len(self._limits))
        self._splits = lru_cache(maxsize=8)(_splits)

    def check(self, position: int) -> None:
        """OrderError for a position before the first leg, or behind the last."""
        self._covering(position)

    def all_share(self) -> bool:
        """Whether every source has a share at the start: a weight below 2^-126 of the others' has none."""
        return all(self._schedule.piece_at(self.start)[0])

    def reach(self, position: int) -> int:
        """position, or the end of the order where that comes before it."""
        known = self._known
        while not known.covers(position) and not known.ended:
            known = self._extended(known)
        return min(position, known.position) if known.ended else position

    def ranges(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Ranges:
        """What the root draws begins[k] to ends[k] (exclusive; not empty) are, by k, source and draw. Errors: check().

        A source may be there twice in a range, where it runs over the end of a leg.
        """
        lowest, highest = int(begins.min()), int(ends.max()) - 1
        self._covering(lowest)
        known = self._covering(highest)
        found = []
        for leg in known.legs[known.leg_at(lowest) : known.leg_at(highest) + 1]:
            low = np.maximum(begins - leg.start, 0)
            high = (ends if leg.end is None else np.minimum(ends, leg.end)) - leg.start
            inside = np.flatnonzero(low < high)
            if len(inside):
                of, sources, first, counts = self._splits(leg).ranges(low[inside], high[inside])
                found.append((inside[of], sources, first + np.array(leg.drawn, np.int64)[sources], counts))
        of, sources, first, counts = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(of * len(self._limits) + sources, kind="stable")  # legs come in order already
        return Ranges(of[order], sources[order], first[order], counts[order])

    def counts(self, position: int) -> list[int]:
        """How often each source has been drawn before root draw `position`, which may be the end of the order."""
        if position == self.start:
            return list(self._first_drawn)
        last = position if position < self.start else position - 1
        known = self._covering(last)
        leg = known.legs[known.leg_at(last)]
        dealt = self._splits(leg).counts(position - leg.start)
        return [before + now for before, now in zip(leg.drawn, dealt, strict=True)]

    def targets(self, position: int) -> list[int]:
        """The exact share of each source in the first `position` root draws, in 1 / UNIT of a draw."""
        targets = [count * UNIT for count in self._first_drawn]
        if position == self.start:
            return targets
        known = self._covering(position if position < self.start else position - 1)
        for leg in known.legs:
            if leg.start >= position:
                break
            length = (position if leg.end is None else min(position, leg.end)) - leg.start
            targets = [target + length * share for target, share in zip(targets, leg.shares, strict=True)]
        return targets

    def number_of(self, source: int, draw: int) -> int | None:
        """The root draw that is this draw of source; None where it never comes (or came before the first leg)."""
        if draw < self._first_drawn[source]:
            return None
        known = self._known
        while not known.reaches(source, draw):
            if known.complete():
                return None
            known = self._extended(known)
        low, high = 0, len(known.legs) - 1  # the last leg that begins with at most `draw` draws of source
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if known.legs[middle].drawn[source] <= draw else (low, middle - 1)
        leg = known.legs[low]
        return leg.start + self._splits(leg).number_of(source, draw - leg.drawn[source])

    def end(self) -> int | None:
        """The position behind the last one, None for without end. Finds all legs."""
        known = self._known
        while not known.complete():
            known = self._extended(known)
        return known.position if known.ended else None

    def _covering(self, position: int) -> _Known:
        known = self._known
        if position < self.start:
            raise before_start(position, self.start)
        while not known.covers(position):
            if known.ended:
                raise behind_end(position, known.position)
            known = self._extended(known)
        return known

    def _extended(self, known: _Known) -> _Known:
        """What is known with the next leg, or with the end of the order."""
        self._known = later = self._with_next(known)
        return later

    def _with_next(self, known: _Known) -> _Known:
        shares, caps = self._shares_at(known)
        if not any(shares):
            return replace(known, ended=True)
        start, drawn = known.position, tuple(known.drawn)
        length = self._length(known, shares, caps)
        if length is None or start + length > MAX_ITEMS:
            leg = Leg(start, None, drawn, tuple(shares), tuple(shares))
            return replace(known, legs=[*known.legs, leg], starts=[*known.starts, start])
        targets = [ahead + length * share for ahead, share in zip(known.ahead, shares, strict=True)]
        counts = quotas(targets, caps, length)
        someone_left = any(count and count == cap for count, cap in zip(counts, caps, strict=True))
        return _Known(
            [*known.legs, Leg(start, start + length, drawn, tuple(shares), tuple(counts))],
            [*known.starts, start],
            start + length,
            [before + now for before, now in zip(drawn, counts, strict=True)],
            [0 if someone_left else t - k * UNIT for t, k in zip(targets, counts, strict=True)],
        )

    def _shares_at(self, known: _Known) -> tuple[list[int], list[int | None]]:
        """The shares at the end of what is known, of those sources that may still be drawn, and how often they may."""
        shares, _ = self._schedule.piece_at(known.position)
        left = [
            None if limit is None else max(0, limit - count)
            for limit, count in zip(self._limits, known.drawn, strict=True)
        ]
        if any(share and rest == 0 for share, rest in zip(shares, left, strict=True)):
            shares = [0 if rest == 0 else share for share, rest in zip(shares, left, strict=True)]
            if any(shares):
                shares = apportioned(shares, UNIT)
        return shares, [rest if share else 0 for share, rest in zip(shares, left, strict=True)]

    def _length(self, known: _Known, shares: list[int], caps: list[int | None]) -> int | None:
        """Positions until the schedule goes on or a source has been drawn as often as it may; None for without end."""
        _, end = self._schedule.piece_at(known.position)
        lengths = [] if end is None else [end - known.position]
        lengths += [
            max(1, -(-(cap * UNIT - ahead) // share))
            for share, cap, ahead in zip(shares, caps, known.ahead, strict=True)
            if share and cap is not None
        ]
        limited = [cap for cap in caps if cap is not None]
        if len(limited) == len(caps):
            lengths.append(sum(limited))
        return min(lengths, default=None)


def before_start(position: int, start: int) -> OrderError:
    """The error for a position before those that there are."""
    return OrderError(
        f"position {position} is before {start}, from where on this mixture was changed; positions before were drawn "
        "under other settings"
    )


def behind_end(position: int, end: int) -> OrderError:
    """The error for a position behind the last."""
    return OrderError(
        f"position {position} is behind the end of the mixture: at position {end} all sources with a weight had been "
        "drawn max_epochs times; raise max_epochs or make epoch_size smaller"
    )


def _splits(leg: Leg) -> Splits:
    return Splits(leg.weights)
