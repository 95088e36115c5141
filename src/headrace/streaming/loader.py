"""StreamingDataLoader: torch's DataLoader by its arguments and attributes, Headrace's by what comes out of it.

    torch.utils.data.DataLoader      its constructor, its checks, what Lightning and others look at
                 |
    StreamingDataLoader --> _Inner (StatefulDataLoader over dataset.as_view()) --> batches, and their count

A DataLoader over a dataset that iterates cannot know which samples its consumer got. Here the batches are cut by
arithmetic instead, and the count of those that were handed out is all there is to save.
"""

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch.utils.data
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.errors import OptionError, StateError
from headrace.loading.loader import StatefulDataLoader
from headrace.loading.parallel import Parallel
from headrace.loading.pinning import can_pin
from headrace.loading.world import World
from headrace.planning import Cursor
from headrace.streaming.collating import DefaultCollate, SingleSample
from headrace.streaming.dataset import StreamingDataset
from headrace.streaming.foreign_states import check_ours
from headrace.views.protocol import check_iteration

__all__ = ["StreamingDataLoader"]

_log = logging.getLogger("headrace")

_PARAMETERS = inspect.signature(torch.utils.data.DataLoader.__init__)
_ORDERS = ("shuffle", "sampler", "batch_sampler")


class StreamingDataLoader(torch.utils.data.DataLoader[Any]):
    """Batches of a StreamingDataset for one rank: torch's DataLoader, with a state that counts batches handed out.

    Its arguments are torch's, and mean what they mean there, but for these:

    | argument | here |
    | --- | --- |
    | batch_size | rows a step for this rank; left out, the dataset's. None: samples one by one |
    | shuffle, sampler, batch_sampler | refused: StreamingDataset(shuffle=True) shuffles |
    | drop_last | False serves every row once: in the last step ranks may get fewer rows than others, or none |
    | pad | True fills that step up with the epoch's first rows (see `padding`); needs drop_last=False |
    | generator | its seed takes the place of torch's in what workers begin with; the order needs none |
    | in_order | accepted: batches always come in order |

    A rank that gets no rows in a step gets a batch of no rows: of tensors (0, ...) and empty lists; a collate_fn of
    yours gets []. Samples one by one are padded, since half of the ranks cannot get none.

    `for batch in loader` serves one epoch; the next `for` the next one. One that is broken off and a new one start the
    epoch over; a new loader over the same dataset begins the epoch behind it. `load_state_dict()` sets where the next
    `iter()` begins, with any number of ranks and workers, and an iterator from before then raises ClosedError.

    Over any other dataset it is torch's DataLoader, whose state is None.
    """

    def __init__(self, dataset: Any, *args: Any, pad: bool = False, **kwargs: Any) -> None:
        self._streams = isinstance(dataset, StreamingDataset)
        self._inner: _Inner | None = None
        self._told = False
        self.pad = pad
        if self._streams:
            check_iteration(dataset)
            given = _PARAMETERS.bind(self, dataset, *args, **kwargs).arguments
            _check_options(dataset, given)
            if "batch_size" not in given and dataset.batch_size is not None:
                kwargs["batch_size"] = dataset.batch_size
        elif pad:
            raise OptionError("pad", pad, f"False over a {type(dataset).__name__}, which is no StreamingDataset")
        super().__init__(dataset, *args, **kwargs)
        if self._streams:
            # accelerate's prepare() leaves it as it is then, since its rows are dealt to ranks; and keeps its state.
            self._is_accelerate_prepared = self.use_stateful_dataloader = True
            if self.timeout and not self.num_workers:
                raise OptionError("timeout", self.timeout, "0 without worker processes, for whose batches one waits")
        if pad and self.drop_last:
            raise OptionError("pad", pad, "drop_last=False beside it: a last batch is either dropped or filled")

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank; OrderError where there is none."""
        return len(self._opened()) if self._streams else super().__len__()

    def __iter__(self) -> Any:
        if not self._streams:
            return super().__iter__()
        dataset: Any = self.dataset
        inner = self._opened(begins=True)
        inner.deliver(self._collate(), self._parallel(), pins=self._pins())
        batches = iter(inner)
        dataset.begun_at(inner.start)
        if not self._told and (without := inner.ranks_without_rows()):
            self._told = True
            _log.warning(
                "the last step of an epoch has fewer rows than ranks: %s of %s ranks get a batch of no rows there. "
                "drop_last=True leaves these rows out, pad=True fills the step up with the epoch's first rows",
                *(without, inner.world.world_size),
            )
        return batches

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes and the active iterator; twice is harmless. The state stays, and the loader can be
        used again."""
        if self._inner is not None:
            self._inner.close()

    @property
    def num_samples_yielded(self) -> int:
        """Rows that this rank got since the last `iter()`."""
        return 0 if self._inner is None else self._inner.rows_handed_out()

    @property
    def padding(self) -> int:
        """How many rows at the end of this rank's last batch of the epoch are repeats: 0 unless it is filled up."""
        return self._opened().padding if self._streams else 0

    def state_dict(self) -> dict[str, Any] | None:
        """The record of this run: what the consumer got so far. Small, JSON-able, free, and equal on every rank; None
        over what is no StreamingDataset."""
        return self._opened().state_dict() if self._streams else None

    def load_state_dict(self, obj: Mapping[str, Any] | None) -> None:
        """Begin the next `iter()` where the record says; nothing happens for None.

        StateMismatchError names each setting that differs: data, order, seed, drop_last. StateError for what is no
        state. A refused one changes nothing.
        """
        if obj is None:
            return
        if not self._streams:
            raise StateError(
                f"a loader over a {type(self.dataset).__name__} has no state; give it a StreamingDataset, or the "
                "dataset to StatefulDataLoader"
            )
        dataset: Any = self.dataset
        check_ours(obj)
        inner = self._opened()
        inner.load_state_dict(obj)
        dataset.taken_over()
        dataset.begun_at(inner.start, waits=True)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next `iter()` at the start of this epoch. Nothing changes when it is in this epoch anyway."""
        if self._streams:
            self._opened().set_epoch(epoch)

    def _opened(self, *, begins: bool = False) -> "_Inner":
        """The inner loader. What this process's place among the ranks is, may be known only later than the loader: it
        is looked up again as long as nothing was read, and as an iteration begins."""
        dataset: Any = self.dataset
        inner = self._inner
        if inner is None or ((begins or not inner.has_begun) and inner.world != dataset.world()):
            rows = 1 if self.batch_size is None else self.batch_size
            pad = self.pad or self.batch_size is None
            made = _Inner(dataset.as_view(), dataset.world(), rows, drop_last=self.drop_last, pad=pad)
            if inner is None:
                made.begin_at(dataset.next_loader_at)
            else:
                made.go_on_from(inner)
            self._inner = inner = made
        asked = dataset.taken_over()
        if isinstance(asked, Cursor):
            inner.begin_at(asked)
        elif asked is not None:
            inner.set_epoch(asked)
        return inner

    def _collate(self) -> Callable[[Sequence[Any]], Any]:
        collate: Any = self.collate_fn
        if self.batch_size is None:
            return SingleSample(collate)
        return DefaultCollate() if collate is torch.utils.data.default_collate else collate

    def _parallel(self) -> Parallel:
        # Read anew for each iteration, as torch does: Lightning sets worker_init_fn once the loader is made.
        workers = self.num_workers
        return Parallel(
            num_workers=workers,
            method="process",
            prefetch=workers * (self.prefetch_factor or 0),
            timeout_s=self.timeout or None,
            multiprocessing_context=self.multiprocessing_context,
            persistent_workers=self.persistent_workers,
            pin_memory=self.pin_memory,
            worker_init_fn=_Start(self.dataset, self.worker_init_fn) if workers else None,
            seed=None if self.generator is None else self.generator.initial_seed(),
        )

    def _pins(self) -> bool:
        """Whether this process pins its batches: workers' are pinned by torch, which also says where it cannot be."""
        if not self.pin_memory or self.num_workers:
            return False
        if not can_pin():
            warnings.warn("pin_memory=True pins nothing: there is no accelerator that could use it", stacklevel=3)
            return False
        return True


