"""WindowedDataset: rows that are made of several samples, planned a window of the base's positions at a time.

    base     epoch 0:  0 ......... window | window ......... 2 * window | ... n      the last window takes the rest
                       |__ window 0 ____|   |__ window 1 _____________|
    plan               rows 0, 1, 2, ...    rows 0, 1, ...                          from the samples' lengths alone
    address            (epoch * num_windows + window) << ROW_BITS | row             one int64 a row

How many rows a window gives follows from the lengths in it, so a row is found by its window, and position k of an
epoch only by counting the rows before it.
"""

import copy
import operator
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError, OrderError
from headrace.planning import plan_fingerprint
from headrace.planning.shuffle import LAST_POSITION
from headrace.views.ending import reach_of
from headrace.views.hints import prefetch
from headrace.views.leaves import check_lengths_in_tokens, check_stateless
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s, Setting, add_settings, check_same_length, checked_base, lengths_at
from headrace.views.row_counts import load_counts, save_counts

__all__ = ["ROW_BITS", "WindowPlan", "WindowRows", "WindowedDataset"]

ROW_BITS = 24  # rows a window: 16 million; which leaves 2^39 windows
_PLANS_KEPT = 8
_COUNTS_KEPT = 1 << 16


class WindowPlan(Protocol):
    """What was planned for a window."""

    @property
    def num_rows(self) -> int:
        """How many rows the window gives."""
        ...


P = TypeVar("P", bound=WindowPlan)


@dataclass(frozen=True)
class WindowRows(Generic[P]):
    """Rows of one window that a batch asks for."""

    plan: P
    start: int  # the base's endless position of the window's first sample
    rows: Int64s  # (k,) numbers in the plan
    places: Int64s  # (k,) where each belongs in the batch


