"""From a cursor to the items of each step: the order, located thousands of rows at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError, StateError
from headrace.planning import Cursor, check_division, decode_state, rank_positions, steps_left
from headrace.views import is_view

__all__ = ["StepPlan", "leaf_of", "locate", "restored"]

ROWS_AHEAD = 4096


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a rank reads in each step of an epoch. A pure function of its fields and a cursor."""

    num_rows: int
    global_batch_size: int
    rank: int
    world_size: int
    drop_last: bool

    def __post_init__(self) -> None:
        check_division(self.global_batch_size, self.world_size)

    @property
    def steps(self) -> int:
        """Steps of a whole epoch; OrderError when not even one batch is full and drop_last drops it."""
        steps = steps_left(self.num_rows, 0, self.global_batch_size, self.drop_last)
        if steps == 0 and self.drop_last:
            raise OrderError(
                f"{self.num_rows} samples do not fill one global batch of {self.global_batch_size} "
                f"({self.world_size} ranks), and drop_last=True drops the rest; pass drop_last=False or a smaller batch"
            )
        return steps

    def steps_from(self, cursor: Cursor) -> int:
        """Steps that the cursor's epoch still has."""
        return steps_left(self.num_rows, cursor.position, self.global_batch_size, self.drop_last)

    def begin(self, cursor: Cursor) -> Cursor:
        """The cursor, or the start of the next epoch where this one has no step left (the global batch may have been
        another when the cursor was saved)."""
        return Cursor(cursor.epoch + 1) if self.num_rows and self.steps_from(cursor) == 0 else cursor

    def after(self, cursor: Cursor, steps: int) -> Cursor:
        """The cursor once the consumer has got `steps` more batches."""
        if steps == 0:
            return cursor
        return cursor.advanced(
            steps * self.global_batch_size,
            num_rows=self.num_rows,
            global_batch_size=self.global_batch_size,
            drop_last=self.drop_last,
        )

    def items(
        self, cursor: Cursor, locate: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> Iterator[NDArray[np.int64]]:
        """For each step left in the epoch, what this rank reads, in order: locate(its endless positions)."""
        local = self.global_batch_size // self.world_size
        left, position = self.steps_from(cursor), cursor.position
        ahead = 1  # the first step at once, then many together: locating costs by the call
        while left:
            count = min(left, ahead)
            rows, offsets = rank_positions(
                position,
                count,
                num_rows=self.num_rows,
                global_batch_size=self.global_batch_size,
                rank=self.rank,
                world_size=self.world_size,
            )
            located = locate(cursor.epoch * self.num_rows + rows)
            if len(located) == count * local:  # only an epoch's last step may be short
                yield from located.reshape(count, local)
            else:
                bounds = offsets.tolist()
                for step in range(count):
                    yield located[bounds[step] : bounds[step + 1]]
            left -= count
            position += count * self.global_batch_size
            ahead = max(1, ROWS_AHEAD // local)


def restored(state: Mapping[str, Any], settings: Mapping[str, Any], num_rows: int) -> Cursor:
    """The cursor in a saved state; StateMismatchError when it is of another order, StateError when it is damaged."""
    cursor = decode_state(state, settings)
    if cursor.position and cursor.position >= num_rows:
        raise StateError(f"the state's position is {cursor.position}, but an epoch has {num_rows} rows")
    return cursor


def leaf_of(dataset: Any) -> Any:
    """The dataset below all views: the one that has the samples."""
    while is_view(dataset):
        dataset = dataset.base
    return dataset


def locate(dataset: Any, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The items of leaf_of(dataset) at these endless positions."""
    while is_view(dataset):
        positions = dataset.locate(positions)
        dataset = dataset.base
    return positions % len(dataset) if len(positions) else positions
