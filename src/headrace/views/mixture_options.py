"""What MixedDataset is given, checked, and turned into the plain numbers of a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from headrace.errors import OptionError, OrderError
from headrace.planning.proportions import Weight, exact_weight
from headrace.planning.recipe import Recipe, whole_weights
from headrace.views.ending import whole_epochs
from headrace.views.leaves import check_lengths_in_tokens
from headrace.views.options import whole_number
from headrace.views.protocol import mean_length

__all__ = ["Exhausted", "LinearSchedule", "MixtureOptions", "Unit", "Weights", "recipe_of"]

Weights = Mapping[str, Weight] | Sequence[Weight]
Unit = Literal["samples", "tokens"]
Exhausted = Literal["repeat", "stop_first", "stop_all"]


@dataclass(frozen=True)
class LinearSchedule:
    """Weights that go over into one another: points of (position, weights), in straight lines between them.

    The first is at position 0, and the last weights hold without end.
    """

    points: Sequence[tuple[int, Weights]]


@dataclass(frozen=True)
class MixtureOptions:
    """The options of a mixture, checked as far as that goes without opening a source.

    points has the weights by position, None for proportional to the sources' sizes.
    """

    names: tuple[str, ...]
    points: tuple[tuple[int, tuple[Fraction, ...]], ...] | None
    linear: bool
    unit: Unit
    seed: int
    epoch_size: int | None
    exhausted: Exhausted
    max_epochs: tuple[int | None, ...]
    run_length: int

    @classmethod
    def checked(
        cls,
        names: Sequence[str],
        weights: Weights | None,
        schedule: Sequence[tuple[int, Weights]] | LinearSchedule | None,
        **others: Any,
    ) -> "MixtureOptions":
        """The options. OptionError and TypeError for what means nothing."""
        for option, valid in (("unit", ("samples", "tokens")), ("exhausted", ("repeat", "stop_first", "stop_all"))):
            if others[option] not in valid:
                raise OptionError(option, others[option], " or ".join(map(repr, valid)))
        run_length = whole_number("run_length", others["run_length"], least=1, below=1 << 31)
        epoch_size = others["epoch_size"]
        if epoch_size is not None:
            epoch_size = whole_number("epoch_size", epoch_size, least=1, below=1 << 62)
            if others["exhausted"] != "repeat":
                raise OptionError("epoch_size", epoch_size, f"none, since exhausted={others['exhausted']!r} decides it")
            _check_whole_runs("epoch_size", epoch_size, run_length)
        if schedule is not None and weights is not None:
            raise OptionError("schedule", "...", "either weights or a schedule of weights")
        points = None
        if weights is not None:
            points = [(0, weights)]
        elif schedule is not None:
            points = _points(schedule.points if isinstance(schedule, LinearSchedule) else schedule)
        exact = None
        if points is not None:
            for position, _ in points:
                _check_whole_runs("schedule position", position, run_length)
            exact = tuple((position, _exact(names, given)) for position, given in points)
        return cls(
            tuple(names),
            exact,
            isinstance(schedule, LinearSchedule),
            others["unit"],
            whole_number("seed", others["seed"]),
            epoch_size,
            others["exhausted"],
            _max_epochs(names, others["max_epochs"]),
            run_length,
        )

    def weighted(self) -> list[int]:
        """The numbers of the sources that have a weight somewhere, all where weights follow sizes."""
        if self.points is None:
            return list(range(len(self.names)))
        return [source for source in range(len(self.names)) if any(weights[source] for _, weights in self.points)]


def recipe_of(options: MixtureOptions, sources: Sequence[Any]) -> tuple[Recipe, tuple[int, ...]]:
    """The recipe of a mixture, and the number of each source in it. Opens the sources that have a weight, no others.

    OrderError for an empty source that has a weight, and where a stop rule is never met.
    """
    chosen = options.weighted()
    lengths = {source: len(sources[source]) for source in chosen}
    points = options.points
    if points is None:
        chosen = [source for source in chosen if lengths[source]]
        points = ((0, tuple(Fraction(lengths.get(source, 0)) for source in range(len(sources)))),)
    for source in chosen:
        if lengths[source] == 0:
            raise OrderError(
                f"source {options.names[source]!r} has a weight and no samples; give it weight 0 or leave it out"
            )
    means = None
    if options.unit == "tokens" and options.points is not None:
        means = tuple(_mean(options.names[source], sources[source]) for source in chosen)
    recipe = Recipe(
        names=tuple(options.names[source] for source in chosen),
        lengths=tuple(lengths[source] for source in chosen),
        points=tuple(
            (position, whole_weights([weights[source] for source in chosen]) if chosen else ())
            for position, weights in points
        ),
        linear=options.linear,
        means=means,
        max_epochs=tuple(_epochs(options, source, sources[source]) for source in chosen),
        epoch_size=sum(lengths.values()),
        seed=options.seed,
        run_length=options.run_length,
    )
    for name, runs in zip(recipe.names, recipe.run_limits(), strict=True):
        if runs == 0:
            raise OrderError(
                f"source {name!r} has too few samples for a run of {options.run_length}, as often as it may be gone "
                "through; raise max_epochs, or make run_length smaller"
            )
    epoch_size = _epoch_size(options, recipe) if chosen else 0
    return Recipe(**{**recipe.__dict__, "epoch_size": epoch_size}), tuple(chosen)


def _epochs(options: MixtureOptions, source: int, dataset: Any) -> int | None:
    """How often a source may be gone through: one whose own order ends has so many whole epochs and no more."""
    given, there = options.max_epochs[source], whole_epochs(dataset)
    if there == 0:
        raise OrderError(f"source {options.names[source]!r} ends within its first epoch; leave it out")
    return there if given is None else given if there is None else min(given, there)


def _epoch_size(options: MixtureOptions, recipe: Recipe) -> int:
    """The positions of an epoch: a whole number of runs, in which everything is counted here."""
    legs, run = recipe.legs(), recipe.run_length
    if options.exhausted != "repeat":
        ends = [legs.number_of(source, (length - 1) // run) for source, length in enumerate(recipe.lengths)]
        reached = [end + 1 for end in ends if end is not None]
        if (options.exhausted == "stop_all" and len(reached) < len(ends)) or not reached:
            never = recipe.names[ends.index(None)]
            raise OrderError(
                f"exhausted={options.exhausted!r} is never met: source {never!r} is never drawn through once"
            )
        return run * (max(reached) if options.exhausted == "stop_all" else min(reached))
    wanted = -(-(options.epoch_size or recipe.epoch_size) // run)
    limits = [limit for limit in recipe.run_limits() if limit is not None]
    most = sum(limits) if len(limits) == len(recipe.names) else wanted
    # A piece of the schedule may have only sources that have left, and one whose weight is next to none never comes.
    if limits and (len(recipe.points) > 1 or not legs.all_share()):
        most = legs.reach(min(most, wanted))
    if options.epoch_size is not None and wanted > most:
        raise OptionError("epoch_size", wanted * run, f"at most {most * run}, which is all that max_epochs allows")
    return run * min(wanted, most)


def _check_whole_runs(option: str, number: int, run_length: int) -> None:
    if number % run_length:
        near = max(run_length, number // run_length * run_length)
        raise OptionError(
            option, number, f"a multiple of run_length={run_length}, such as {near} or {near + run_length}"
        )


def _points(schedule: Any) -> list[tuple[int, Weights]]:
    points = []
    for point in schedule:
        if not isinstance(point, tuple | list) or len(point) != 2:
            raise OptionError("schedule", point, "pairs of a position and weights, or a LinearSchedule of them")
        points.append((whole_number("schedule position", point[0], least=0, below=1 << 62), point[1]))
    positions = [position for position, _ in points]
    if positions[:1] != [0] or any(later <= earlier for earlier, later in pairwise(positions)):
        raise OptionError("schedule", positions, "positions that begin at 0 and rise")
    return points


def _exact(names: Sequence[str], weights: Any) -> tuple[Fraction, ...]:
    """The weight of each source."""
    if isinstance(weights, Mapping):
        _check_names("weights", names, weights, every=True)
        given = [weights[name] for name in names]
    elif isinstance(weights, Sequence | np.ndarray) and not isinstance(weights, str | bytes):
        given = list(weights)
        if len(given) != len(names):
            raise OptionError("weights", f"{len(given)} weights", f"one for each of {len(names)} sources")
    else:
        raise TypeError(f"weights are a mapping of names or a sequence, not {weights!r}")
    exact = tuple(exact_weight(weight, name) for weight, name in zip(given, names, strict=True))
    if not any(exact):
        raise OptionError("weights", "0 for all sources", "a weight above 0 for one of them at least")
    return exact


def _max_epochs(names: Sequence[str], max_epochs: Any) -> tuple[int | None, ...]:
    if max_epochs is None or not isinstance(max_epochs, Mapping):
        number = None if max_epochs is None else whole_number("max_epochs", max_epochs, least=1, below=1 << 31)
        return (number,) * len(names)
    _check_names("max_epochs", names, max_epochs, every=False)
    return tuple(
        whole_number(f"max_epochs[{name!r}]", max_epochs[name], least=1, below=1 << 31)
        if max_epochs.get(name) is not None
        else None
        for name in names
    )


def _check_names(option: str, names: Sequence[str], given: Mapping[str, Any], *, every: bool) -> None:
    known = set(names)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise OptionError(option, unknown[0], f"the name of a source: {_listed(names)}")
    missing = [name for name in names if name not in given]
    if every and missing:
        raise OptionError(option, f"nothing for {missing[0]!r}", "a weight for each source; 0 leaves one out")


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names[:16]))}{', ...' * (len(names) > 16)}"


def _mean(name: str, source: Any) -> tuple[int, int]:
    check_lengths_in_tokens(source, f"unit='tokens' of a mixture, in source {name!r},")
    mean = mean_length(source)
    if mean <= 0:
        raise OrderError(f"source {name!r} has samples of 0 tokens only, so no share of tokens can be drawn from it")
    return mean.numerator, mean.denominator
