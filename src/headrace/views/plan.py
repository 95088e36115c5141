"""Plan: which samples a step has, and in which steps a sample is seen, without reading any.

    step --> rows of each rank --> positions --> down through the views --> (source, item)
    (source, item) --> the leaf's positions --> up through the views, each undone --> positions --> steps

Both ways are arithmetic. Where rows are made of several samples, the windows between are planned, from lengths alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning import check_division, rank_positions, steps_left
from headrace.planning.shuffle import LAST_POSITION
from headrace.views.ending import reach_of
from headrace.views.leaves import leaves_at
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s, is_ordered, is_view, is_windowed, ordered_view, other_rows_a_step

__all__ = ["Origins", "Plan"]

_AT_ONCE = 1 << 16


class Origins(Sequence[tuple[str, int]]):
    """Where samples come from: a sequence of (source, item), also as two arrays.

    sources has the name of each sample's source in a mixture, "outer/inner" in one of mixtures, "" where there is none;
    items its number in that dataset. Both have shape (num_samples,).
    """

    def __init__(self, sources: NDArray[np.str_], items: Int64s) -> None:
        self.sources, self.items = sources, items

    @classmethod
    def at(cls, dataset: Any, positions: Int64s) -> "Origins":
        """Those of the samples at these endless positions of dataset."""
        names = np.empty(len(positions), object)
        items = np.empty(len(positions), np.int64)
        for leaf in leaves_at(dataset, positions):
            names[leaf.places], items[leaf.places] = leaf.source, leaf.items
        return cls(names.astype(np.str_), items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> "Origins": ...
    def __getitem__(self, index: int | slice) -> "tuple[str, int] | Origins":
        if isinstance(index, slice):
            return Origins(self.sources[index], self.items[index])
        return str(self.sources[index]), int(self.items[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # as a list

    def __repr__(self) -> str:
        return f"Origins({list(self)!r})"


class Plan:
    """The steps of a dataset's epochs, as a loader with these sizes makes them. Without a rank, and reading no sample.

    dataset is any map-style one, a composition of views, or packed rows or token-budget batches over one: there a row
    is several samples, and for batches global_batch_size is world_size, since every rank gets one a step. Finding a
    step of those plans the windows before it in its epoch, from lengths. A StreamingDataset stands for its view.
    """

    def __init__(self, dataset: Any, global_batch_size: int, world_size: int = 1, *, drop_last: bool = True) -> None:
        self.dataset = dataset = ordered_view(dataset)
        self.global_batch_size = whole_number("global_batch_size", global_batch_size, least=1)
        self.world_size = whole_number("world_size", world_size, least=1)
        self.drop_last = drop_last
        check_division(self.global_batch_size, self.world_size)
        if (expected := other_rows_a_step(dataset, self.global_batch_size, self.world_size)) is not None:
            raise OptionError("global_batch_size", global_batch_size, expected)

    def __repr__(self) -> str:
        sizes = f"{self.global_batch_size}, {self.world_size}, drop_last={self.drop_last}"
        return f"Plan({self.dataset!r}, {sizes})"

    def rows_in_epoch(self, epoch: int = 0) -> int:
        """Rows of an epoch for all ranks together; packed rows and batches are counted, from lengths."""
        if is_windowed(self.dataset):
            return int(self.dataset.rows_in_epoch(epoch))
        begin, end = _span(self.dataset, epoch)
        return end - begin

    def steps_in_epoch(self, epoch: int = 0) -> int:
        """Steps of an epoch; a short last one counts unless drop_last drops it."""
        return steps_left(self.rows_in_epoch(epoch), 0, self.global_batch_size, self.drop_last)

    def samples_of_step(self, step: int, epoch: int = 0) -> list[Any]:
        """What each rank gets in a step: a list, one a rank, of Origins in the order of its rows.

        Over packed rows and token-budget batches: a list, one a rank, of lists of Origins, one a row. A rank that gets
        nothing in a short last step has none. IndexError for a step that the epoch does not have.
        """
        self._check_epoch(epoch)
        if step < 0:
            raise IndexError(f"step {step} is before the first")
        begin = step * self.global_batch_size
        if is_windowed(self.dataset):
            rows = self._window_rows(epoch, begin)
            self._check_step(step, epoch, begin + len(rows))
            return [rows[rank :: self.world_size] for rank in range(self.world_size)]
        num_rows, first = self.rows_in_epoch(epoch), epoch * len(self.dataset)
        self._check_step(step, epoch, num_rows)
        return [Origins.at(self.dataset, first + self._rows(begin, num_rows, rank)) for rank in self._ranks]

    def when_seen(self, source: str | None, item: int, epochs: Iterable[int] = range(1)) -> list[tuple[int, int]]:
        """The (epoch, step) at which a sample is seen, in order, each once; [] where it is in none of these epochs.

        source is its name in a mixture ("outer/inner" in one of mixtures), None or "" where there is none. OptionError
        for a source that is not there, IndexError for an item outside its dataset.
        """
        seen = []
        for epoch in epochs:
            self._check_epoch(epoch)
            rows = self._rows_with(source or "", item, epoch)
            steps = rows // self.global_batch_size
            if self.drop_last and len(steps):
                steps = steps[steps < self.steps_in_epoch(epoch)]
            seen += [(epoch, step) for step in sorted(set(steps.tolist()))]
        return seen

    @property
    def _ranks(self) -> range:
        return range(self.world_size)

    def _check_epoch(self, epoch: int) -> None:
        if epoch < 0:
            raise IndexError(f"epoch {epoch} is before the first")
        length = len(self.dataset.base if is_windowed(self.dataset) else self.dataset)
        if (epoch + 1) * length > LAST_POSITION:
            raise IndexError(f"epoch {epoch}, of {length} samples, does not end below 2**63")

    def _check_step(self, step: int, epoch: int, num_rows: int) -> None:
        if steps_left(num_rows, step * self.global_batch_size, self.global_batch_size, self.drop_last) == 0:
            raise IndexError(
                f"step {step} is outside epoch {epoch}, which has {self.steps_in_epoch(epoch)} steps: "
                f"{self.rows_in_epoch(epoch)} rows, {self.global_batch_size} a step"
            )

    def _rows(self, begin: int, num_rows: int, rank: int) -> Int64s:
        """The rows of the epoch that rank gets in the step that begins at row `begin`."""
        sizes = {"global_batch_size": self.global_batch_size, "world_size": self.world_size}
        return rank_positions(begin, 1, num_rows=num_rows, rank=rank, **sizes)[0]

    def _window_rows(self, epoch: int, begin: int) -> list[Origins]:
        """The rows of the step that begins at this row of the epoch; plans the windows up to its end."""
        rows: list[Origins] = []
        end, first = begin + self.global_batch_size, 0
        for window in range(self.dataset.num_windows):
            count = self.dataset.rows_in_window(epoch, window)
            low, high = max(begin, first) - first, min(end - first, count)
            if low < high:
                positions, offsets = self.dataset.row_positions(epoch, window)
                of_rows = Origins.at(self.dataset.base, positions[offsets[low] : offsets[high]])
                bounds = (offsets[low : high + 1] - offsets[low]).tolist()
                rows += [of_rows[bounds[k] : bounds[k + 1]] for k in range(high - low)]
            first += count
            if first >= end:
                break
        return rows

    def _rows_with(self, source: str, item: int, epoch: int) -> Int64s:
        """The rows of an epoch, from 0, that have this sample; some may come twice."""
        dataset = self.dataset
        if not is_windowed(dataset):
            begin, end = _span(dataset, epoch)
            return _places(dataset, source, item, begin, end) - begin
        begin, end = _span(dataset.base, epoch)
        positions = _places(dataset.base, source, item, begin, end)
        windows = np.minimum((positions - begin) // dataset.window, max(0, dataset.num_windows - 1))
        found = [np.empty(0, np.int64)]
        before, counted = 0, 0
        for window in sorted(set(windows.tolist())):
            before += sum(dataset.rows_in_window(epoch, earlier) for earlier in range(counted, window))
            counted = window
            in_rows, offsets = dataset.row_positions(epoch, window)
            at = np.flatnonzero(_among(in_rows, positions))
            found.append(before + np.searchsorted(offsets, at, side="right") - 1)
        return np.concatenate(found)


def _span(dataset: Any, epoch: int) -> tuple[int, int]:
    """The endless positions of an epoch, from the first to the one behind the last; none behind the order's end."""
    begin, end = epoch * len(dataset), (epoch + 1) * len(dataset)
    reach = reach_of(dataset)
    return begin, end if reach is None else max(begin, reach(end))


