"""How many rows of each stream an epoch has, from what was written down for it.

    written             rows an epoch
    nothing             as many as the stream has samples; with an epoch size, its part of it by size
    proportion          its part of the epoch size, which by default is as many as all streams have samples
    repeat, choose      repeat * samples rounded down; choose

Parts sum up to the epoch size: they are rounded down, and what is missing goes, one row each, to the largest
remainders. Numbers are the decimals that were written: 0.29 of 100 samples are 29, and not the 28 that floats give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from headrace.errors import OptionError
from headrace.planning.permutation import MAX_ITEMS
from headrace.planning.proportions import apportioned

__all__ = ["Portion", "samples_an_epoch"]

_FINITE = "a finite number of at least 0"


@dataclass(frozen=True, slots=True)
class Portion:
    """What one stream gives: a proportion of the epoch, its samples so often, so many rows, or nothing said.

    OptionError where more than one is given, and for numbers that are negative, NaN or infinite; TypeError for what is
    no number.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(given[1], getattr(self, given[1]), f"to be left out: {given[0]} is given, too")
        for name in given:
            _exact(name, getattr(self, name), whole=name == "choose")


def samples_an_epoch(sizes: Sequence[int], portions: Sequence[Portion], epoch_size: int | None) -> list[int]:
    """The rows that each stream gives an epoch; their sum is epoch_size where one is given.

    sizes are the streams' samples. Either all portions are proportions, or none is; an epoch size is for proportions,
    or for streams of which nothing is said. OptionError for anything else, for proportions that are all 0, and for a
    stream without samples that would have to give some.
    """
    if len(sizes) != len(portions):
        raise ValueError(f"{len(sizes)} sizes and {len(portions)} portions are not of the same streams")
    if epoch_size is not None and _exact("epoch_size", epoch_size, whole=True) > MAX_ITEMS:
        raise OptionError("epoch_size", epoch_size, "at most 2**62")
    sizes = [int(size) for size in sizes]
    absolute = [_absolute(portion) for portion in portions]
    relative = [portion.proportion is not None for portion in portions]
    if any(relative):
        _check_all_relative(portions)
        weights = [_exact("proportion", portion.proportion) for portion in portions]
        if not any(weights):
            raise OptionError("streams[0].proportion", portions[0].proportion, "one stream's to be above 0")
        chosen = _parts(weights, sum(sizes) if epoch_size is None else int(epoch_size))
    elif epoch_size is not None:
        for number, name in enumerate(absolute):
            if name is not None:
                expected = f"to be left out: streams[{number}].{name} says how many rows an epoch has"
                raise OptionError("epoch_size", epoch_size, expected)
        if epoch_size and not any(sizes):
            raise OptionError("epoch_size", epoch_size, "0, since no stream has samples")
        chosen = _parts([Fraction(size) for size in sizes], int(epoch_size)) if any(sizes) else sizes
    else:
        chosen = [_rows(portion, size) for portion, size in zip(portions, sizes, strict=True)]
    for number, (size, rows) in enumerate(zip(sizes, chosen, strict=True)):
        if rows and not size:
            name = "proportion" if relative[number] else absolute[number]
            value = getattr(portions[number], name or "choose")
            raise OptionError(f"streams[{number}].{name}", value, "0, since this stream has no samples")
    if sum(chosen) > MAX_ITEMS:
        raise OptionError("streams", sum(chosen), "at most 2**62 rows an epoch")
    return chosen


def _absolute(portion: Portion) -> str | None:
    return "repeat" if portion.repeat is not None else "choose" if portion.choose is not None else None


def _check_all_relative(portions: Sequence[Portion]) -> None:
    with_one = next(k for k, portion in enumerate(portions) if portion.proportion is not None)
    for number, portion in enumerate(portions):
        if portion.proportion is None:
            name = _absolute(portion)
            expected = f"a proportion for this stream, too, since streams[{with_one}] has one; or one for no stream"
            raise OptionError(
                f"streams[{number}].{name or 'proportion'}", getattr(portion, name or "proportion"), expected
            )


def _parts(weights: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers that sum to total, in the proportions of the weights, by largest remainder."""
    common = lcm(*(weight.denominator for weight in weights))
    return apportioned([weight.numerator * (common // weight.denominator) for weight in weights], total)


def _rows(portion: Portion, size: int) -> int:
    if portion.choose is not None:
        return int(portion.choose)
    return size if portion.repeat is None else int(_exact("repeat", portion.repeat) * size)


def _exact(name: str, value: Any, *, whole: bool = False) -> Fraction:
    """The number that was written: 0.1 is a tenth."""
    kinds = int | np.integer if whole else int | float | Fraction | np.integer | np.floating
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{name} must be {'a whole number' if whole else 'a number'}, not {value!r}")
    try:
        exact = Fraction(str(value))
    except ValueError:  # NaN and infinity
        raise OptionError(name, value, _FINITE) from None
    if exact < 0:
        raise OptionError(name, value, _FINITE)
    return exact
