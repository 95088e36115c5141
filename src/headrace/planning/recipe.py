"""What decides a mixture, as plain numbers: enough to make its plan, and a short text that a state can carry.

A run that goes on under other weights must know what each source had given. Where the text fits into the state, the
counts at any position follow from it, without the datasets and settings of before.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from hashlib import blake2b
from math import gcd, lcm
from typing import Any

from headrace.errors import StateError
from headrace.planning.cursor import Setting
from headrace.planning.legs import Legs
from headrace.planning.mixture import MixturePlan
from headrace.planning.proportions import shares_of
from headrace.planning.runs import RunPlan
from headrace.planning.schedule import Schedule

__all__ = [
    "MIXTURE_VERSION",
    "PLAN_TEXT_LIMIT",
    "Recipe",
    "consumed",
    "decode_counts",
    "decode_departed",
    "encode_counts",
    "encode_departed",
    "whole_weights",
]

MIXTURE_VERSION = 1
PLAN_TEXT_LIMIT = 1200  # characters, of a state that stays under 4 KiB
_SOURCES_LIMIT = 1 << 12
_INT64 = 1 << 63
_WEIGHT_BITS = 1 << 12
_DRAWN_LIMIT = 1 << 22  # characters of counts that are read: 16 for each of 260,000 sources
_IN_TEXT = ("names", "lengths", "points", "linear", "means", "max_epochs", "epoch_size", "seed", "departed")


@dataclass(frozen=True)
class Recipe:
    """A mixture of the sources with a weight, in order.

    lengths are their samples; points are (from position, weights as whole numbers without a common factor); means, with
    proportions in tokens, the mean length of each source as numerator and denominator; max_epochs None for without
    limit. start and drawn say from where on it holds after a change, and how often each source had been drawn by then;
    departed is what sources had given that are no longer there. run_length positions in a row are of one source; epochs
    and points are whole numbers of them.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    points: tuple[tuple[int, tuple[int, ...]], ...]
    linear: bool
    means: tuple[tuple[int, int], ...] | None
    max_epochs: tuple[int | None, ...]
    epoch_size: int
    seed: int
    start: int = 0
    drawn: tuple[int, ...] = ()
    departed: tuple[tuple[str, int], ...] = ()
    run_length: int = 1

    def limits(self) -> list[int | None]:
        """How often each source may be drawn in all."""
        pairs = zip(self.max_epochs, self.lengths, strict=True)
        return [None if epochs is None else epochs * length for epochs, length in pairs]

    def run_limits(self) -> list[int | None]:
        """How many whole runs of each source may come from start on."""
        drawn = self.drawn or (0,) * len(self.names)
        left = zip(self.limits(), drawn, strict=True)
        return [None if limit is None else max(0, limit - count) // self.run_length for limit, count in left]

    def legs(self) -> Legs:
        """The stretches of runs in which shares stay the same. Some source must have a weight.

        Runs of one position are positions. Of longer ones a source's count begins with 0 at start.
        """
        divisors = None if self.means is None else [Fraction(*mean) for mean in self.means]
        points = [(position // self.run_length, weights) for position, weights in self.points]
        schedule = Schedule(points, linear=self.linear, divisors=divisors)
        if self.run_length == 1:
            return Legs(schedule, self.limits(), start=self.start, drawn=self.drawn or None)
        return Legs(schedule, self.run_limits(), start=self.start // self.run_length)

    def plan(self) -> MixturePlan | RunPlan:
        """The order."""
        runs = MixturePlan(self.legs(), self.epoch_size // self.run_length, self.seed)
        if self.run_length == 1:
            return runs
        return RunPlan(runs, self.run_length, self.start, self.drawn or (0,) * len(self.names))

    def counts(self, position: int) -> dict[str, int]:
        """How often each source was drawn before position, those that departed too."""
        counts = dict(self.departed)
        if self.names:
            counts.update(zip(self.names, self.plan().counts(position), strict=True))
        return counts

    def digest(self, *more: Any) -> str:
        """32 hexadecimal digits that differ when anything does that decides the order, or `more` does.

        What is before start is left out: it is a position and counts, which a state shows beside.
        """
        plain = asdict(replace(self, start=0, drawn=(), departed=()))
        if self.run_length == 1:  # as it was before there were others
            del plain["run_length"]
        text = json.dumps([MIXTURE_VERSION, plain, more], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def encoded(self) -> str | None:
        """This recipe as text, but for start and drawn; None where that takes more than PLAN_TEXT_LIMIT characters.

        JSON as it is: what a compressor gives is another text under another version of it, and states are compared.
        """
        if len(self.names) + len(self.departed) > PLAN_TEXT_LIMIT:
            return None
        plain = asdict(self) | {"max_epochs": self.max_epochs if any(self.max_epochs) else None}
        runs = [self.run_length] if self.run_length > 1 else []
        text = _json([*(plain[name] for name in _IN_TEXT), *runs])
        return text if len(text) <= PLAN_TEXT_LIMIT else None

    @classmethod
    def decoded(cls, text: str, start: int, drawn: Sequence[int]) -> "Recipe":
        """The recipe that encoded() gave this text for. StateError for what is none: the text is untrusted."""
        try:
            if len(text) > PLAN_TEXT_LIMIT:
                raise ValueError(f"{len(text)} characters")
            recipe = _checked(json.loads(text), start, tuple(drawn))
        except (ValueError, TypeError, RecursionError) as error:
            raise StateError(f"the state is damaged: its mixture_plan cannot be read ({error})") from None
        return recipe


def consumed(settings: Mapping[str, Setting], position: int) -> dict[str, int]:
    """How often each source of a mixture was drawn before position, from the settings in a saved state.

    StateError where the settings hold no plan, since they have no mixture or one of too many sources: the counts must
    then be given by who has the mixture of before (its `draws_before(position)`).
    """
    text = settings.get("mixture_plan")
    if not isinstance(text, str):
        raise StateError(
            "the state does not hold the plan of its mixture, or of no mixture at all; where there were too many "
            "sources for that, pass what they gave: MixedDataset.draws_before(position) of the mixture of before"
        )
    start = settings.get("mixture_from", 0)
    packed = settings.get("mixture_drawn", "")
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < _INT64 or not isinstance(packed, str):
        raise StateError(f"the state is damaged: its mixture_from is {start!r}")
    if position < start:
        raise StateError(f"the state is damaged: position {position} is before its mixture_from, {start}")
    return Recipe.decoded(text, start, decode_counts(packed)).counts(position)


def encode_counts(counts: Sequence[int]) -> str:
    """Counts below 2**63 as text, up to 12 characters each: 7 bits a byte, the lowest first, in base64."""
    packed = bytearray()
    for count in counts:
        while count > 0x7F:
            packed.append(count & 0x7F | 0x80)
            count >>= 7
        packed.append(count)
    return base64.b64encode(bytes(packed)).decode()


def decode_counts(text: str) -> list[int]:
    """The counts that encode_counts gave this text for. StateError for what is none: the text is untrusted."""
    counts, count, shift = [], 0, 0
    try:
        if len(text) > _DRAWN_LIMIT:
            raise ValueError(f"{len(text)} characters")
        for byte in base64.b64decode(text, validate=True):
            count |= (byte & 0x7F) << shift
            shift += 7
            if count >= _INT64 or shift > 63:
                raise ValueError("a count of 2**63 or more")
            if byte < 0x80:
                counts.append(count)
                count, shift = 0, 0
        if shift:
            raise ValueError("it ends inside a count")
    except (ValueError, binascii.Error) as error:
        raise StateError(f"the state is damaged: its mixture_drawn cannot be read ({error})") from None
    return counts


def encode_departed(departed: Sequence[tuple[str, int]]) -> str:
    """What sources gave that are no longer there, as text, for a mixture that has no text itself."""
    return _json(departed)


def decode_departed(text: str) -> tuple[tuple[str, int], ...]:
    """What encode_departed gave this text for, () for none. StateError for what it never gives: it is untrusted."""
    if not text:
        return ()
    try:
        if len(text) > _DRAWN_LIMIT:
            raise ValueError(f"{len(text)} characters")
        pairs = json.loads(text)
        if not all(isinstance(name, str) for name, _ in pairs):
            raise ValueError("its names are no names")
        _check_numbers([count for _, count in pairs], 0, _INT64)
        return tuple((name, count) for name, count in pairs)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateError(f"the state is damaged: its mixture_departed cannot be read ({error})") from None


def whole_weights(weights: Sequence[Fraction | int]) -> tuple[int, ...]:
    """Whole numbers without a common factor in the proportions of the weights, of which some are above 0.

    So weights that are all scaled alike are the same. Fractions without a handy common denominator become shares.
    """
    exact = [Fraction(weight) for weight in weights]
    denominator = 1
    for weight in exact:
        denominator = lcm(denominator, weight.denominator)
        if denominator.bit_length() > _WEIGHT_BITS:
            break
    else:
        whole = [weight.numerator * (denominator // weight.denominator) for weight in exact]
        common = gcd(*whole)
        if max(whole) // common < 1 << _WEIGHT_BITS:
            return tuple(number // common for number in whole)
    return tuple(shares_of(exact))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _checked(fields: Any, start: int, drawn: tuple[int, ...]) -> Recipe:
    names, lengths, points, linear, means, max_epochs, epoch_size, seed, departed, *runs = fields
    (run_length,) = runs or (1,)
    number = len(names)
    max_epochs = [None] * number if max_epochs is None else max_epochs
    if number > _SOURCES_LIMIT or not all(isinstance(name, str) for name in names):
        raise ValueError("its names are no names")
    for column in (lengths, max_epochs, *(() if means is None else (means,)), *(weights for _, weights in points)):
        if len(column) != number:
            raise ValueError(f"it has {number} names, and {len(column)} of something")
    if drawn and len(drawn) != number:
        raise ValueError(f"it has {number} names, and {len(drawn)} counts")
    positions = [position for position, _ in points]
    _check_numbers([*lengths, *positions, epoch_size, *(count for _, count in departed)], 0, _INT64)
    _check_numbers([epochs for epochs in max_epochs if epochs is not None], 0, _INT64)
    _check_numbers([weight for _, weights in points for weight in weights], 0, 1 << _WEIGHT_BITS + 1)
    _check_numbers([part for mean in means or () for part in mean], 1, 1 << 128)
    _check_numbers([seed], -(1 << 128), 1 << 128)
    _check_numbers([run_length], 1, _INT64)
    if any(number % run_length for number in (epoch_size, *positions)):
        raise ValueError(f"it is not made of runs of {run_length}")
    if positions[:1] != [0] or positions != sorted(set(positions)) or not isinstance(linear, bool):
        raise ValueError("its schedule is none")
    if not all(any(weights) for _, weights in points) and number:
        raise ValueError("it has no weights")
    return Recipe(
        tuple(names),
        tuple(lengths),
        tuple((position, tuple(weights)) for position, weights in points),
        linear,
        None if means is None else tuple((numerator, denominator) for numerator, denominator in means),
        tuple(max_epochs),
        epoch_size,
        seed,
        start,
        drawn,
        tuple((str(name), count) for name, count in departed),
        run_length,
    )


def _check_numbers(numbers: Sequence[Any], low: int, high: int) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number < high:
            raise ValueError(f"{str(number)[:40]} is outside {low} to {str(high)[:24]}")