def _places(dataset: Any, source: str, item: int, begin: int, end: int) -> Int64s:
    """The endless positions of dataset from begin to end (exclusive) where this sample stands, ascending."""
    if is_view(dataset):
        length, below = len(dataset), len(dataset.base)
        if length == 0:
            _places(dataset.base, source, item, 0, 0)  # a sample that is not there is one that nobody can see
            return np.empty(0, np.int64)
        first, last = begin // length, -(-end // length)
        positions = _positions_of(dataset, _places(dataset.base, source, item, first * below, last * below))
    elif is_ordered(dataset):
        name, rest = _source_named(dataset.sources, source)
        end = max(dataset.first_position, dataset.reach(end))  # there is nothing behind the end, and before the first
        begin = min(end, max(begin, dataset.first_position))
        first, last = (dataset.draws_before(position)[name] for position in (begin, end))
        if first == last:  # a source without a weight is not opened to see whether it has the item
            return np.empty(0, np.int64)
        positions = dataset.positions_of(name, _places(dataset.asked(name), rest, item, first, last))
    else:
        return _leaf_places(dataset, source, item, begin, end)
    return np.sort(positions[(positions >= begin) & (positions < end)])


def _leaf_places(dataset: Any, source: str, item: int, begin: int, end: int) -> Int64s:
    if source:
        raise OptionError("source", source, f"none here: {type(dataset).__name__} is no mixture")
    length = len(dataset)
    if not 0 <= item < length:
        raise IndexError(f"item {item} is outside a dataset of {length} samples")
    return np.arange(begin + (item - begin) % length, end, length, dtype=np.int64)


