"""Samples that cannot be decoded, replaced by others: the same ones on every rank, in every worker and every replay.

    item i fails  ->  candidates: Permutation(n, derive_seed(0, "substitute", i)) at positions 0, 1, 2, ..., without i
                  ->  the first of them that can be read, and is no longer than i where rows were planned by length

Nothing else takes part, so who meets i first, and when, cannot be seen in the batches, and nothing goes into a state.
"""

import logging
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptShardError, HeadraceError, OptionError, OrderError
from headrace.planning import Permutation, derive_seed
from headrace.views.hints import prefetch, takes_hints
from headrace.views.protocol import (
    Int64s,
    Setting,
    dataset_settings,
    fetch,
    is_ordered,
    is_windowed,
    item_or_slice,
    lengths_at,
    mean_length,
    with_base,
)

__all__ = [
    "CORRUPT",
    "Skipped",
    "SkippedItems",
    "SkippingDataset",
    "corrupt_errors",
    "is_corrupt",
    "skipping",
    "with_leaves",
]

CORRUPT: tuple[type[Exception], ...] = (CorruptShardError, ValueError, KeyError, EOFError, struct.error, zlib.error)
_FAMILIES = (HeadraceError, OSError, MemoryError)
_TRIED = 64  # candidates that are read
_COMPARED = 4096  # candidates that are looked at, where only some are short enough

_logger = logging.getLogger("headrace")


def corrupt_errors(option: bool | Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    """The types of errors that say a sample is damaged: CORRUPT for True, none for False, else those given.

    TypeError for what is no type of exceptions; OptionError for an empty list of them.
    """
    if isinstance(option, bool | np.bool_):
        return CORRUPT if option else ()
    if isinstance(option, type) or not isinstance(option, Iterable):
        raise TypeError(f"skip_corrupt must be True, False or a tuple of exception types, not {option!r}")
    kinds = tuple(option)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"skip_corrupt must list types of exceptions, and {kind!r} is none")
    if not kinds:
        raise OptionError("skip_corrupt", kinds, "True, False, or at least one type of exceptions")
    return kinds


def is_corrupt(error: Exception, kinds: tuple[type[Exception], ...]) -> bool:
    """Whether the error says that a sample is damaged: it is of one of the kinds.

    A store or network that fails, memory that is short, and what Headrace refuses (a closed dataset, other data, unsafe
    types) are no damage of a sample: other ranks would not meet it. So OSError, MemoryError and HeadraceError count
    only if a type of that family is among the kinds, as CorruptShardError is; `Exception` is not enough for them.
    """
    matching = [kind for kind in kinds if isinstance(error, kind)]
    family = next((family for family in _FAMILIES if isinstance(error, family)), Exception)
    return any(issubclass(kind, family) for kind in matching)


@dataclass(frozen=True)
class Skipped:
    """A sample that could not be decoded: its number in its dataset, the one that came instead, and why.

    source is the dataset's name in a mixture ("outer/inner" in one of mixtures), "" where there is only one dataset.
    """

    source: str
    item: int
    substitute: int
    error: str


