"""Steps of an order whose rows vary by epoch: packs, and batches of a token budget.

    window     0                 1            2
    rows       0 1 2 3 4 5 6     0 1 2 3      0 1 2 3 4 ...
    step of 4  |_____| |_________| |____________| |____          rows run on over the edges of windows
    cursor              (window 0, row 4)

How far the epoch goes is found by counting windows on, so nothing here needs its number of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.loading.steps import Locate, TooFewSteps
from headrace.planning import Cursor, check_division, padding_of, steps_left
from headrace.views import WindowedDataset
from headrace.views.ending import reach_of

__all__ = ["WindowSteps"]


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """What a rank reads in each step: addresses of a windowed dataset's rows.

    first_window is the first one that can be planned, counted over all epochs: 0, unless a mixture was changed there.
    pad fills the last global batch of an epoch with its first rows.
    """

    dataset: WindowedDataset[Any]
    global_batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    first_window: int = 0
    pad: bool = False

    def __post_init__(self) -> None:
        check_division(self.global_batch_size, self.world_size)
        together = self.dataset.rows_per_step
        if together > 1 and together % self.global_batch_size:
            raise OrderError(
                f"a step of {type(self.dataset).__name__} has {together} batches, which {self.world_size} ranks cannot "
                f"share equally; make batches_per_step a multiple of the world size"
            )

    def rows(self, epoch: int) -> int:
        """Rows of an epoch, for all ranks together: reads the lengths of all of its samples, once.

        TypeError, as len() of what has none, for the epoch in which a mixture was changed: its first windows cannot be
        planned any more.
        """
        if epoch * self.dataset.num_windows < self.first_window:
            raise TypeError(
                f"the rows of epoch {epoch} cannot be counted: the mixture below was changed within it or later, and "
                "the windows before that were planned under other settings"
            )
        return self.dataset.rows_in_epoch(epoch)

    def steps(self, epoch: int) -> int:
        """Steps of a whole epoch, as rows(); OrderError when not even one batch is full and drop_last drops it."""
        rows = self.rows(epoch)
        steps = steps_left(rows, 0, self.global_batch_size, self.drop_last)
        if steps == 0 and (self.drop_last or self._is_behind_end(epoch)):
            raise self._too_few(epoch, rows)
        return steps

    def check(self) -> None:
        """Open what is below. Epochs differ, so what the first one has says nothing of the one a state goes on in."""
        _ = self.dataset.num_windows

    def begin(self, cursor: Cursor) -> Cursor:
        """The cursor, or the start of the next epoch where this one has no step left."""
        cursor = self._not_before_first(cursor)
        started = bool(cursor.window or cursor.row)
        if started and not self.has_step(cursor):
            cursor, started = Cursor(cursor.epoch + 1), False
        if not started and (self.drop_last or self._is_behind_end(cursor.epoch)) and not self.has_step(cursor):
            raise self._too_few(cursor.epoch, self._rows_ahead(cursor, self.global_batch_size))
        together = self.dataset.rows_per_step
        if together > 1 and (left := -cursor.row % together) % self.global_batch_size:
            raise OrderError(
                f"the state was taken within a step of {together} batches, of which {left} are left; {self.world_size} "
                f"ranks cannot share them equally. Go on with a world size that divides {left}"
            )
        return cursor

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """The cursor once the consumer has got `steps` more batches."""
        if steps == 0:
            return cursor
        wanted = steps * self.global_batch_size
        epoch, window, row = cursor.epoch, cursor.window, cursor.row
        rows = 0
        while rows < wanted and window < self.dataset.num_windows:
            taken = min(self.dataset.rows_in_window(epoch, window) - row, wanted - rows)
            rows, row = rows + taken, row + taken
            if row == self.dataset.rows_in_window(epoch, window):
                window, row = window + 1, 0
        least = wanted if self.drop_last else wanted - self.global_batch_size + 1
        if steps < 0 or rows < least:
            raise TooFewSteps(steps, steps_left(rows, 0, self.global_batch_size, self.drop_last))
        after = Cursor(epoch, cursor.position + rows, window, row)
        return after if self.has_step(after) else Cursor(epoch + 1)

    def padding(self, cursor: Cursor) -> int:
        """How many rows of this rank's last batch are repeats, in the epoch that is read from this cursor on.

        Counts the rows that are left: reads the lengths of their samples, once.
        """
        if not self.pad:
            return 0
        left = self._rows_ahead(self._not_before_first(cursor))
        return padding_of(left, self.global_batch_size, self.rank, self.world_size)

    def has_step(self, cursor: Cursor) -> bool:
        """Whether the cursor's epoch has a step left: plans as many windows as it takes to know."""
        least = self.global_batch_size if self.drop_last else 1
        return self._rows_ahead(cursor, least) >= least

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch; reads the lengths of the epoch's samples, once."""
        cursor = self._not_before_first(cursor)
        if cursor.epoch * self.dataset.num_windows < self.first_window:
            rows = self._rows_ahead(cursor)
        else:
            rows = self.rows(cursor.epoch) - cursor.position
        return steps_left(rows, 0, self.global_batch_size, self.drop_last)

    def items(self, cursor: Cursor, locate: Locate) -> Iterator[NDArray[np.int64]]:
        """For each step left in the epoch, the addresses that this rank reads.

        A step comes when it is known whether another one follows, so that a cursor behind it costs nothing.
        """
        size = self.global_batch_size
        known = size + (size if self.drop_last else 1)
        addresses = np.empty(0, np.int64)
        begin, window, first_row = 0, cursor.window, cursor.row
        while True:
            while len(addresses) - begin < known and window < self.dataset.num_windows:
                more = self.dataset.addresses(cursor.epoch, window, first_row)
                addresses, begin = np.concatenate([addresses[begin:], more]), 0
                window, first_row = window + 1, 0
            step = addresses[begin : begin + size]
            if len(step) == 0 or (self.drop_last and len(step) < size):
                return
            if self.pad and len(step) < size:
                step = np.concatenate([step, self._first_rows(cursor.epoch, size - len(step))])
            begin += size
            yield step[self.rank :: self.world_size]

    def _not_before_first(self, cursor: Cursor) -> Cursor:
        num_windows = self.dataset.num_windows
        if num_windows and cursor.epoch * num_windows + cursor.window < self.first_window:
            epoch, window = divmod(self.first_window, num_windows)
            return Cursor(epoch, 0, window)
        return cursor

    def _first_rows(self, epoch: int, count: int) -> NDArray[np.int64]:
        """The addresses of so many rows from the start of an epoch on, over and over where it has fewer."""
        windows = range(max(0, self.first_window - epoch * self.dataset.num_windows), self.dataset.num_windows)
        addresses = np.empty(0, np.int64)
        for window in windows:
            addresses = np.concatenate([addresses, self.dataset.addresses(epoch, window)])
            if len(addresses) >= count:
                break
        return np.resize(addresses, count)

    def _rows_ahead(self, cursor: Cursor, enough: int | None = None) -> int:
        """Rows that the cursor's epoch still has, counted until there are enough."""
        rows = -cursor.row
        for window in range(cursor.window, self.dataset.num_windows):
            rows += self.dataset.rows_in_window(cursor.epoch, window)
            if enough is not None and rows >= enough:
                break
        return max(rows, 0)

    def _is_behind_end(self, epoch: int) -> bool:
        """Whether the order of what is below ends before the end of this epoch."""
        end = (epoch + 1) * len(self.dataset.base)
        reach = reach_of(self.dataset.base)
        return reach is not None and reach(end) < end

    def _too_few(self, epoch: int, rows: int) -> OrderError:
        if self._is_behind_end(epoch):
            return OrderError(
                f"the order ends in or before epoch {epoch}, which has {rows} rows left, too few for a batch: all "
                "sources of the mixture with a weight have been drawn max_epochs times; raise max_epochs, or end here"
            )
        return OrderError(
            f"epoch {epoch} of {len(self.dataset.base)} samples gives {rows} rows, which do not fill one global batch "
            f"of {self.global_batch_size} ({self.world_size} ranks), and drop_last=True drops the rest; pass "
            "drop_last=False or a smaller batch, and see report() of the dataset for what it dropped itself"
        )
