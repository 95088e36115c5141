"""The order for a stock torch DataLoader over any map-style dataset."""

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.loading.announcing import announced
from headrace.loading.order import RankOrder, check_epoch, check_start, restored
from headrace.loading.steps import TooFewSteps, leaf_of, locate
from headrace.loading.world import world_of
from headrace.planning import Cursor, check_division
from headrace.views import ShuffledDataset, items_of
from headrace.views.protocol import ordered_view

__all__ = ["ElasticBatchSampler", "LeafSampler"]


class _Length:
    """Stands for a dataset of which only the length is known."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.settings = {"data": "length", "num_samples": length}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


class ElasticBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Lists of item numbers, one a step, for `DataLoader(dataset, batch_sampler=...)`.

    dataset_or_length is what the DataLoader reads, or its length. Item numbers are in 0..len-1; those of a Headrace
    view are endless (epoch * len + index), which its `__getitems__` understands. The order is StatefulDataLoader's,
    and over the same dataset the states are too.

    `iter()` yields the rest of the current epoch, and once its last list was taken the next one begins. A DataLoader
    with workers takes lists before the consumer needs them, and a sampler cannot see what that got. Hence
    `state_dict(batches_consumed=n)` needs n: the batches that the consumer got since the last `iter()`; and who breaks
    off a loop says with `set_epoch` which epoch comes next.
    """

    def __init__(
        self,
        dataset_or_length: Sized | int,
        global_batch_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = True,
        pad: bool = False,
    ) -> None:
        world = world_of(dataset_or_length, rank, world_size)
        base: Any = ordered_view(dataset_or_length)
        if isinstance(base, int | np.integer):
            base = _Length(int(base))
        if shuffle and getattr(base, "ordered", False):
            raise OrderError("shuffle=True over a view that already orders; shuffle its base, or leave shuffle out")
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size={global_batch_size} must be at least 1")
        if rank is not None or world_size is not None:
            check_division(global_batch_size, world().world_size)
        self._base = base
        self._dataset = ShuffledDataset(base, seed) if shuffle else base
        self._order = RankOrder(self._dataset, world, None, global_batch_size, drop_last=drop_last, pad=pad)
        self._next = Cursor()
        self._begun = Cursor()
        self._iteration = 0

    def __len__(self) -> int:
        """Steps of the whole epoch that `iter()` is in, the same on every rank; OrderError when that is none."""
        return self._order.plan.steps(self._next.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        self._order.check_unchanged()
        self._begun = self._order.plan.begin(self._next)
        self._iteration += 1
        return self._lists(self._begun, self._iteration)

    @property
    def padding(self) -> int:
        """How many rows at the end of this rank's last list are repeats, in the epoch that the last `iter()` began, or
        the next one will: 0 unless pad fills that list up."""
        return self._order.plan.padding(self._begun)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next `iter()` in this epoch; nothing changes when it would anyway. OrderError for one before a
        change of the mixture."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must be at least 0")
        if epoch != self._next.epoch:
            check_epoch(self._dataset, epoch)
            self.begin_at(Cursor(int(epoch)))

    def begin_at(self, cursor: Cursor) -> None:
        """Begin the next `iter()` at this cursor."""
        check_start(self._dataset, cursor)
        self._next = self._begun = cursor
        self._iteration += 1

    def lists_from(self, cursor: Cursor) -> Iterator[list[int]]:
        """The lists from a cursor to the end of its epoch. Changes nothing."""
        return (items.tolist() for items in self._order.plan.items(cursor, self._locate))

    def state_dict(self, batches_consumed: int = 0) -> dict[str, Any]:
        """The record of a run whose consumer has got this many batches since the last `iter()`.

        ValueError when that epoch did not have so many.
        """
        try:
            cursor = self._order.plan.after(self._begun, batches_consumed)
        except TooFewSteps as error:
            raise ValueError(
                f"batches_consumed={batches_consumed}, but there were {error.most} from the last iter() on"
            ) from None
        return self._order.state(cursor)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next `iter()` where the record says; StateMismatchError when it is of another order.

        OrderError where the mixture was changed within the run: what the DataLoader reads must be changed as well.
        `continued(dataset, state)` gives the dataset for both.
        """
        dataset, cursor = restored(state, self._dataset, drop_last=self._order.drop_last)
        if dataset is not self._dataset:
            raise OrderError(
                "the mixture was changed within the run of this state; give the sampler and the DataLoader the dataset "
                "that continued(dataset, state) returns"
            )
        self.begin_at(cursor)

    def _lists(self, begun: Cursor, iteration: int) -> Iterator[list[int]]:
        # The next epoch is settled as lists are taken, not by iter(): a DataLoader with workers calls that twice.
        plan, cursor = self._order.plan, begun
        for items in self._announced(self.lists_from(begun)):
            cursor = plan.after(cursor, 1)
            if iteration == self._iteration:
                self._next = Cursor(cursor.epoch)
            yield items
        if cursor is begun and iteration == self._iteration:
            self._next = Cursor(begun.epoch + 1)  # an epoch without rows is over, too

    def _announced(self, lists: Iterator[list[int]]) -> Iterator[list[int]]:
        return lists  # a stock DataLoader's dataset may be opened in its workers only

    def _locate(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._dataset is not self._base:
            positions = self._dataset.locate(positions)
        # A view that the DataLoader reads takes endless positions itself; anything else takes its own items.
        return items_of(self._base, positions)


class LeafSampler(ElasticBatchSampler):
    """The same order in items of the dataset below all views: they are located here, thousands at a time, rather than
    in the workers, a batch at a time."""

    def _locate(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return locate(self._dataset, positions)

    def _announced(self, lists: Iterator[list[int]]) -> Iterator[list[int]]:
        return announced(lists, leaf_of(self._dataset))