class SkippedItems:
    """What this process skipped, in the order met, each item once; shared by threads, and taken along by pickle.

    Each new one is logged as a warning on the logger "headrace".
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Skipped] = {}
        self._substitutes: dict[str, dict[int, int]] = {}
        self._met: dict[tuple[str, int], Skipped] | None = None  # in a worker: those of the batch being made
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, list[Skipped]]:
        return {"found": list(self)}

    def __setstate__(self, state: dict[str, list[Skipped]]) -> None:
        self.__init__()  # type: ignore[misc]
        for skipped in state["found"]:
            self._keep(skipped)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Skipped]:
        with self._lock:
            return iter(list(self._found.values()))

    def add(self, skipped: Skipped) -> None:
        """Note it; one that is known already changes nothing."""
        with self._lock:
            if not self._keep(skipped) or self._met is not None:
                return
        source = f" of source {skipped.source!r}" if skipped.source else ""
        _logger.warning(
            "sample %d%s cannot be decoded, sample %d takes its place: %s",
            *(skipped.item, source, skipped.substitute, skipped.error),
        )

    def knows(self, source: str, item: int) -> bool:
        """Whether this item of a source was replaced."""
        return (source, item) in self._found

    def replaced(self, source: str, items: Int64s) -> Int64s:
        """items, with the substitute of each one that is known to be damaged."""
        known = self._substitutes.get(source)
        if not known or known.keys().isdisjoint(numbers := items.tolist()):
            return items
        if self._met is not None:
            self._met.update(((source, item), self._found[source, item]) for item in numbers if item in known)
        return np.array([known.get(item, item) for item in numbers], np.int64)

    @contextmanager
    def reporting(self) -> Iterator[dict[tuple[str, int], Skipped]]:
        """Within, what is met is collected for another process, known or new, and left for that one to log.

        For a process that makes one batch at a time, as torch's workers do.
        """
        met: dict[tuple[str, int], Skipped] = {}
        self._met = met
        try:
            yield met
        finally:
            self._met = None

    def _keep(self, skipped: Skipped) -> bool:
        place = skipped.source, skipped.item
        if place in self._found:
            return False
        self._found[place] = skipped
        self._substitutes.setdefault(skipped.source, {})[skipped.item] = skipped.substitute
        return True


class SkippingDataset:
    """base, a dataset below all views, with a substitute for each sample that raises one of these kinds of errors.

    What was replaced is noted in `skipped`. With fit=True a substitute is no longer than what it stands for, by the
    base's lengths: for rows that were planned by them. After 64 candidates that cannot be read either the sample's own
    error surfaces, with a note. Length, lengths, sort keys and settings are the base's: a state does not know of it.
    """

    def __init__(
        self,
        base: Any,
        kinds: tuple[type[Exception], ...] = CORRUPT,
        skipped: SkippedItems | None = None,
        *,
        source: str = "",
        fit: bool = False,
    ) -> None:
        self.base = base
        self.kinds = kinds
        self.skipped = SkippedItems() if skipped is None else skipped
        self.source = source
        self.fit = fit

    def __repr__(self) -> str:
        return f"SkippingDataset({self.base!r})"

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int | slice) -> Any:
        """Sample index, negative from the end, or its substitute; a slice gives a sequence. IndexError outside."""
        return item_or_slice(self, index)

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples of a batch, in request order, or their substitutes; items are 0..len-1.

        One read of the base, as long as no sample fails that is not known to; then each is read by itself, once.
        """
        asked = np.asarray(items, np.int64)
        numbers = self.skipped.replaced(self.source, asked)
        try:
            return fetch(self.base, numbers)
        except Exception as error:
            if not is_corrupt(error, self.kinds):
                raise
        if self._note_damaged(numbers):
            numbers = self.skipped.replaced(self.source, asked)
            try:
                return fetch(self.base, numbers)  # together, so that a batch is of the type it always is
            except Exception as error:
                if not is_corrupt(error, self.kinds):
                    raise
        return [self._read(number) for number in numbers.tolist()]

    @property
    def keeps_copies(self) -> bool:
        """The base's: whether prefetch() does anything."""
        return takes_hints(self.base)

    def prefetch(self, items: Int64s) -> None:
        """The base's hint."""
        prefetch(self.base, items)

    @property
    def reads_slices(self) -> bool:
        """Whether read_slices() can be used, as the base says."""
        return bool(getattr(self.base, "reads_slices", False))

    def read_slices(self, items: Int64s, starts: Int64s, stops: Int64s) -> Sequence[Any]:
        """The base's: elements starts[k] to stops[k] of document items[k], or of its substitute, up to where that ends.

        A part of a document must be readable whenever the whole is, and else fail alike.
        """
        try:
            parts: Sequence[Any] = self.base.read_slices(self.skipped.replaced(self.source, items), starts, stops)
        except Exception as error:
            if not is_corrupt(error, self.kinds):
                raise
            self._note_damaged(self.skipped.replaced(self.source, items))
            parts = self.base.read_slices(self.skipped.replaced(self.source, items), starts, stops)
        return parts

    def replaces(self, item: int) -> bool:
        """Whether another sample, maybe a shorter one, is given for this one: known once it was read."""
        return self.skipped.knows(self.source, item)

    @property
    def settings(self) -> dict[str, Setting]:
        """The base's."""
        return dataset_settings(self.base)

    @property
    def fingerprint(self) -> str:
        """The base's; AttributeError where it has none."""
        return str(self.base.fingerprint)

    @property
    def lengths(self) -> Any:
        """The base's; AttributeError where it has none."""
        return self.base.lengths

    @property
    def lengths_at(self) -> Callable[[Int64s], Int64s]:
        """The base's; AttributeError where it has none of its own."""
        return self.base.lengths_at  # type: ignore[no-any-return]

    @property
    def length_unit(self) -> str:
        """The base's; AttributeError where it has none."""
        return str(self.base.length_unit)

    @property
    def mean_length(self) -> Fraction:
        """The base's mean length."""
        return mean_length(self.base)

    @property
    def shard_lengths(self) -> Any:
        """The base's; AttributeError where it has no shards."""
        return self.base.shard_lengths

    @property
    def shard_items(self) -> Any:
        """The base's; AttributeError where it has no shards."""
        return self.base.shard_items

    @property
    def sort_keys(self) -> Callable[[Int64s], Any]:
        """The base's; AttributeError where it has none."""
        return self.base.sort_keys  # type: ignore[no-any-return]

    @property
    def sort_key(self) -> Callable[[int], Any]:
        """The base's; AttributeError where it has none."""
        return self.base.sort_key  # type: ignore[no-any-return]

    def _read(self, number: int) -> Any:
        return fetch(self.base, np.array([number], np.int64))[0]

    def _note_damaged(self, numbers: Int64s) -> bool:
        """Read each of them by itself, and note those that fail with their substitutes. Whether there were any."""
        found = False
        for number in dict.fromkeys(numbers.tolist()):
            try:
                self._read(number)
            except Exception as error:
                if not is_corrupt(error, self.kinds):
                    raise
                substitute = self._substitute(number)
                if substitute is None:
                    error.add_note(f"sample {number}{self._named()} has no substitute: {self._why_none()}")
                    raise
                self.skipped.add(Skipped(self.source, number, substitute, f"{type(error).__name__}: {error}"))
                found = True
        return found

    def _substitute(self, item: int) -> int | None:
        """The sample that stands for item, a pure function of it and the data; None where none of the first can."""
        length = len(self.base)
        order = Permutation(length, derive_seed(0, "substitute", item))
        candidates = order(np.arange(min(length, _COMPARED if self.fit else _TRIED + 1), dtype=np.int64))
        candidates = candidates[candidates != item]
        if self.fit:
            longest = int(lengths_at(self.base, np.array([item], np.int64))[0])
            candidates = candidates[lengths_at(self.base, candidates) <= longest]
        for candidate in candidates[:_TRIED].tolist():
            try:
                self._read(candidate)
            except Exception as error:
                if not is_corrupt(error, self.kinds):
                    raise
            else:
                return int(candidate)
        return None

    def _named(self) -> str:
        return f" of source {self.source!r}" if self.source else ""

    def _why_none(self) -> str:
        no_longer = " that are no longer" if self.fit else ""
        return f"of {len(self)} samples, none of the {_TRIED} candidates{no_longer} can be decoded either"


