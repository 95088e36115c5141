"""StatefulDataLoader: this rank's batches of the global order, from any position, with any number of workers.

    cursor -> steps -> items -> samples -> batch -> device
              (planning, thousands at a time)   \\__ by the consumer, threads, or torch's worker processes

Everything right of the cursor is a pure function of it, so nothing there needs saving.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import torch

from headrace.errors import OrderError
from headrace.loading.device import DeviceMover, default_device
from headrace.loading.epoch import EpochIterator
from headrace.loading.order import RankOrder, check_epoch, check_start, restored
from headrace.loading.parallel import BatchSource, Parallel, at_least
from headrace.loading.steps import StepPlan
from headrace.loading.world import world_of
from headrace.planning import Cursor, check_division
from headrace.views import ShuffledDataset, is_ordered, is_windowed
from headrace.views.leaves import check_stateless
from headrace.views.protocol import ordered_view
from headrace.views.skipping import Skipped, SkippedItems, corrupt_errors, skipping

__all__ = ["StatefulDataLoader"]


class StatefulDataLoader:
    """Batches of a map-style dataset for one rank, resumable anywhere with any number of ranks and workers.

    | argument | meaning |
    | --- | --- |
    | collate_fn | samples to a batch; None stacks them to tensors of their stored type |
    | local_batch_size, global_batch_size | rows a step for this rank, or for all together (default: 1 local) |
    | rank, world_size | default: a StreamingDataset's, torch.distributed's, RANK and WORLD_SIZE, or else 0 of 1 |
    | shuffle, shuffle_seed | a new global permutation each epoch; seed None is 0, on every rank |
    | drop_last | True drops the rows that fill no global batch; False serves them, some ranks getting fewer or none |
    | pad | True fills an epoch's last global batch up with its first rows; needs drop_last=False. See `padding` |
    | num_workers, parallel_method | so many threads ("thread") or processes ("process"); 0 is the caller itself |
    | prefetch | batches made ahead; at least num_workers. Without workers, one thread makes them |
    | prefetch_bytes | what threads made ahead is at most so large, by the largest batch so far; one is always allowed |
    | device, pin_memory | where batches go; pinning needs a CUDA device |
    | timeout_s | a batch that workers do not give in time is a WorkerError |
    | multiprocessing_context, persistent_workers | as torch's DataLoader, for processes |
    | skip_corrupt | True, or types of errors: a sample that raises one is replaced, and listed in `skipped` |

    `for batch in loader` serves one epoch; the next `for` the next one. A loop that is broken off and a new one start
    the same epoch over (or, if it got nothing yet, where it began). `state_dict()` counts what the consumer got;
    `load_state_dict()` sets where the next `iter()` starts. An iterator that is overtaken by a newer one, by
    `load_state_dict()`, `set_epoch()` or `close()`, and one that raised an error, raise ClosedError when used again.
    """

    is_elastic: ClassVar[bool] = True  # a state is equal on every rank, and loads with any number of them

    def __init__(  # noqa: PLR0913 - GuideLoom's signature, and torch's options
        self,
        dataset: Any,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        *,
        device: torch.device | str | None = None,
        local_batch_size: int | None = None,
        global_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        parallel_method: str = "thread",
        shuffle: bool = False,
        shuffle_seed: int | None = None,
        pin_memory: bool = False,
        drop_last: bool = True,
        prefetch: int = 0,
        multiprocessing_context: Any = None,
        timeout_s: float | None = None,
        persistent_workers: bool = False,
        prefetch_bytes: int | None = None,
        skip_corrupt: bool | tuple[type[Exception], ...] = False,
        pad: bool = False,
    ) -> None:
        if local_batch_size is not None and global_batch_size is not None:
            raise ValueError("give local_batch_size or global_batch_size, not both")
        world = world_of(dataset, rank, world_size)
        self.dataset = dataset = ordered_view(dataset)
        at_least("local_batch_size", local_batch_size, 1)
        at_least("global_batch_size", global_batch_size, 1)
        if rank is not None or world_size is not None:
            known = world()
            check_division(global_batch_size or known.world_size, known.world_size)
        if shuffle and is_ordered(dataset):
            raise OrderError(
                f"shuffle=True over a {type(dataset).__name__}, which already orders; shuffle its base, or leave it out"
            )
        check_stateless(dataset, type(self).__name__)
        self._given = ShuffledDataset(dataset, shuffle_seed or 0) if shuffle else dataset
        # Of the dataset as it was given, or a copy of it whose mixture was changed within the run.
        self._order = RankOrder(self._given, world, local_batch_size, global_batch_size, drop_last=drop_last, pad=pad)
        self.device = torch.device(device) if device is not None else default_device()
        if pin_memory and self.device.type != "cuda":
            raise ValueError(f"pin_memory=True needs a CUDA device, not {self.device}")
        self.collate_fn = collate_fn
        self.num_workers = num_workers
        self.parallel_method = parallel_method
        self.shuffle = shuffle
        self.shuffle_seed = shuffle_seed
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.pad = pad
        self.prefetch = prefetch
        self._parallel = Parallel(
            num_workers=num_workers,
            method=parallel_method,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            timeout_s=timeout_s,
            multiprocessing_context=multiprocessing_context,
            persistent_workers=persistent_workers,
            pin_memory=pin_memory,
        )
        self._corrupt = corrupt_errors(skip_corrupt)
        self._skipped = SkippedItems()
        if self._corrupt:
            skipping(self._given, self._corrupt, self._skipped)  # refuses what it cannot tell apart; opens nothing
        self._owns_dataset = False
        self._source_made: BatchSource | None = None
        self._mover_made: DeviceMover | None = None
        self._next = Cursor()  # where the next iter() begins, unless there was one since
        self._epoch: EpochIterator | None = None

    @classmethod
    def from_storage(
        cls,
        storage: Any,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        *,
        sequence_length: int | None = None,
        stride: int | None = None,
        extra: int = 0,
        **options: Any,
    ) -> Self:
        """A loader over storage's dataset, which it closes when it is closed; options are the constructor's.

        A stream storage needs sequence_length (ValueError) and may have stride and extra, as StreamDataset; a storage
        of documents has none of them (TypeError).
        """
        kind = getattr(storage, "kind", None)
        if kind is None or not hasattr(storage, "dataset"):
            raise TypeError(f"{type(storage).__name__} is no storage")
        if kind == "documents":
            given = {"sequence_length": sequence_length, "stride": stride, "extra": extra or None}
            if named := [name for name, value in given.items() if value is not None]:
                raise TypeError(f"documents have lengths of their own; leave {' and '.join(named)} out")
            dataset = storage.dataset()
        elif sequence_length is None:
            raise ValueError("a stream has no windows of its own; pass sequence_length")
        else:
            dataset = storage.dataset(sequence_length, stride, extra)
        loader = cls(dataset, collate_fn, **options)
        loader._owns_dataset = True
        return loader

    def __len__(self) -> int:
        """Steps of the whole epoch that `iter()` begins in, the same on every rank; OrderError when that is none.

        Rows of packs and token-budget batches vary by epoch: there it reads the lengths of the epoch's samples, once.
        TypeError for an epoch within which their mixture was changed.
        """
        return self.plan.steps(self._restart().epoch)

    def __iter__(self) -> Iterator[Any]:
        self._order.check_unchanged()
        plan = self.plan
        start = plan.begin(self._restart())
        self._begin_at(start, "a newer one took its place")
        self._epoch = EpochIterator(self._source().batches(start), plan, start, self._mover())
        return self._epoch

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # The other process goes on where this one is.
        return {**self.__dict__, "_source_made": None, "_mover_made": None, "_epoch": None, "_next": self._cursor()}

    def open(self) -> None:
        """Open the dataset now rather than at the first batch, so that its errors come here."""
        self.plan.check()

    def close(self) -> None:
        """End threads, workers and the active iterator; twice is harmless. The state stays, and the loader can be used
        again."""
        if self._epoch is not None:
            self._epoch.close()
        self._end_source()
        if self._owns_dataset:
            self.dataset.close()

    @property
    def rank(self) -> int:
        """This process's rank among those that share the global batches."""
        return self.plan.rank

    @property
    def world_size(self) -> int:
        """How many ranks share the global batches."""
        return self.plan.world_size

    @property
    def global_batch_size(self) -> int:
        """Rows a step for all ranks together."""
        return self.plan.global_batch_size

    @property
    def local_batch_size(self) -> int:
        """Rows a step for this rank, in full batches."""
        return self.global_batch_size // self.world_size

    @property
    def dataset_size(self) -> int:
        """Rows of the epoch that `iter()` begins in, for all ranks together."""
        return self.plan.rows(self._restart().epoch)

    @property
    def plan(self) -> StepPlan:
        """How the steps of this loader's order are counted, after a change of its mixture within the run too."""
        return self._order.plan

    @property
    def padding(self) -> int:
        """How many rows at the end of this rank's last batch of the epoch are repeats: 0 unless pad fills it up.

        The epoch is the one that the newest iterator reads, or has read; without one, that which `iter()` begins in.
        Of packed rows it counts those of the epoch, from lengths.
        """
        plan = self.plan
        return plan.padding(self._next if self._epoch is None else self._epoch.start)

    @property
    def skipped(self) -> list[Skipped]:
        """The samples that skip_corrupt replaced in this process, in the order met, each once.

        Batches that were made ahead count, and what worker processes met comes with their batches. It is not part of
        the state. Excluding these items from the dataset makes it permanent.
        """
        return list(self._skipped)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next `iter()` at the start of this epoch. Nothing changes when it is in this epoch anyway, so a
        call after load_state_dict keeps the position. OrderError for an epoch before a change of the mixture."""
        at_least("epoch", epoch, 0)
        if epoch != self._restart().epoch:
            check_epoch(self._order.dataset, epoch)
            self._begin_at(Cursor(int(epoch)), "set_epoch() chose another epoch")

    def state_dict(self) -> dict[str, Any]:
        """The record of this run: what the consumer got so far. Small, JSON-able, free, and equal on every rank."""
        return self._order.state(self._cursor())

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, change: Literal["from_here"] | None = None, was: Any = None
    ) -> None:
        """Begin the next `iter()` where the record says.

        StateMismatchError names each setting that differs: data, order, seed, drop_last. World size, batch size,
        workers and where the data lies may be others. ValueError for what is no state. A refused one changes nothing.

        change="from_here" lets a mixture be another than the one that was saved (weights, schedule, sources): what its
        sources gave so far stays counted, and the settings of now apply from the position on, or over packs and
        batches from the next window on. The dataset of this loader stays what it is; later states tell of the change,
        and load without saying so again. was is the dataset of before: a mixture of more sources than a state can
        describe needs it.
        """
        dataset, cursor = restored(state_dict, self._given, drop_last=self.drop_last, change=change, was=was)
        self._begin_at(cursor, "load_state_dict() chose another position")
        if dataset is not self._order.dataset:
            self._end_source()
            self._order = self._order.over(dataset)

    def describe(self) -> dict[str, Any]:
        """Data, order and sizes of this loader. The rows of packs and batches are left out: they would be counted."""
        plan = self.plan
        windowed = is_windowed(self._order.dataset)
        sizes = {} if windowed else {"num_samples": plan.rows(0), "steps": plan.steps(0)}
        if self.pad:
            sizes |= {"pad": True} if windowed else {"pad": True, "padding": plan.padding(Cursor())}
        return {
            **self._order.settings,
            **sizes,
            "global_batch_size": plan.global_batch_size,
            "rank": plan.rank,
            "world_size": plan.world_size,
        }

    def _cursor(self) -> Cursor:
        """How far the consumer is."""
        return self._next if self._epoch is None else self._epoch.cursor()

    def _restart(self) -> Cursor:
        """Where the next iter() begins."""
        return self._next if self._epoch is None else self._epoch.restart()

    def _begin_at(self, cursor: Cursor, why: str) -> None:
        check_start(self._order.dataset, cursor)
        epoch, self._epoch = self._epoch, None
        self._next = cursor
        if epoch is not None:
            epoch.close(why)

    def _source(self) -> BatchSource:
        if self._source_made is None:
            dataset, record = self._order.dataset, self._skipped if self._corrupt else None
            if record is not None:
                dataset = skipping(dataset, self._corrupt, record)
            self._source_made = BatchSource(dataset, self.collate_fn, self.plan, self._parallel, record)
        return self._source_made

    def _end_source(self) -> None:
        source, self._source_made = self._source_made, None
        if source is not None:
            source.close()

    def _mover(self) -> Callable[[Any], Any] | None:
        if self.device.type == "cpu":
            return None
        if self._mover_made is None:
            self._mover_made = DeviceMover(self.device, pin_memory=self.pin_memory and not self._parallel.by_processes)
        return self._mover_made