def _source_named(sources: Iterable[str], wanted: str) -> tuple[str, str]:
    """The source of a mixture that is meant, and what is left of the name, for a mixture below it."""
    names = list(sources)
    for name in sorted(names, key=len, reverse=True):  # names may contain "/" themselves
        if wanted == name or wanted.startswith(f"{name}/"):
            return name, wanted[len(name) + 1 :]
    raise OptionError("source", wanted, f"one of {', '.join(map(repr, names[:16]))}{', ...' * (len(names) > 16)}")


def _positions_of(view: Any, base_positions: Int64s) -> Int64s:
    """The view's endless positions behind which these of its base lie; a view that cannot say is walked through."""
    own = getattr(view, "positions_of", None)
    if own is not None:
        return np.asarray(own(base_positions), np.int64)
    length, below = len(view), len(view.base)
    found = [np.empty(0, np.int64)]
    endless = is_ordered(view.base)  # else an item is the same one in every epoch, and the view may name it from 0
    for epoch in sorted(set((base_positions // below).tolist())):
        wanted = base_positions[base_positions // below == epoch]
        wanted = np.sort(wanted if endless else wanted % below)
        for begin in range(epoch * length, (epoch + 1) * length, _AT_ONCE):
            positions = np.arange(begin, min(begin + _AT_ONCE, (epoch + 1) * length), dtype=np.int64)
            located = view.locate(positions)
            found.append(positions[_among(located if endless else located % below, wanted)])
    return np.concatenate(found)


def _among(values: Int64s, ascending: Int64s) -> NDArray[np.bool_]:
    """Whether each value is one of these, which are at least one."""
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[places] == values
    return found
