"""From a cursor to the items of each step: the order, located thousands of rows at a time.

Steps        positions of an order whose epochs all have the same number of rows
WindowSteps  rows of packs or batches, counted window by window (window_steps.py)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.planning import Cursor, check_division, padding_of, rank_positions, steps_left
from headrace.views import is_view, items_of

__all__ = ["StepPlan", "Steps", "TooFewSteps", "leaf_of", "locate"]

ROWS_AHEAD = 4096
PAUSE_S = 0.02  # that locating rows ahead may take at a time

Locate = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class TooFewSteps(ValueError):
    """An epoch has fewer steps left than were counted."""

    def __init__(self, steps: int, most: int) -> None:
        super().__init__(f"{steps} batches, but there were {most} from there on in the epoch")
        self.most = most


class StepPlan(Protocol):
    """What a rank reads in each step of an epoch. A pure function of its fields and a cursor."""

    @property
    def global_batch_size(self) -> int:
        """Rows a step for all ranks together."""
        ...

    @property
    def rank(self) -> int:
        """Whose rows these are."""
        ...

    @property
    def world_size(self) -> int:
        """How many ranks share the global batches."""
        ...

    @property
    def drop_last(self) -> bool:
        """Whether rows that fill no global batch are dropped."""
        ...

    @property
    def pad(self) -> bool:
        """Whether the epoch's last global batch is filled up with the epoch's first rows."""
        ...

    def padding(self, cursor: Cursor) -> int:
        """How many rows of this rank's last batch are repeats, in the epoch that is read from this cursor on."""
        ...

    def rows(self, epoch: int) -> int:
        """Rows of an epoch, for all ranks together."""
        ...

    def steps(self, epoch: int) -> int:
        """Steps of a whole epoch; OrderError when not even one batch is full and drop_last drops it."""
        ...

    def check(self) -> None:
        """Open what is below; OrderError where no epoch has anything to read."""
        ...

    def begin(self, cursor: Cursor) -> Cursor:
        """Where an epoch that is to be read from this cursor begins: there, or the start of the next epoch where this
        one has no step left (the global batch may have been another when the cursor was saved).

        OrderError where there is nothing to read, and nothing could be.
        """
        ...

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """The cursor once the consumer has got `steps` more batches; TooFewSteps when its epoch has fewer."""
        ...

    def has_step(self, cursor: Cursor) -> bool:
        """Whether the cursor's epoch has a step left."""
        ...

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch."""
        ...

    def items(self, cursor: Cursor, locate: Locate) -> Iterator[NDArray[np.int64]]:
        """For each step left in the epoch, what this rank reads, in order: locate(its endless positions)."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of an order whose epochs all have num_rows rows.

    first is the endless position before which there is nothing: 0, unless a mixture was changed there. reach(position)
    is the position, or the end of the order where that comes before it; None for an order without an end. The epoch in
    which the order ends has as many rows as there are. pad fills the last global batch of an epoch with its first rows.
    """

    num_rows: int
    global_batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    first: int = 0
    reach: Callable[[int], int] | None = None
    pad: bool = False

    def __post_init__(self) -> None:
        check_division(self.global_batch_size, self.world_size)

    def rows(self, epoch: int) -> int:
        """num_rows, or what is there of them where the order ends."""
        if self.reach is None:
            return self.num_rows
        return max(0, self.reach((epoch + 1) * self.num_rows) - epoch * self.num_rows)

    def steps(self, epoch: int) -> int:
        """Steps of a whole epoch; OrderError when not even one batch is full and drop_last drops it."""
        steps = self.steps_left(Cursor(epoch))
        if steps == 0 and self.rows(epoch) < self.num_rows:
            raise self._ended(epoch)
        if steps == 0 and self.drop_last:
            raise OrderError(
                f"{self.num_rows} samples do not fill one global batch of {self.global_batch_size} "
                f"({self.world_size} ranks), and drop_last=True drops the rest; pass drop_last=False or a smaller batch"
            )
        return steps

    def check(self) -> None:
        """OrderError where no epoch has a step."""
        self.steps(0)

    def begin(self, cursor: Cursor) -> Cursor:
        """The cursor, or the start of the next epoch where this one has no step left."""
        cursor = self._not_before_first(cursor)
        if cursor.position == 0 or self.num_rows == 0:
            self.steps(cursor.epoch)  # refuses an empty plan
        elif not self.has_step(cursor):
            cursor = Cursor(cursor.epoch + 1)
            self.steps(cursor.epoch)
        return cursor

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """The cursor once the consumer has got `steps` more batches."""
        if steps == 0:
            return cursor
        most = self.steps_left(cursor)
        if not 0 < steps <= most:
            raise TooFewSteps(steps, most)
        return cursor.advanced(
            steps * self.global_batch_size,
            num_rows=self.rows(cursor.epoch),
            global_batch_size=self.global_batch_size,
            drop_last=self.drop_last,
        )

    def has_step(self, cursor: Cursor) -> bool:
        """Whether the cursor's epoch has a step left."""
        return self.steps_left(cursor) > 0

    def padding(self, cursor: Cursor) -> int:
        """How many rows of this rank's last batch are repeats, in the epoch that is read from this cursor on."""
        if not self.pad:
            return 0
        cursor = self._not_before_first(cursor)
        left = self.rows(cursor.epoch) - cursor.position
        return padding_of(left, self.global_batch_size, self.rank, self.world_size)

    def _not_before_first(self, cursor: Cursor) -> Cursor:
        if self.num_rows and cursor.epoch * self.num_rows + cursor.position < self.first:
            return Cursor(*divmod(self.first, self.num_rows))
        return cursor

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch."""
        return steps_left(self.rows(cursor.epoch), cursor.position, self.global_batch_size, self.drop_last)

    def _ended(self, epoch: int) -> OrderError:
        rows = self.rows(epoch)
        where = f"{rows} rows into epoch {epoch}, too few for a batch" if rows else f"before epoch {epoch}"
        return OrderError(
            f"the order ends {where}: all sources of the mixture with a weight have been drawn max_epochs times; raise "
            "max_epochs, or end the run here"
        )

    def items(self, cursor: Cursor, locate: Locate) -> Iterator[NDArray[np.int64]]:
        """For each step left in the epoch, what this rank reads, in order: locate(its endless positions)."""
        local = self.global_batch_size // self.world_size
        left, position, num_rows = self.steps_left(cursor), cursor.position, self.rows(cursor.epoch)
        ahead = 1  # the first step at once, then more and more together: locating costs by the call
        while left:
            count = min(left, ahead)
            rows, offsets = rank_positions(
                position,
                count,
                num_rows=position + count * self.global_batch_size if self.pad else num_rows,
                global_batch_size=self.global_batch_size,
                rank=self.rank,
                world_size=self.world_size,
            )
            if self.pad and count == left:
                rows = self._filled(rows, cursor.epoch, num_rows)
            begun_s = perf_counter()
            located = locate(cursor.epoch * self.num_rows + rows)
            took_s = perf_counter() - begun_s
            if len(located) == count * local:  # only an epoch's last step may be short
                yield from located.reshape(count, local)
            else:
                bounds = offsets.tolist()
                for step in range(count):
                    yield located[bounds[step] : bounds[step + 1]]
            left -= count
            position += count * self.global_batch_size
            # Where a row takes long to find, as in a mixture over many ranks, thousands at once would be a felt pause.
            ahead = max(1, min(8 * count, ROWS_AHEAD // local, int(count * PAUSE_S / max(took_s, 1e-6))))

    def _filled(self, rows: NDArray[np.int64], epoch: int, num_rows: int) -> NDArray[np.int64]:
        """The rows, with those behind the epoch's end replaced by its first ones, as often as it takes."""
        first = max(0, self.first - epoch * self.num_rows)  # of an epoch that began within itself, what there is
        return np.where(rows < num_rows, rows, first + (rows - num_rows) % (num_rows - first))


def leaf_of(dataset: Any) -> Any:
    """The dataset below all views, or the mixture or windowed view that ends them: what items are read from."""
    while is_view(dataset):
        dataset = dataset.base
    return dataset


def locate(dataset: Any, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """What leaf_of(dataset) is asked for at these endless positions."""
    while is_view(dataset):
        positions = dataset.locate(positions)
        dataset = dataset.base
    return items_of(dataset, positions)
