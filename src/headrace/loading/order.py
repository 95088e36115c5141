"""The order that a loader or sampler follows: how its steps are counted, what decides it, and states of it."""

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, Self

from headrace.errors import OptionError, OrderError, StateError
from headrace.loading.steps import StepPlan, Steps
from headrace.loading.window_steps import WindowSteps
from headrace.loading.world import World
from headrace.planning import Cursor, decode_state, encode_state, plan_fingerprint
from headrace.planning.permutation import MAX_ITEMS
from headrace.views import dataset_settings, is_windowed
from headrace.views.changing import changed_from_here, continued_as_saved, first_step, mixture_settings
from headrace.views.ending import reach_of
from headrace.views.protocol import check_same_length, other_rows_a_step
from headrace.views.windowed import ROW_BITS

__all__ = [
    "RankOrder",
    "check_epoch",
    "check_start",
    "continued",
    "order_settings",
    "restored",
]


class RankOrder:
    """The order that a loader or sampler follows, and this rank's part of it.

    world() finds this process's place, and is asked late: the ranks may be known only when the first step is.
    """

    def __init__(
        self,
        dataset: Any,
        world: Callable[[], World],
        local_batch_size: int | None,
        global_batch_size: int | None,
        *,
        drop_last: bool,
        pad: bool,
    ) -> None:
        _check_pad(dataset, drop_last=drop_last, pad=pad)
        self.dataset = dataset
        self.drop_last = drop_last
        self.pad = pad
        self._world = world
        self._batch_sizes = (local_batch_size, global_batch_size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plan": self.plan}  # the other process inherits the rank that was found here

    @cached_property
    def plan(self) -> StepPlan:
        """How this rank's steps are counted."""
        world = self._world()
        rows = _rows_a_step(self.dataset, *self._batch_sizes, world.world_size)
        return _step_plan(self.dataset, rows, world, drop_last=self.drop_last, pad=self.pad)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What its states are compared by."""
        return order_settings(self.dataset, drop_last=self.drop_last)

    @cached_property
    def _fingerprint(self) -> str:
        return plan_fingerprint(self.settings)

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """The record of a run that is there."""
        return encode_state(cursor, self.settings, self._fingerprint)

    def over(self, dataset: Any) -> Self:
        """The same over another dataset."""
        other = copy.copy(self)
        for name in ("plan", "settings", "_fingerprint"):
            other.__dict__.pop(name, None)
        other.dataset = dataset
        return other

    def check_unchanged(self) -> None:
        """DatasetChangedError where the dataset has another length than when the steps were counted."""
        if isinstance(self.plan, Steps):
            check_same_length(self.dataset, self.plan.num_rows)


def _rows_a_step(dataset: Any, local_batch_size: int | None, global_batch_size: int | None, world_size: int) -> int:
    """Rows of a global batch, from what was given; 1 a rank by default. OptionError where the dataset takes others."""
    if global_batch_size is None:
        rows = (1 if local_batch_size is None else local_batch_size) * world_size
    else:
        rows = global_batch_size
    if (expected := other_rows_a_step(dataset, rows, world_size)) is not None:
        given = "local_batch_size" if global_batch_size is None else "global_batch_size"
        raise OptionError(given, local_batch_size if global_batch_size is None else global_batch_size, expected)
    return rows


def _check_pad(dataset: Any, *, drop_last: bool, pad: bool) -> None:
    """OptionError for pad=True where it could not fill anything."""
    if pad and drop_last:
        raise OptionError("pad", True, "drop_last=False beside it: a last batch is either dropped or filled")
    if pad and getattr(dataset, "rows_are_batches", False):
        raise OptionError(
            "pad",
            True,
            f"False over {type(dataset).__name__}: each of its steps has a batch for every rank, so none is short",
        )


def _step_plan(dataset: Any, global_batch_size: int, world: World, *, drop_last: bool, pad: bool = False) -> StepPlan:
    """How the steps of dataset's epochs are counted."""
    rank, world_size = world
    first = first_step(dataset)
    if is_windowed(dataset):
        return WindowSteps(dataset, global_batch_size, rank, world_size, drop_last, first, pad)
    return Steps(len(dataset), global_batch_size, rank, world_size, drop_last, first, reach_of(dataset), pad)


def check_start(dataset: Any, cursor: Cursor) -> None:
    """StateError for a cursor inside a global batch where the order is made of these."""
    if cursor.position % (together := getattr(dataset, "rows_together", 1)):
        raise StateError(
            f"the state says row {cursor.position} of an epoch, inside a global batch: this order is made of batches "
            f"of {together} rows, and each from there on would mix two. Save states after whole batches"
        )


def check_epoch(dataset: Any, epoch: int) -> None:
    """OrderError for an epoch before the one in which the mixture was changed: it was drawn under other settings."""
    windowed = is_windowed(dataset)
    if first := first_step(dataset):
        first_epoch = first // (dataset.num_windows if windowed else len(dataset))
        if epoch < first_epoch:
            raise OrderError(
                f"epoch {epoch} is over: the mixture was changed in epoch {first_epoch}, and epochs before that were "
                "drawn under other settings"
            )


def order_settings(dataset: Any, *, drop_last: bool) -> dict[str, Any]:
    """What a state of this order is compared by."""
    return {**dataset_settings(dataset), "drop_last": drop_last}


def restored(
    state: Mapping[str, Any], dataset: Any, *, drop_last: bool, change: str | None = None, was: Any = None
) -> tuple[Any, Cursor]:
    """The dataset that a saved state goes on with, and the cursor in it.

    That is dataset, unless its mixture was changed within the run, or is to be changed now (change="from_here"): then a
    copy whose mixture begins there. was is the dataset of before, where the state cannot tell enough of it.
    StateMismatchError when the state is of another order, StateError when it is damaged.
    """
    if change not in (None, "from_here"):
        raise OptionError("change", change, "None or 'from_here'")
    saved = state.get("settings") if isinstance(state, Mapping) else None
    saved = saved if isinstance(saved, Mapping) else {}
    decode_state(state, saved)  # refuses what is no record before anything in it is believed
    as_saved = continued_as_saved(dataset, saved, was)
    settings = order_settings(as_saved, drop_last=drop_last)
    if change is None or mixture_settings(settings) == mixture_settings(saved):
        dataset, cursor = as_saved, decode_state(state, settings)
    else:
        others = {name: value for name, value in settings.items() if name not in mixture_settings(settings)}
        cursor = decode_state(state, {**others, **mixture_settings(saved)})
        _check_reach(as_saved, cursor)
        dataset, cursor = changed_from_here(dataset, cursor, saved, was)
    _check_reach(dataset, cursor)
    if is_windowed(dataset):
        _check_window(dataset, cursor)
    elif cursor.window or cursor.row:
        raise StateError("the state is damaged: it names a window and row, and this order has none")
    elif cursor.position and cursor.position >= len(dataset):
        raise StateError(f"the state's position is {cursor.position}, but an epoch has {len(dataset)} rows")
    return dataset, cursor


def continued(
    dataset: Any, state: Mapping[str, Any], *, change: Literal["from_here"] | None = None, was: Any = None
) -> tuple[Any, dict[str, Any]]:
    """The dataset and the state that a run goes on with whose mixture was changed, or is to be with
    change="from_here": for a stock DataLoader, whose ElasticBatchSampler and dataset must be the same one.

    StatefulDataLoader.load_state_dict does this by itself, and says what the arguments mean and what is refused.
    """
    saved = state.get("settings") if isinstance(state, Mapping) else None
    drop_last = bool(saved.get("drop_last")) if isinstance(saved, Mapping) else False
    dataset, cursor = restored(state, dataset, drop_last=drop_last, change=change, was=was)
    return dataset, encode_state(cursor, order_settings(dataset, drop_last=drop_last))


def _check_reach(dataset: Any, cursor: Cursor) -> None:
    """StateError for an epoch beyond what is counted, and for a window that an epoch does not have."""
    windowed = is_windowed(dataset)
    length = max(1, len(dataset.base if windowed else dataset))
    windows = dataset.num_windows if windowed else 0
    if (cursor.epoch + 1) * length > MAX_ITEMS or (cursor.epoch + 1) * windows >> 63 - ROW_BITS:
        raise StateError(f"the state's epoch is {cursor.epoch}; positions in it are beyond what can be counted")
    if windowed and cursor.window and cursor.window >= windows:
        raise StateError(f"the state's window is {cursor.window}, but an epoch has {windows} windows")


def _check_window(dataset: Any, cursor: Cursor) -> None:
    most = ((cursor.window + 1) << ROW_BITS) if cursor.window or cursor.row else 0
    if not cursor.row <= cursor.position <= most:
        raise StateError(
            f"the state is damaged: {cursor.position} rows do not lead to row {cursor.row} of window {cursor.window}"
        )
    if not (cursor.window or cursor.row):
        return
    rows = dataset.rows_in_window(cursor.epoch, cursor.window) if dataset.num_windows else 0
    if cursor.row and cursor.row >= rows:
        raise StateError(f"the state's row is {cursor.row}, but window {cursor.window} has {rows} rows")
