"""The order for a stock torch DataLoader over any map-style dataset."""

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from headrace.errors import OrderError
from headrace.loading.steps import StepPlan
from headrace.loading.world import resolve_world
from headrace.planning import Cursor, decode_state, encode_state
from headrace.views import ShuffledDataset, dataset_settings, is_view

__all__ = ["ElasticBatchSampler"]


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

    The same order and states as StatefulDataLoader's. dataset_or_length is what the DataLoader reads, or its length.
    Every `iter()` yields the rest of the current epoch; when it is exhausted the next one begins. A sampler runs ahead
    of the consumer and cannot see what that got, so `state_dict(batches_consumed=n)` needs n: the batches of this epoch
    that the consumer has got since the last `iter()`.
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
    ) -> None:
        base: Any = _Length(dataset_or_length) if isinstance(dataset_or_length, int) else dataset_or_length
        if shuffle and getattr(base, "ordered", False):
            raise OrderError("shuffle=True over a view that already orders; shuffle its base, or leave shuffle out")
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size={global_batch_size} must be at least 1")
        self._base = base
        self._dataset = ShuffledDataset(base, seed) if shuffle else base
        self._global_batch_size = global_batch_size
        self._world = (rank, world_size)
        self._drop_last = drop_last
        self._plan_made: StepPlan | None = None
        self._next = Cursor()
        self._begun = Cursor()

    def __getstate__(self) -> dict[str, Any]:
        self._plan()  # workers inherit the rank that was found here
        return dict(self.__dict__)

    def __len__(self) -> int:
        return self._plan().steps

    def __iter__(self) -> Iterator[list[int]]:
        plan = self._plan()
        _ = plan.steps  # refuses an empty plan
        self._begun = self._next
        self._next = Cursor(self._begun.epoch)
        return self._lists(plan, self._begun)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next `iter()` in this epoch; nothing changes when it would anyway."""
        if epoch != self._next.epoch:
            self._next = self._begun = Cursor(epoch)

    def state_dict(self, batches_consumed: int = 0) -> dict[str, Any]:
        """The record of a run whose consumer has got this many batches since the last `iter()`."""
        plan = self._plan()
        if not 0 <= batches_consumed <= plan.steps_from(self._begun):
            raise ValueError(
                f"batches_consumed={batches_consumed}, but this epoch had {plan.steps_from(self._begun)} to give"
            )
        return encode_state(plan.after(self._begun, batches_consumed), self._settings())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next `iter()` where the record says; StateMismatchError when it is of another order."""
        self._next = self._begun = decode_state(state, self._settings())

    def _lists(self, plan: StepPlan, cursor: Cursor) -> Iterator[list[int]]:
        for items in plan.items(cursor, self._locate):
            yield items.tolist()
        if self._begun is cursor:
            self._next = Cursor(cursor.epoch + 1)

    def _locate(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._dataset is not self._base:
            positions = self._dataset.locate(positions)
        # A view that the DataLoader reads takes endless positions itself; anything else takes its own items.
        return positions if is_view(self._base) or len(positions) == 0 else positions % len(self._base)

    def _plan(self) -> StepPlan:
        if self._plan_made is None:
            rank, world_size = resolve_world(*self._world)
            self._plan_made = StepPlan(len(self._dataset), self._global_batch_size, rank, world_size, self._drop_last)
        return self._plan_made

    def _settings(self) -> dict[str, Any]:
        return {**dataset_settings(self._dataset), "drop_last": self._drop_last}
