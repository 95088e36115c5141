"""Proportions as integers: weights that a user wrote down to shares of UNIT, and shares to whole numbers of draws.

Nothing is a float on the way, so that 9 : 1 and 0.9 : 0.1 are the same proportions, and no platform rounds otherwise.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from headrace.errors import OptionError

__all__ = ["UNIT", "Weight", "apportioned", "exact_weight", "quotas", "shares_of"]

UNIT = 1 << 126  # so fine that a share times 2^62 positions is still exact to 2^-64 of a draw
_SCALE = 1 << 192

Weight = int | float | Fraction


def exact_weight(weight: object, name: str) -> Fraction:
    """The number that was written: 0.1 is a tenth, not the nearest binary fraction.

    OptionError, naming the source, for what is negative, NaN or infinite; TypeError for what is no number.
    """
    kinds = int | float | Fraction | np.integer | np.floating
    if isinstance(weight, bool) or not isinstance(weight, kinds):
        raise TypeError(f"the weight of source {name!r} must be a number, not {weight!r}")
    try:
        exact = Fraction(str(weight))  # of NumPy's numbers, too, str() is the shortest text that means them
    except ValueError:
        raise OptionError(f"weights[{name!r}]", weight, "a finite number of at least 0") from None
    if exact < 0:
        raise OptionError(f"weights[{name!r}]", weight, "a finite number of at least 0")
    return exact


def shares_of(weights: Sequence[Fraction | int]) -> list[int]:
    """Integers that sum to UNIT in the proportions of the weights; the same for weights that are all scaled alike.

    Some weight must be above 0. One below about 2^-126 of the largest may get no share at all.
    """
    largest = max(weights)
    return apportioned([_floor(Fraction(weight) / largest * _SCALE) for weight in weights], UNIT)


def apportioned(numbers: Sequence[int], total: int) -> list[int]:
    """Integers that sum to total, each number * total / sum(numbers) rounded down or up: by largest remainder.

    Among equal remainders the first goes up.
    """
    whole = sum(numbers)
    parts, remainders = [], []
    for number in numbers:
        part, remainder = divmod(number * total, whole)
        parts.append(part)
        remainders.append(remainder)
    missing = total - sum(parts)
    for index in sorted(range(len(parts)), key=remainders.__getitem__, reverse=True)[:missing]:  # a stable sort
        parts[index] += 1
    return parts


def quotas(targets: Sequence[int], caps: Sequence[int | None], total: int) -> list[int]:
    """Whole numbers of draws that sum to total, near the targets (in units of 1 / UNIT), between 0 and their caps.

    Targets are rounded down, and what is missing goes one each to the largest remainders (the first among equals), over
    again where caps leave some over. Where targets below 0 leave too many, those that are ahead of their target by most
    give back. The caps must allow total.
    """
    counts = []
    for target, cap in zip(targets, caps, strict=True):
        count = max(0, target // UNIT)
        counts.append(count if cap is None else min(count, cap))
    missing = total - sum(counts)
    while missing:
        step = 1 if missing > 0 else -1
        free = [
            index
            for index, (count, cap) in enumerate(zip(counts, caps, strict=True))
            if (count > 0 if step < 0 else cap is None or count < cap)
        ]
        free.sort(key=lambda index: step * (counts[index] * UNIT - targets[index]))
        for index in free[: abs(missing)]:
            counts[index] += step
        missing = total - sum(counts)
    return counts


def _floor(number: Fraction) -> int:
    return number.numerator // number.denominator
