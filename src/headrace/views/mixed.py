"""Several datasets as one, in exact proportions, each in epochs of its own."""

import copy
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning import derive_seed
from headrace.planning.mixture import MixturePlan
from headrace.planning.proportions import UNIT
from headrace.planning.recipe import Recipe, encode_counts, encode_departed
from headrace.planning.runs import RunPlan
from headrace.planning.shuffle import shuffled_each
from headrace.views.hints import prefetch
from headrace.views.leaves import check_lengths_in_tokens, check_stateless
from headrace.views.mixed_batch import joined
from headrace.views.mixture_options import Exhausted, LinearSchedule, MixtureOptions, Unit, Weights, recipe_of
from headrace.views.mixture_report import MixtureReport, report_of
from headrace.views.options import whole_number
from headrace.views.protocol import (
    Int64s,
    MapDataset,
    Setting,
    check_same_length,
    checked_base,
    dataset_settings,
    fetch,
    is_ordered,
    item_or_slice,
    lengths_at,
    mean_length,
    sort_keys_at,
)
from headrace.views.shuffled import ShuffledDataset

__all__ = ["DATA_DIGITS", "Drawn", "MixedDataset"]

DATA_DIGITS = 4  # characters a source, in the text that tells whether its data is still the same
DATA_TEXT_LIMIT = 800  # characters of it: left out where there are more sources, so that a state stays small


class Drawn(NamedTuple):
    """What is drawn from one source."""

    name: str
    dataset: Any
    positions: Int64s  # (k,) endless ones of the dataset, which was shuffled where it has no order of its own
    places: Int64s  # (k,) where each belongs among the positions that were asked for