class _Inner(StatefulDataLoader):
    """The batches and their count, made and delivered as torch's options say, on the CPU."""

    def __init__(self, view: Any, world: World, local_batch_size: int, *, drop_last: bool, pad: bool) -> None:
        super().__init__(
            view,
            device="cpu",
            local_batch_size=local_batch_size,
            rank=world.rank,
            world_size=world.world_size,
            drop_last=drop_last,
            pad=pad,
        )
        self.world = world
        self._pins = False

    @property
    def has_begun(self) -> bool:
        """Whether there was an iteration from here on."""
        return self._epoch is not None

    def deliver(self, collate_fn: Callable[[Sequence[Any]], Any], parallel: Parallel, *, pins: bool) -> None:
        """Let the next iter() make its batches so. Workers that were kept stay where nothing differs."""
        self._pins = pins
        if (self.collate_fn, self._parallel) != (collate_fn, parallel):
            self._begin_at(self._restart(), "a newer one took its place")
            self._end_source()
            self.collate_fn, self._parallel = collate_fn, parallel

    def go_on_from(self, other: "_Inner") -> None:
        """Begin where the other one would, which is over then."""
        self._next = other._restart()
        other.close()

    def begin_at(self, cursor: Cursor) -> None:
        """Begin the next iter() here."""
        self._begin_at(cursor, "the dataset was told to begin elsewhere")

    @property
    def start(self) -> Cursor:
        """Where the newest iteration began, or the next one will."""
        return self._next if self._epoch is None else self._epoch.start

    def ranks_without_rows(self) -> int:
        """How many ranks get no row in the last step of an epoch."""
        plan, world_size = self.plan, self.world.world_size
        last = plan.rows(self.start.epoch) % plan.global_batch_size
        return world_size - last if 0 < last < world_size and not (plan.drop_last or plan.pad) else 0

    def rows_handed_out(self) -> int:
        """Rows that this rank got in the newest iteration."""
        if self._epoch is None:
            return 0
        plan, start = self.plan, self._epoch.start
        rows = self._epoch.handed_out * plan.global_batch_size
        if not plan.pad:
            rows = min(rows, plan.rows(start.epoch) - start.position)
        return -(-max(0, rows - plan.rank) // plan.world_size)

    def _mover(self) -> Callable[[Any], Any] | None:
        return pin_memory if self._pins else None


@dataclass(frozen=True)
class _Start:
    """What a worker begins with: get_worker_info() tells of the dataset that the loader was given."""

    dataset: Any
    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        object.__setattr__(get_worker_info(), "dataset", self.dataset)  # which torch lets nobody set
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


def _check_options(dataset: Any, given: Mapping[str, Any]) -> None:
    for name in _ORDERS:
        if (value := given.get(name)) is not None and value is not False:
            raise OptionError(
                name, value, "nothing: the dataset has an order of its own, and StreamingDataset(shuffle=True) shuffles"
            )
    ours, its = given.get("batch_size"), dataset.batch_size
    if ours is not None and its is not None and ours != its:
        raise OptionError(
            "batch_size",
            ours,
            f"{its}, as the dataset's batch_size is, by which it deals its rows; give both the same, or one only",
        )