def skipping(dataset: Any, kinds: tuple[type[Exception], ...], skipped: SkippedItems) -> Any:
    """The same composition, in which a sample that raises one of these kinds of errors is replaced and noted.

    dataset stays as it is. Rows of packs and token budgets keep their bounds: their substitutes are no longer.
    OrderError where two sources of nested mixtures have one name, as "a/b" and the "b" of "a".
    """
    fit = is_windowed(dataset)
    names: set[str] = set()

    def wrap(leaf: Any, name: str) -> SkippingDataset:
        if name in names:  # what was replaced in one would be replaced in the other
            raise OrderError(f"skip_corrupt tells sources by name, and two are {name!r}; give one another name")
        names.add(name)
        return SkippingDataset(leaf, kinds, skipped, source=name, fit=fit)

    return with_leaves(dataset, wrap)


def with_leaves(dataset: Any, wrap: Callable[[Any, str], Any], source: str = "") -> Any:
    """The same composition over wrap(leaf, source) in place of each dataset below all views; dataset stays as it is.

    wrap must keep items, lengths and settings. source is the leaf's name in a mixture, as `Skipped` has it. Leaves are
    not opened, so that a source which is never drawn stays closed.
    """
    if not is_ordered(dataset) and not is_windowed(dataset):
        return wrap(dataset, source)
    if is_windowed(dataset):
        return dataset.over(with_leaves(dataset.base, wrap, source))
    sources: Mapping[str, Any] | None = getattr(dataset, "sources", None)
    if sources is None:
        return with_base(dataset, with_leaves(dataset.base, wrap, source))
    prefix = f"{source}/" if source else ""
    return dataset.with_sources({name: with_leaves(one, wrap, f"{prefix}{name}") for name, one in sources.items()})
