"""The legs of a mixture: stretches of positions over which shares stay the same.

    position   0 ........... | ............ | ............ | ...........................
    leg             0        |       1      |      2       |    3, without end
    ends where   the schedule goes on   a source has been drawn as often as it may

A leg with an end deals whole numbers of draws, quotas that sum to its length and follow the exact shares, so that counts
at its end are known without dealing; the leg without end deals by shares. Legs are found one after the other, as far as
someone asks, and remembered.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.planning.permutation import MAX_ITEMS
from headrace.planning.proportions import UNIT, apportioned, quotas
from headrace.planning.schedule import Schedule
from headrace.planning.splits import Splits

__all__ = ["Leg", "Legs"]


@dataclass(frozen=True, slots=True)
class Leg:
    """Positions start to end (None: without end), the counts of each source before it, and the weights dealt by."""

    start: int
    end: int | None
    drawn: tuple[int, ...]
    weights: tuple[int, ...]


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
        self._next = start
        self._drawn = list(drawn) if drawn is not None else [0] * len(self._limits)
        self._first_drawn = list(self._drawn)
        self._ahead = [0] * len(self._limits)  # exact share minus draws, in 1 / UNIT
        self._legs: list[Leg] = []
        self._starts: list[int] = []
        self.ended = False  # whether all legs are known, and the last one has an end
        self._lock = threading.Lock()
        self._splits = lru_cache(maxsize=8)(self._made)

    def leg_at(self, position: int) -> int:
        """The number of the leg that position is in. OrderError before the first leg and behind the last."""
        if position < self.start:
            raise OrderError(
                f"position {position} is before {self.start}, from where on this mixture was changed; positions before "
                "were drawn under other settings"
            )
        with self._lock:
            while not self._covers(position):
                if self.ended:
                    raise OrderError(
                        f"position {position} is behind the end of the mixture: at position {self._next} all sources "
                        "with a weight had been drawn max_epochs times; raise max_epochs or make epoch_size smaller"
                    )
                self._extend()
            return bisect_right(self._starts, position) - 1

    def reach(self, position: int) -> int:
        """position, or the end of the order where that comes before it."""
        with self._lock:
            while not self._covers(position) and not self.ended:
                self._extend()
            return min(position, self._next) if self.ended else position

    def root_draws(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each root draw, and which of its own draws it is. Errors as leg_at()."""
        first, last = self.leg_at(int(numbers.min())), self.leg_at(int(numbers.max()))
        if first == last:
            return self._dealt(first, numbers)
        legs = np.searchsorted(np.array(self._starts[: last + 1], np.int64), numbers, side="right") - 1
        sources, draws = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        for number in sorted(set(legs.tolist())):
            chosen = legs == number
            sources[chosen], draws[chosen] = self._dealt(number, numbers[chosen])
        return sources, draws

    def counts(self, position: int) -> list[int]:
        """How often each source has been drawn before root draw `position`, which may be the end of the order."""
        if position == self.start:
            return list(self._first_drawn)
        number = self.leg_at(position if position < self.start else position - 1)
        leg = self._legs[number]
        dealt = self._splits(number).counts(position - leg.start)
        return [before + now for before, now in zip(leg.drawn, dealt, strict=True)]

    def number_of(self, source: int, draw: int) -> int | None:
        """The root draw that is this draw of source; None where it never comes (or came before the first leg)."""
        if draw < self._first_drawn[source]:
            return None
        with self._lock:
            while not self._reaches(source, draw):
                if self._complete():
                    return None
                self._extend()
        low, high = 0, len(self._legs) - 1  # the last leg that begins with at most `draw` draws of source
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._legs[middle].drawn[source] <= draw else (low, middle - 1)
        leg = self._legs[low]
        return leg.start + self._splits(low).number_of(source, draw - leg.drawn[source])

    def end(self) -> int | None:
        """The position behind the last one, None for without end. Finds all legs."""
        with self._lock:
            while not self._complete():
                self._extend()
        return self._next if self.ended else None

    def _covers(self, position: int) -> bool:
        return bool(self._legs) and (self._legs[-1].end is None or position < self._next)

    def _reaches(self, source: int, draw: int) -> bool:
        if draw < self._drawn[source]:
            return bool(self._legs)
        return bool(self._legs) and self._legs[-1].end is None and self._legs[-1].weights[source] > 0

    def _complete(self) -> bool:
        return self.ended or (bool(self._legs) and self._legs[-1].end is None)

    def _made(self, number: int) -> Splits:
        return Splits(self._legs[number].weights)

    def _dealt(self, number: int, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        leg = self._legs[number]
        sources, draws = self._splits(number).draws(numbers - leg.start)
        return sources, draws + np.array(leg.drawn, np.int64)[sources]

    def _extend(self) -> None:
        """The next leg, or the end of the order."""
        shares, end = self._schedule.piece_at(self._next)
        left = [
            None if limit is None else max(0, limit - n) for limit, n in zip(self._limits, self._drawn, strict=True)
        ]
        if any(share and rest == 0 for share, rest in zip(shares, left, strict=True)):
            shares = [0 if rest == 0 else share for share, rest in zip(shares, left, strict=True)]
            if any(shares):
                shares = apportioned(shares, UNIT)
        if not any(shares):
            self.ended = True
            return
        length = None if end is None else end - self._next
        caps = [rest if share else 0 for share, rest in zip(shares, left, strict=True)]
        for share, cap, ahead in zip(shares, caps, self._ahead, strict=True):
            if share and cap is not None:
                until_out = max(1, -(-(cap * UNIT - ahead) // share))
                length = until_out if length is None else min(length, until_out)
        limited = [cap for cap in caps if cap is not None]
        if length is not None and len(limited) == len(caps):
            length = min(length, sum(limited))
        start, drawn = self._next, tuple(self._drawn)
        if length is None or start + length > MAX_ITEMS:
            self._add(Leg(start, None, drawn, tuple(shares)))
            return
        targets = [ahead + length * share for ahead, share in zip(self._ahead, shares, strict=True)]
        counts = quotas(targets, caps, length)
        self._add(Leg(start, start + length, drawn, tuple(counts)))
        self._next += length
        self._drawn = [before + now for before, now in zip(drawn, counts, strict=True)]
        if any(cap is not None and cap > 0 and cap == count for cap, count in zip(caps, counts, strict=True)):
            self._ahead = [0] * len(counts)
        else:
            self._ahead = [target - count * UNIT for target, count in zip(targets, counts, strict=True)]

    def _add(self, leg: Leg) -> None:
        self._legs.append(leg)
        self._starts.append(leg.start)