class MixedDataset:
    """sources, drawn in the proportions of weights; each goes through its samples before one of them comes again.

    weights are numbers by name or in the order of the sources; None follows their sizes, so that an epoch has every
    sample once. A source with weight 0 is never opened. Counts are exact: within 2 draws of the share at the edge of
    each block of 256 positions, and at the end of an epoch by sizes. A source that is a view keeps its order, any other
    is shuffled anew in each of its epochs.

    | option | |
    | --- | --- |
    | schedule | weights by position of the run: [(0, weights), (10**6, weights), ...], or a LinearSchedule of such |
    | unit | "tokens": weights are shares of tokens, by the sources' mean lengths |
    | epoch_size | positions an epoch; default: as many samples as the sources with a weight have |
    | exhausted | "stop_first", "stop_all": an epoch ends when one source, or each, has been through once |
    | max_epochs | how often a source may be gone through in all, a number or numbers by name; it then leaves |
    | run_length | so many positions in a row are of one source, as batches that are of one; epochs are whole runs |

    `mixed[i]` is item i of epoch 0; `draws`, `lengths_at` and `__getitems__` take endless positions. OptionError and
    TypeError for options that mean nothing, OrderError for a mixture that cannot be.
    """

    ordered: ClassVar[bool] = True
    same_each_epoch: ClassVar[bool] = False

    def __init__(  # noqa: PLR0913 -- what is drawn, how much of it, and until when: all are switches
        self,
        sources: Mapping[str, MapDataset],
        weights: Weights | None = None,
        seed: int = 0,
        *,
        schedule: Sequence[tuple[int, Weights]] | LinearSchedule | None = None,
        unit: Unit = "samples",
        epoch_size: int | None = None,
        exhausted: Exhausted = "repeat",
        max_epochs: int | Mapping[str, int] | None = None,
        run_length: int = 1,
    ) -> None:
        if not isinstance(sources, Mapping) or not all(isinstance(name, str) for name in sources):
            raise TypeError("sources are a mapping of names to datasets")
        if not sources:
            raise OptionError("sources", {}, "one dataset at least")
        for name in sources:
            if any(0xD800 <= ord(letter) < 0xE000 for letter in name):  # seeds are derived from names as UTF-8
                raise OptionError("sources", name, "names that are text in UTF-8, without lone surrogates")
        self.sources: dict[str, Any] = dict(sources)
        self.options = MixtureOptions.checked(
            tuple(self.sources),
            weights,
            schedule,
            seed=seed,
            unit=unit,
            epoch_size=epoch_size,
            exhausted=exhausted,
            max_epochs=max_epochs,
            run_length=run_length,
        )
        self._names = list(self.sources)
        self._list = list(self.sources.values())
        for source in self.options.weighted():
            checked_base(self._list[source], type(self).__name__)
            check_stateless(self._list[source], type(self).__name__)
        self.recipe, self._chosen = recipe_of(self.options, self._list)
        self._forget()

    def _forget(self) -> None:
        self._plan: MixturePlan | RunPlan | None = None
        self._asked: dict[int, Any] = {}
        self._settings: dict[str, Setting] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_plan", "_asked", "_settings")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        names = [*map(repr, list(self.sources)[:4]), *(["..."] if len(self.sources) > 4 else [])]
        return f"MixedDataset({{{', '.join(names)}}}, {len(self)} an epoch, seed={self.recipe.seed})"

    def __len__(self) -> int:
        return self.recipe.epoch_size

    @property
    def names(self) -> list[str]:
        """The sources' names; draws() numbers them in this order."""
        return list(self._names)

    @property
    def seed(self) -> int:
        """The seed of the blocks, and of the shuffles of sources without an order."""
        return self.recipe.seed

    @property
    def first_position(self) -> int:
        """The first endless position that there is: 0, or where a mixture was changed."""
        return self.recipe.start

    @property
    def plan(self) -> MixturePlan | RunPlan:
        """The order, in numbers of the sources that have a weight."""
        if self._plan is None:
            self._plan = self.recipe.plan()
        return self._plan

    def reach(self, position: int) -> int:
        """position, or the end of the order that max_epochs sets where that comes before it."""
        return self.plan.reach(position) if self._chosen else position

    def draws(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The number of the source at each of these endless positions, and which of its draws it is; (n,) both.

        A source's draw is an endless position of it: its own epoch and index follow by divmod. IndexError for negative
        positions and in an empty mixture, OrderError for those before a change or behind the end that max_epochs sets.
        """
        given = np.asarray(positions)
        if not self._chosen:
            if given.size:
                raise IndexError(f"position {int(given.flat[0])} is outside a mixture of 0 samples")
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found, draws = self.plan.draws(given)
        return np.array(self._chosen, np.int64)[found], draws

    def drawn(self, positions: Int64s) -> Iterator[Drawn]:
        """What is drawn at these endless positions, source by source; each keeps the order of the positions.

        DatasetChangedError for a source that has another length than when it was mixed.
        """
        sources, draws = self.draws(positions)
        lengths = dict(zip(self._chosen, self.recipe.lengths, strict=True))
        by_source = np.argsort(sources, kind="stable")
        sorted_sources = sources[by_source]
        begins = np.flatnonzero(np.diff(sorted_sources, prepend=-1))
        bounds = [*begins.tolist(), len(sources)]
        drawn_sources = sorted_sources[begins].tolist()
        for source in drawn_sources:
            if source in lengths:
                check_same_length(self._list[source], lengths[source])
        draws = self._located(draws[by_source], bounds, drawn_sources)
        for source, (begin, end) in zip(drawn_sources, pairwise(bounds), strict=True):
            yield Drawn(self._names[source], self._list[source], draws[begin:end], by_source[begin:end])

    def _located(self, draws: Int64s, bounds: Sequence[int], sources: Sequence[int]) -> Int64s:
        """The endless positions of the datasets behind these draws, source by source: those of a source without an
        order are shuffled, all such sources together."""
        shuffled = [k for k, source in enumerate(sources) if not is_ordered(self._list[source])]
        if not shuffled:
            return draws
        places = np.concatenate([np.arange(bounds[k], bounds[k + 1]) for k in shuffled])
        ends = np.cumsum([bounds[k + 1] - bounds[k] for k in shuffled]).tolist()
        datasets: list[ShuffledDataset] = [self._asked_at(sources[k]) for k in shuffled]
        draws[places] = shuffled_each(
            draws[places], [0, *ends], [len(dataset) for dataset in datasets], [dataset.seed for dataset in datasets]
        )
        return draws

    def asked(self, name: str) -> Any:
        """The source in the order it is drawn in: itself if it is a view, else shuffled. Takes endless positions."""
        return self._asked_at(self._names.index(name))

    def __getitems__(self, positions: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples at these endless positions, as one batch: one read a source, of those that are drawn."""
        parts, places = [], []
        for part in self.drawn(np.asarray(positions)):
            try:
                samples = fetch(part.dataset, part.positions)
            except Exception as error:
                error.add_note(f"in source {part.name!r} of a mixture")
                raise
            parts.append(samples)
            places.append(part.places)
        return joined(parts, places) if parts else []

    def prefetch(self, positions: Int64s) -> None:
        """As a view's."""
        prefetch(self, positions)

    def __getitem__(self, index: int | slice) -> Any:
        """Sample index of epoch 0, negative from the end; a slice gives a sequence of samples. IndexError outside."""
        return item_or_slice(self, index)

    def lengths_at(self, positions: Int64s) -> Int64s:
        """The lengths of the samples at these endless positions; TypeError where a drawn source has none."""
        lengths = np.empty(len(positions), np.int64)
        for part in self.drawn(np.asarray(positions)):
            lengths[part.places] = lengths_at(part.dataset, part.positions)
        return lengths

    @property
    def lengths(self) -> Int64s:
        """The lengths of the samples of epoch 0, in its order; AttributeError where a source has none."""
        try:
            return self.lengths_at(np.arange(len(self), dtype=np.int64))
        except TypeError as error:  # what hasattr() asks for
            raise AttributeError(str(error)) from error

    @property
    def mean_length(self) -> Fraction:
        """The mean length of what an epoch draws, as far as whole epochs of the sources tell."""
        counts = self._counts(self.recipe.start + len(self))
        before = self._counts(self.recipe.start)
        total = sum(
            (after - first) * mean_length(self._list[source])
            for source, first, after in zip(self._chosen, before, counts, strict=True)
        )
        return Fraction(total, len(self)) if len(self) else Fraction(0)

    def sort_keys_at(self, positions: Int64s) -> Any:
        """What the samples at these endless positions are sorted by: an array where all sources have arrays of one
        kind, else a list."""
        parts = [
            (sort_keys_at(part.dataset, part.positions), part.places) for part in self.drawn(np.asarray(positions))
        ]
        if parts and all(isinstance(keys, np.ndarray) and keys.ndim == 1 for keys, _ in parts):
            kinds = {"i" if keys.dtype.kind in "iu" else keys.dtype.kind for keys, _ in parts}
            common = np.result_type(*(keys for keys, _ in parts))
            if len(kinds) == 1 and (kinds != {"i"} or common.kind in "iu"):  # else numbers became text, or rounded ones
                merged = np.empty(len(positions), common)
                for keys, places in parts:
                    merged[places] = keys
                return merged
        listed: list[Any] = [None] * len(positions)
        for keys, places in parts:
            plain = keys.tolist() if isinstance(keys, np.ndarray) and keys.ndim == 1 else keys
            for place, key in zip(places.tolist(), plain, strict=True):
                listed[place] = key
        return listed

    def positions_of(self, name: str, draws: Int64s) -> Int64s:
        """The endless positions of these draws of a source; those that never come are left out."""
        number = self._names.index(name)
        if number not in self._chosen:
            return np.empty(0, np.int64)
        found = self.plan.positions_of([self._chosen.index(number)] * len(draws), draws)
        return found[found >= 0]

    def draws_before(self, position: int) -> dict[str, int]:
        """How often each source was drawn before an endless position, which may be the end of the order."""
        counts = dict.fromkeys(self.sources, 0)
        counts.update((name, count) for name, count in self.recipe.departed if name in counts)
        counts.update(zip(self.recipe.names, self._counts(position), strict=True))
        return counts

    def report(self, position: int) -> MixtureReport:
        """What each source was to be drawn before a position, what it was, and the epochs and tokens of that."""
        position = whole_number("position", position, least=0)
        counts = self.draws_before(position)
        targets = dict.fromkeys(self.sources, Fraction(0))
        if self._chosen:
            exact = self.plan.targets(position)
            targets.update(zip(self.recipe.names, (Fraction(share, UNIT) for share in exact), strict=True))
        lengths: dict[str, int] = dict(zip(self.recipe.names, self.recipe.lengths, strict=True))
        means = [_known_mean(self.sources[name]) if name in lengths else Fraction(0) for name in self.sources]
        rows = [(name, targets[name], counts[name], lengths.get(name)) for name in self.sources]
        return report_of(position, len(self), rows, means)

    def continued(self, position: int, drawn: Mapping[str, int]) -> "MixedDataset":
        """The same mixture from an endless position on, where each source had been drawn so often by then.

        Sources that `drawn` does not name begin anew. What it says of others is kept, for when they come back.
        Positions before this one raise OrderError. Schedules and max_epochs count from the run's start, as ever.
        """
        position = whole_number("position", position, least=0, below=1 << 62)
        checked = {str(name): whole_number(f"drawn[{name!r}]", count, least=0) for name, count in drawn.items()}
        here = set(self.recipe.names)
        later = copy.copy(self)
        later.recipe = Recipe(
            **{
                **self.recipe.__dict__,
                "start": position,
                "drawn": tuple(checked.get(name, 0) for name in self.recipe.names),
                "departed": tuple((name, count) for name, count in checked.items() if count and name not in here),
            }
        )
        later._forget()
        return later

    def with_sources(self, sources: Mapping[str, Any]) -> "MixedDataset":
        """The same mixture over other datasets of the same names, which must have the same samples."""
        copied = copy.copy(self)
        copied.sources = {name: sources[name] for name in self.sources}
        copied._list = list(copied.sources.values())
        copied._forget()
        return copied

    @property
    def settings(self) -> dict[str, Setting]:
        """What decides the samples: a digest, and in short texts what a state needs to go on under other weights."""
        if self._settings is None:
            recipe = self.recipe
            text = b"[" + b",".join(self._settings_below()) + b"]"
            settings: dict[str, Setting] = {
                "mixture": recipe.digest(blake2b(text, digest_size=16).hexdigest()),
                "mixture_sources": len(recipe.names),
                "mixture_seed": recipe.seed,
                "epoch_size": recipe.epoch_size,
            }
            if recipe.run_length > 1:
                settings["mixture_run_length"] = recipe.run_length
            if recipe.start or any(recipe.drawn):
                settings["mixture_from"] = recipe.start
                settings["mixture_drawn"] = encode_counts(recipe.drawn)
            plan = recipe.encoded()
            if plan is not None:
                settings["mixture_plan"] = plan
            elif recipe.departed:
                settings["mixture_departed"] = encode_departed(recipe.departed)
            if len(self._chosen) * DATA_DIGITS <= DATA_TEXT_LIMIT:
                settings["mixture_data"] = "".join(self.source_digests().values())
            self._settings = settings
        return dict(self._settings)

    def source_digests(self) -> dict[str, str]:
        """DATA_DIGITS characters for each source with a weight, which tell its data from other data."""
        octets = DATA_DIGITS * 3 // 4
        digests = [b64encode(blake2b(text, digest_size=octets).digest()).decode() for text in self._settings_below()]
        return dict(zip(self.recipe.names, digests, strict=True))

    def _settings_below(self) -> list[bytes]:
        return [msgspec.json.encode(dataset_settings(self._list[source]), order="sorted") for source in self._chosen]

    def _counts(self, position: int) -> list[int]:
        return self.plan.counts(position) if self._chosen else []

    def _asked_at(self, source: int) -> Any:
        asked = self._asked.get(source)
        if asked is None:
            dataset = self._list[source]
            if not is_ordered(dataset):
                dataset = ShuffledDataset(dataset, derive_seed(self.recipe.seed, "source", self._names[source]))
            asked = self._asked[source] = dataset
        return asked


def _known_mean(source: Any) -> Fraction | None:
    try:
        check_lengths_in_tokens(source, "a report")  # stored bytes are no tokens
        return mean_length(source)
    except TypeError:
        return None
