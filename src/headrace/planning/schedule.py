"""Weights that change along the run: pieces of constant shares, one after the other.

    piecewise    |-- weights 0 --|------ weights 1 ------|-- weights 2, without end ...
    linear       |-/-/-/-/-/-/-/-|-\\-\\-\\-\\-\\-\\-\\-\\-\\-\\-|-- the last weights, without end ...

A ramp is cut into RAMP_PIECES pieces, each with the shares of its middle, so that what a ramp adds up to is exact at
the edges of its pieces. Positions are those of the whole run, over all epochs.
"""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from headrace.planning.proportions import shares_of

__all__ = ["RAMP_PIECES", "Schedule"]

RAMP_PIECES = 64


class Schedule:
    """Shares by position. points are (position, weights of the sources), the first at 0, strictly rising.

    Weights hold from their position on; with linear they go over into the next ones in a straight line (of the shares
    that the weights mean), and the last ones hold without end. divisors, one a source, divide the weights that result:
    mean lengths in tokens turn shares of tokens into shares of samples.
    """

    def __init__(
        self,
        points: Sequence[tuple[int, Sequence[Fraction | int]]],
        *,
        linear: bool = False,
        divisors: Sequence[Fraction] | None = None,
    ) -> None:
        self._points = [(position, tuple(shares_of(weights))) for position, weights in points]
        self._linear = linear
        self._divisors = divisors
        self._starts = [self._points[0][0]]
        if not linear:
            self._starts = [position for position, _ in self._points]
        else:
            for (begin, _), (end, _) in pairwise(self._points):
                edges = {begin + (end - begin) * piece // RAMP_PIECES for piece in range(1, RAMP_PIECES + 1)}
                self._starts.extend(sorted(edges - {begin}))
        self._shares = lru_cache(maxsize=4)(self._computed)

    def piece_at(self, position: int) -> tuple[list[int], int | None]:
        """The shares that hold at a position of the run, and where they end; None if never."""
        piece = bisect_right(self._starts, position) - 1
        return self._shares(piece), self._starts[piece + 1] if piece + 1 < len(self._starts) else None

    def _computed(self, piece: int) -> list[int]:
        start = self._starts[piece]
        number = bisect_right([position for position, _ in self._points], start) - 1
        begin, weights = self._points[number]
        if self._linear and number + 1 < len(self._points):
            end, later = self._points[number + 1]
            into, whole = start + self._starts[piece + 1] - 2 * begin, 2 * (end - begin)
            weights = tuple(a * (whole - into) + b * into for a, b in zip(weights, later, strict=True))
        elif self._divisors is None:
            return list(weights)
        if self._divisors is None:
            return shares_of(weights)
        return shares_of(
            [weight / divisor if weight else 0 for weight, divisor in zip(weights, self._divisors, strict=True)]
        )