class WindowedDataset(ABC, Generic[P]):
    """Rows planned a window at a time, from lengths alone. A kind says how a window is planned and a row is read.

    `view[i]` is row i of epoch 0, and len() its number of rows: both count rows from the start, which reads the lengths
    of an epoch once. Loaders do not need either: they go by window and row. `__getitems__` takes addresses.
    """

    ordered: ClassVar[bool] = True
    windowed: ClassVar[bool] = True
    rows_are_batches: ClassVar[bool] = False  # whether a row is a list of samples, to be collated by itself
    rows_per_step = 1  # a training step is a whole number of so many rows

    def __init__(self, base: Any, window: int, cache: str | Path | None = None) -> None:
        self.base = checked_base(base, type(self).__name__)
        check_stateless(base, type(self).__name__)
        self.window = whole_number("window", window, least=1)
        self._length: int | None = None  # of the base when the first window was planned
        self.cache = None if cache is None else Path(cache)
        if self.cache is not None and (self.cache.is_dir() or not self.cache.parent.is_dir()):
            raise OptionError("cache", str(cache), "the path of a file, in a folder that is there")
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()  # threads that need one plan wait for it instead of making it twice
        self._process = os.getpid()
        self._plans: OrderedDict[tuple[int, int], P] = OrderedDict()
        self._counts: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._epochs: dict[int, Int64s] = {}  # epoch -> (num_windows + 1,) rows before each window

    def __getstate__(self) -> dict[str, Any]:
        made = ("_lock", "_process", "_plans", "_counts", "_epochs")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def over(self, base: Any) -> Self:
        """The same rows over another base, with the same lengths at its positions; what either plans serves both."""
        other = copy.copy(self)
        other.base = base
        other._lock, other._process = self._lock, self._process
        other._plans, other._counts, other._epochs = self._plans, self._counts, self._epochs
        return other

    @abstractmethod
    def _planned(self, lengths: Int64s, epoch: int, window: int) -> P:
        """The plan of a window whose samples have these lengths. A pure function of its arguments and the settings."""

    @abstractmethod
    def _read(self, parts: Sequence[WindowRows[P]], num_rows: int) -> Sequence[Any]:
        """The num_rows rows that parts ask for, each at its place."""

    @property
    @abstractmethod
    def own_settings(self) -> Mapping[str, Setting]:
        """What decides the rows, beside the base."""

    @property
    def settings(self) -> dict[str, Setting]:
        """The base's settings and those that decide the rows."""
        return add_settings(self.base, self.own_settings)

    @property
    def num_windows(self) -> int:
        """Windows an epoch; 0 over an empty base."""
        length = len(self.base)
        return max(1, length // self.window) if length else 0

    def window_span(self, epoch: int, window: int) -> tuple[int, int]:
        """The base's endless positions that a window is cut at: the first, and the one behind the last."""
        length = len(self.base)
        begin = epoch * length
        last = window == self.num_windows - 1
        return begin + window * self.window, begin + (length if last else (window + 1) * self.window)

    def window_positions(self, epoch: int, window: int) -> tuple[int, int]:
        """window_span(), as far as there is something: where the base's order ends, a window has what comes before."""
        first, end = self.window_span(epoch, window)
        if (reach := reach_of(self.base)) is not None:
            end = reach(end)
        return min(first, end), end

    def window_plan(self, epoch: int, window: int) -> P:
        """The plan of a window.

        IndexError for a window that an epoch does not have, DatasetChangedError where the base grew or shrank.
        """
        if self._length is None:
            self._length = len(self.base)
        check_same_length(self.base, self._length)
        self._check_window(epoch, window)
        key = (epoch, window)
        if self._process != os.getpid():  # the lock of the process that this one was forked from may be held for good
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
            check_lengths_in_tokens(self.base, type(self).__name__)
            begin, end = self.window_positions(epoch, window)
            plan = self._planned(lengths_at(self.base, np.arange(begin, end, dtype=np.int64)), epoch, window)
            if plan.num_rows >> ROW_BITS:
                raise OrderError(
                    f"window {window} has {plan.num_rows} rows; make it smaller than {self.window} samples"
                )
            self._check_count(epoch, window, plan.num_rows)
            self._plans[key] = plan
            self._counts[key] = plan.num_rows
            while len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
            while len(self._counts) > _COUNTS_KEPT:
                self._counts.popitem(last=False)
            return plan

    def rows_in_window(self, epoch: int, window: int) -> int:
        """How many rows a window gives; the count is remembered when the plan is not."""
        count = self._counts.get((epoch, window))
        if count is not None:
            return count
        starts = self._epochs.get(epoch)
        if starts is not None:
            self._check_window(epoch, window)
            return int(starts[window + 1] - starts[window])
        return self.window_plan(epoch, window).num_rows

    def rows_in_epoch(self, epoch: int = 0) -> int:
        """How many rows an epoch gives. Plans all of its windows, the first time: that reads lengths only.

        With `cache`, a file keeps the answer for other processes and later runs. One that is damaged, or of other
        settings or data, is made anew; where it cannot be written, that is logged.
        """
        return int(self._row_starts(epoch)[-1])

    def __len__(self) -> int:
        return self.rows_in_epoch(0)

    def addresses(self, epoch: int, window: int, first_row: int = 0) -> Int64s:
        """The addresses of a window's rows from first_row on."""
        rows = np.arange(first_row, self.rows_in_window(epoch, window), dtype=np.int64)
        rows += (epoch * self.num_windows + window) << ROW_BITS
        return rows

    def windows_of(self, addresses: Int64s) -> list[tuple[int, int, Int64s, Int64s]]:
        """(epoch, window, rows, places among the addresses) for each window that the addresses are in.

        IndexError for an address outside.
        """
        given = np.asarray(addresses)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"addresses are integers, not {given.dtype}")
        given = given.astype(np.int64, copy=False).reshape(-1)
        num_windows = self.num_windows
        if given.size and (num_windows == 0 or int(given.min()) < 0):
            raise IndexError(f"{int(given.min())} is no address of a row in {num_windows} windows")
        numbers = given >> ROW_BITS
        rows = given & ((1 << ROW_BITS) - 1)
        found = []
        for number in sorted(set(numbers.tolist())):
            places = np.flatnonzero(numbers == number)
            epoch, window = divmod(number, num_windows)
            found.append((epoch, window, rows[places], places))
        return found

    def __getitems__(self, addresses: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The rows at these addresses, as one batch; IndexError for one that its window does not have."""
        parts = []
        for epoch, window, rows, places in self.windows_of(np.asarray(addresses)):
            plan = self.window_plan(epoch, window)
            if int(rows.max()) >= plan.num_rows:
                raise IndexError(f"row {int(rows.max())} is outside window {window}, which has {plan.num_rows} rows")
            parts.append(WindowRows(plan, self.window_positions(epoch, window)[0], rows, places))
        return self._read(parts, len(addresses))

    def prefetch(self, addresses: Int64s) -> None:
        """Expect these rows to be read: caches below fetch the files of their windows ahead. A hint."""
        prefetch(self, addresses)

    def __getitem__(self, index: int | slice) -> Any:
        """Row index of epoch 0, negative from the end; a slice gives a sequence of rows. IndexError outside."""
        length = len(self)
        if isinstance(index, slice):
            return self.__getitems__(self._addresses_of(np.arange(*index.indices(length), dtype=np.int64)))
        number = operator.index(index)
        if not -length <= number < length:
            raise IndexError(f"index {number} is outside a dataset of {length} rows")
        return self.__getitems__(self._addresses_of(np.array([number % length], np.int64)))[0]

    def _addresses_of(self, indices: Int64s) -> Int64s:
        """The addresses of these rows of epoch 0, counted from its start."""
        starts = self._row_starts(0)
        windows = np.searchsorted(starts, indices, side="right") - 1
        return (windows << ROW_BITS) + (indices - starts[windows])

    def _row_starts(self, epoch: int) -> Int64s:
        starts = self._epochs.get(epoch)
        if starts is None:
            counts = self._kept_counts(epoch)
            if counts is None:
                counts = np.fromiter(
                    (self.rows_in_window(epoch, window) for window in range(self.num_windows)),
                    np.int64,
                    self.num_windows,
                )
                if self.cache is not None:
                    save_counts(self.cache, plan_fingerprint(self.settings), epoch, counts)
            starts = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
            self._epochs[epoch] = starts
        return starts

    def _kept_counts(self, epoch: int) -> Int64s | None:
        """The rows of each window by the cache; None where it has none, or the last window has other rows."""
        if self.cache is None or self.num_windows == 0:
            return None
        counts = load_counts(self.cache, plan_fingerprint(self.settings), epoch, self.num_windows)
        # A dataset without a fingerprint may be another one of the same length.
        fits = counts is not None and int(counts[-1]) == self.rows_in_window(epoch, self.num_windows - 1)
        return counts if fits else None

    def _check_count(self, epoch: int, window: int, found: int) -> None:
        """OrderError where an epoch was counted with other rows in a window than its plan has."""
        starts = self._epochs.get(epoch)
        if starts is not None and int(starts[window + 1] - starts[window]) != found:
            by = "when they were counted" if self.cache is None else f"by {self.cache}"
            raise OrderError(
                f"window {window} of epoch {epoch} has {found} rows, and {int(starts[window + 1] - starts[window])} "
                f"{by}: the lengths of the samples changed; make the dataset anew, and remove its cache"
            )

    def _check_window(self, epoch: int, window: int) -> None:
        if epoch < 0 or not 0 <= window < self.num_windows:
            raise IndexError(f"window {window} of epoch {epoch} is outside an epoch of {self.num_windows} windows")
        if (epoch + 1) * max(len(self.base), self.num_windows << ROW_BITS) > LAST_POSITION:
            raise IndexError(f"epoch {epoch}, of {self.num_windows} windows, does not end below address 2**63")
