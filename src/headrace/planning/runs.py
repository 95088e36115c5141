"""A mixture in runs: so many positions in a row are draws of one source.

    position, endless  | 0 1 2 3 | 4 5 6 7 | 8 9 ...        runs of 4; an epoch is a whole number of them
    run                |    0    |    1    |    2           mixture.py says whose each is: web, code, web
    draws              | 0 1 2 3 | 0 1 2 3 | 4 5 ...        of its source, in order

So run k of a source has its draws k * run_length and on: everything is found from the mixture of runs by a division.
A mixture that was changed within a run goes on with the rest of that run, as a run by itself: `cut` is what is missing.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headrace.planning.legs import before_start, behind_end
from headrace.planning.mixture import MixturePlan, checked_positions
from headrace.planning.proportions import UNIT

__all__ = ["RunPlan"]

_Int64s = NDArray[np.int64]


class RunPlan:
    """The order of a mixture of runs, as a MixturePlan has it, in positions.

    runs is the mixture of the runs from position `start` on; its draws count from there, when each source had been
    drawn `drawn` times.
    """

    def __init__(self, runs: MixturePlan, run_length: int, start: int, drawn: Sequence[int]) -> None:
        self.epoch_size = runs.epoch_size * run_length
        self._runs = runs
        self._length = run_length
        self._start = start
        self._drawn = list(drawn)
        self._cut = start % run_length

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        """The source at each of these endless positions, and which of its draws it is; shape (n,) both.

        Errors as MixturePlan's.
        """
        positions = checked_positions(positions, self.epoch_size)
        if len(positions) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self._check(int(positions.min()), int(positions.max()))
        runs, offsets = np.divmod(positions, self._length)
        sources, draws = self._runs.draws(runs)
        draws = draws * self._length + offsets + np.array(self._drawn, np.int64)[sources]
        if self._cut:
            draws -= self._cut * (sources == self._first_source)
        return sources, draws

    def counts(self, position: int) -> list[int]:
        """How often each source has been drawn before this position (which may be the end of the order)."""
        if position == self._start:
            return list(self._drawn)
        self._check(position - 1, position - 1)
        run, offset = divmod(position, self._length)
        counts = [
            before + count * self._length for before, count in zip(self._drawn, self._runs.counts(run), strict=True)
        ]
        if offset:
            counts[self._source_of(run)] += offset
        if self._cut:
            counts[self._first_source] -= self._cut
        return counts

    def targets(self, position: int) -> list[int]:
        """The exact share of each source in the first `position` draws, in 1 / UNIT of a draw."""
        targets = [count * UNIT for count in self._drawn]
        if position == self._start:
            return targets
        self._check(position - 1, position - 1)
        run, offset = divmod(position, self._length)
        parts = [(run, self._length - offset), (run + 1, offset)] if offset else [(run, self._length)]
        if self._cut:  # of the first run, only the rest
            first = self._start // self._length
            parts += [(first, self._cut), (first + 1, -self._cut)]
        for number, times in parts:
            shares = self._runs.targets(number)
            targets = [target + times * share for target, share in zip(targets, shares, strict=True)]
        return targets

    def reach(self, position: int) -> int:
        """position, or the end of the order where that comes before it."""
        runs = -(-position // self._length)
        reached = self._runs.reach(runs)
        return position if reached == runs else min(position, max(self._start, reached * self._length))

    def position_of(self, source: int, draw: int) -> int | None:
        """The position of this draw of source, None where it never comes: the inverse of draws()."""
        draw -= self._drawn[source]
        if draw < 0 or self.epoch_size == 0:
            return None
        if self._cut and source == self._first_source:
            draw += self._cut
        number, offset = divmod(draw, self._length)
        run = self._runs.position_of(source, number)
        return None if run is None else run * self._length + offset

    def positions_of(self, sources: Sequence[int] | _Int64s, draws: Sequence[int] | _Int64s) -> _Int64s:
        """position_of() each pair; -1 where it is None."""
        pairs = zip(np.asarray(sources).tolist(), np.asarray(draws).tolist(), strict=True)
        found = [self.position_of(source, draw) for source, draw in pairs]
        return np.array([-1 if position is None else position for position in found], np.int64)

    @cached_property
    def _first_source(self) -> int:
        """Whose the run is that the order begins within; -1 where there is none."""
        first = self._start // self._length
        return self._source_of(first) if self._runs.reach(first + 1) > first else -1

    def _source_of(self, run: int) -> int:
        return int(self._runs.draws(np.array([run], np.int64))[0][0])

    def _check(self, lowest: int, highest: int) -> None:
        if lowest < self._start:
            raise before_start(lowest, self._start)
        if (end := self.reach(highest + 1)) <= highest:
            raise behind_end(highest, end)
