"""Cuts inputs of rows into splits, the same whatever the number of workers, and reads the rows of a split.

The inputs lie end to end, each as long as it is on disk. The k-th of n borders stands at byte total * k / n; inside its
input it is moved to a place at which a row begins. So the splits, one after the other, are all rows in order.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol

from headrace.errors import InputError
from headrace.preparation.rows.columns import Columns
from headrace.preparation.sources import default_num_splits

__all__ = ["Observer", "Part", "Row", "RowSource", "RowSplit", "Rows", "read_rows", "split_sources"]

Row = dict[str, Any]
Observer = Callable[[int], None]


class RowSource(Protocol):
    """One input. A frozen dataclass: it pickles, and its fields say which data it was, so that it can be recognised."""

    @property
    def name(self) -> str:
        """Its path, for messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        ...

    @property
    def length(self) -> int:
        """How many places it has: bytes where rows are found by reading, else rows."""
        ...

    @property
    def can_be_cut(self) -> bool:
        """Whether rows can begin anywhere but at place 0."""
        ...

    @property
    def has_schema(self) -> bool:
        """Whether every row has the same columns."""
        ...

    def cuts(self, places: Sequence[int]) -> list[int]:
        """For each of the ascending places one near it, 0 to length, at which a row begins; ascending too."""
        ...

    def columns(self) -> Columns:
        """What its columns hold, by its own record, or by its first rows where it has none."""
        ...

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(place, row) of the rows from start to stop, exclusive, which are places that cuts() gave.

        Only the named columns are wanted; others may be there. The observer hears of bytes on disk.
        """
        ...

    def where(self, place: int) -> str:
        """The row at that place, for messages: the file and its line."""
        ...


@dataclass(frozen=True)
class Part:
    """The rows of one input from place start to place stop, exclusive."""

    source: RowSource
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """About as many bytes on disk."""
        return self.source.size_bytes * (self.stop - self.start) // self.source.length

    def __str__(self) -> str:
        whole = self.start == 0 and self.stop == self.source.length
        return self.source.name if whole else f"{self.source.name}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class RowSplit:
    """What one task reads: parts of inputs, in order. May be empty."""

    parts: tuple[Part, ...]
    observer: Observer | None = field(default=None, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """About as many bytes on disk."""
        return sum(part.size_bytes for part in self.parts)

    def identity(self) -> list[object]:
        """What a task's id is made of: the inputs as they were, and the places."""
        return [[part.source, part.start, part.stop] for part in self.parts]

    def observed(self, observer: Observer) -> "RowSplit":
        """The same split, which calls observer with the number of bytes whenever it has read some."""
        return replace(self, observer=observer)

    def __str__(self) -> str:
        if len(self.parts) > 1:
            return f"{len(self.parts)} inputs from {self.parts[0]} to {self.parts[-1]}"
        return str(self.parts[0]) if self.parts else "no input (an empty split)"


class Rows:
    """The rows of a split, in order, and where the last one came from."""

    def __init__(self, split: RowSplit, names: Sequence[str] | None = None) -> None:
        self._split = split
        self._names = names
        self._source: RowSource | None = None
        self._place = 0

    def __iter__(self) -> Iterator[Row]:
        for part in self._split.parts:
            self._source = part.source
            for place, row in part.source.rows(part.start, part.stop, self._names, self._split.observer):
                self._place = place
                yield row

    def where(self) -> str:
        """The file and line, or row, of the row that came last."""
        return str(self._split) if self._source is None else self._source.where(self._place)


def read_rows(split: RowSplit) -> Iterator[Row]:
    """The rows of a split, in order. InputError names file and line, or row, of what cannot be read."""
    return iter(Rows(split))


def split_sources(sources: Iterable[RowSource], num_splits: int | None = None) -> list[RowSplit]:
    """num_splits splits of about equal size on disk that, one after the other, are the inputs in the order given.

    Where there are fewer rows than splits, some are empty. num_splits=None takes one for each 4 MiB up to 64, one for
    each 128 MiB beyond 8 GiB, and never more than there are inputs when none of them can be cut.
    """
    if num_splits is not None and num_splits < 1:
        raise InputError(f"num_splits={num_splits}", "must be at least 1")
    inputs = [source for source in sources if source.length]
    total_bytes = sum(source.size_bytes for source in inputs)
    if total_bytes == 0:
        raise InputError("inputs", "hold no row; there is nothing to prepare")
    if num_splits is None:
        num_splits = default_num_splits(total_bytes)
        if not any(source.can_be_cut for source in inputs):
            num_splits = min(num_splits, len(inputs))
    borders = [(0, 0), *_borders(inputs, total_bytes, num_splits), (len(inputs), 0)]
    return [RowSplit(_between(inputs, first, last)) for first, last in pairwise(borders)]


def _borders(inputs: Sequence[RowSource], total_bytes: int, num_splits: int) -> Iterator[tuple[int, int]]:
    """The places (input, place) between the splits, in ascending order."""
    first_bytes = list(accumulate((source.size_bytes for source in inputs), initial=0))
    wanted: list[list[int]] = [[] for _ in inputs]
    for k in range(1, num_splits):
        index = bisect_right(first_bytes, total_bytes * k // num_splits) - 1
        offset = total_bytes * k // num_splits - first_bytes[index]
        wanted[index].append(offset * inputs[index].length // inputs[index].size_bytes)
    for index, (source, places) in enumerate(zip(inputs, wanted, strict=True)):
        for place in source.cuts(places) if places else ():
            yield (index, place) if place < source.length else (index + 1, 0)


def _between(inputs: Sequence[RowSource], first: tuple[int, int], last: tuple[int, int]) -> tuple[Part, ...]:
    parts = []
    for index in range(first[0], min(last[0] + 1, len(inputs))):
        start = first[1] if index == first[0] else 0
        stop = last[1] if index == last[0] else inputs[index].length
        if start < stop:
            parts.append(Part(inputs[index], start, stop))
    return tuple(parts)
