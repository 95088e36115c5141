"""StatefulDataLoader: this rank's batches of the global order, from any position, with any number of workers.

    cursor -> steps -> items -> samples -> batch -> device
              (planning, thousands at a time)     \\__ inline, by threads, or by torch's worker processes

Everything right of the cursor is a pure function of it, so nothing there needs saving.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

from headrace.errors import ClosedError, OrderError
from headrace.loading.collate import Stack
from headrace.loading.device import DeviceMover, default_device, map_tensors
from headrace.loading.prefetch import OrderedPool
from headrace.loading.steps import StepPlan, leaf_of, locate
from headrace.loading.workers import WorkerDataset, batches_from_workers, make_batch
from headrace.loading.world import World, resolve_world
from headrace.planning import Cursor, check_division, decode_state, encode_state, plan_fingerprint
from headrace.views import ShuffledDataset, dataset_settings

__all__ = ["StatefulDataLoader"]


class StatefulDataLoader:
    """Batches of a map-style dataset for one rank, resumable anywhere with any number of ranks and workers.

    | argument | meaning |
    | --- | --- |
    | collate_fn | samples to a batch; None stacks them to tensors of their stored type |
    | local_batch_size, global_batch_size | rows a step for this rank, or for all together (default: 1 local) |
    | rank, world_size | default: torch.distributed's, else RANK and WORLD_SIZE, else 0 of 1 |
    | shuffle, shuffle_seed | a new global permutation each epoch; seed None is 0, on every rank |
    | drop_last | True drops the rows that fill no global batch; False serves them, some ranks getting fewer or none |
    | num_workers, parallel_method | "thread" or "process"; 0 makes batches in the caller |
    | prefetch, prefetch_bytes | at most so many batches, and bytes, are made ahead |
    | device, pin_memory | where batches go; pinning needs a CUDA device |
    | multiprocessing_context, timeout_s, persistent_workers | as torch's DataLoader |

    `for batch in loader` serves one epoch; the next `for` the next one. A loop that is broken off and a new one start
    the same epoch over. `state_dict()` counts what the consumer got; `load_state_dict()` sets where the next `iter()`
    starts. An iterator that is overtaken by either raises ClosedError when it is used again.
    """

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
    ) -> None:
        if local_batch_size is not None and global_batch_size is not None:
            raise ValueError("give local_batch_size or global_batch_size, not both")
        for name, value, least in (
            ("local_batch_size", local_batch_size, 1),
            ("global_batch_size", global_batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch", prefetch, 0),
            ("prefetch_bytes", prefetch_bytes, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}")
        if parallel_method not in ("thread", "process"):
            raise ValueError(f"parallel_method={parallel_method!r} must be 'thread' or 'process'")
        if shuffle and getattr(dataset, "ordered", False):
            raise OrderError(
                f"shuffle=True over a {type(dataset).__name__}, which already orders; shuffle its base, or leave it out"
            )
        self.device = torch.device(device) if device is not None else default_device()
        if pin_memory and self.device.type != "cuda":
            raise ValueError(f"pin_memory=True needs a CUDA device, not {self.device}")
        self.dataset = ShuffledDataset(dataset, shuffle_seed or 0) if shuffle else dataset
        self.collate_fn = collate_fn
        self.num_workers = num_workers
        self.parallel_method = parallel_method
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.prefetch = prefetch
        self._batch_sizes = (local_batch_size, global_batch_size)
        self._world: tuple[int | None, int | None] = (rank, world_size)
        self._multiprocessing_context = multiprocessing_context
        self._timeout_s = timeout_s
        self._persistent_workers = persistent_workers
        self._prefetch_bytes = prefetch_bytes
        self._plan_made: StepPlan | None = None
        self._settings_made: tuple[dict[str, Any], str] | None = None
        self._workers: torch.utils.data.DataLoader[Any] | None = None
        self._mover: DeviceMover | None = None
        self._next = Cursor()
        self._epoch: _Epoch | None = None

    @classmethod
    def from_storage(
        cls,
        storage: Any,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        *,
        sequence_length: int | None = None,
        **options: Any,
    ) -> Self:
        """A loader over storage's dataset; options are the constructor's.

        A stream storage needs sequence_length (ValueError); a storage of documents has none (TypeError).
        """
        kind = getattr(storage, "kind", None)
        if kind is None or not hasattr(storage, "dataset"):
            raise TypeError(f"{type(storage).__name__} is no storage")
        if kind == "documents":
            if sequence_length is not None:
                raise TypeError("documents have lengths of their own; leave sequence_length out")
            return cls(storage.dataset(), collate_fn, **options)
        if sequence_length is None:
            raise ValueError("a stream has no windows of its own; pass sequence_length")
        return cls(storage.dataset(sequence_length), collate_fn, **options)

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank; OrderError when that is none."""
        return self._plan().steps

    def __iter__(self) -> Iterator[Any]:
        plan = self._plan()
        _ = plan.steps  # refuses an empty plan
        self._detach()
        start, self._next = self._next, Cursor(self._next.epoch)
        self._epoch = _Epoch(self, start, plan.steps_from(start))
        return self._epoch

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        self._plan()  # the other process inherits the rank that was found here
        return {**self.__dict__, "_workers": None, "_mover": None, "_epoch": None, "_next": self._cursor()}

    def open(self) -> None:
        """Open the dataset now rather than at the first batch, so that its errors come here."""
        _ = self._plan().steps

    def close(self) -> None:
        """End threads, workers and the active iterator. The position stays, and the loader can be used again."""
        self._next = self._cursor()
        self._detach()
        self._workers = None

    @property
    def rank(self) -> int:
        """This process's rank among those that share the global batches."""
        return self._plan().rank

    @property
    def world_size(self) -> int:
        """How many ranks share the global batches."""
        return self._plan().world_size

    @property
    def global_batch_size(self) -> int:
        """Rows a step for all ranks together."""
        return self._plan().global_batch_size

    @property
    def local_batch_size(self) -> int:
        """Rows a step for this rank, in full batches."""
        return self.global_batch_size // self.world_size

    @property
    def dataset_size(self) -> int:
        """Rows an epoch, for all ranks together."""
        return self._plan().num_rows

    def set_epoch(self, epoch: int) -> None:
        """Begin the next `iter()` at the start of this epoch. Nothing changes when it is in this epoch anyway, so a
        call after load_state_dict keeps the position."""
        if epoch != self._next.epoch:
            self._detach()
            self._next = Cursor(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The record of this run: what the consumer got so far. Small, JSON-able, free, and equal on every rank."""
        settings, plan = self._settings()
        return encode_state(self._cursor(), settings, plan)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next `iter()` where the record says.

        StateMismatchError names each setting that differs: data, order, seed, drop_last. World size, batch size,
        workers and where the data lies may be others.
        """
        cursor = decode_state(state_dict, self._settings()[0])
        self._detach()
        self._next = cursor

    def describe(self) -> dict[str, Any]:
        """Data, order and sizes of this loader."""
        plan = self._plan()
        return {
            **self._settings()[0],
            "num_samples": plan.num_rows,
            "steps": plan.steps,
            "global_batch_size": plan.global_batch_size,
            "rank": plan.rank,
            "world_size": plan.world_size,
        }

    def _cursor(self) -> Cursor:
        return self._next if self._epoch is None else self._epoch.cursor()

    def _plan(self) -> StepPlan:
        if self._plan_made is None:
            world: World = resolve_world(*self._world)
            local, together = self._batch_sizes
            rows = together if together is not None else (local or 1) * world.world_size
            check_division(rows, world.world_size)
            self._plan_made = StepPlan(len(self.dataset), rows, world.rank, world.world_size, self.drop_last)
        return self._plan_made

    def _settings(self) -> tuple[dict[str, Any], str]:
        if self._settings_made is None:
            settings = {**dataset_settings(self.dataset), "drop_last": self.drop_last}
            self._settings_made = settings, plan_fingerprint(settings)
        return self._settings_made

    def _detach(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None

    def _locate(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return locate(self.dataset, positions)

    def _batches(self, start: Cursor) -> "Iterator[Any] | OrderedPool[Any]":
        """This rank's batches from start to the end of its epoch, on the CPU or pinned."""
        items = self._plan().items(start, self._locate)
        if self.parallel_method == "process" and self.num_workers > 0:
            return batches_from_workers(self._worker_loader(items))
        collate = _collate(leaf_of(self.dataset), self.collate_fn)
        dataset = leaf_of(self.dataset)
        if self.num_workers == 0 and self.prefetch == 0:
            return (make_batch(dataset, collate, step) for step in items)
        return OrderedPool(
            items,
            lambda step: make_batch(dataset, collate, step),
            num_threads=max(1, self.num_workers),
            depth=max(1, self.prefetch, self.num_workers),
            prefetch_bytes=self._prefetch_bytes,
            size_of=_num_bytes,
            timeout_s=self._timeout_s,
        )

    def _worker_loader(self, items: Iterator[NDArray[np.int64]]) -> "torch.utils.data.DataLoader[Any]":
        if self._workers is None:
            dataset = leaf_of(self.dataset)
            self._workers = torch.utils.data.DataLoader(
                WorkerDataset(dataset, _collate(dataset, self.collate_fn)),
                batch_sampler=_Steps(),
                collate_fn=_as_is,
                num_workers=self.num_workers,
                prefetch_factor=max(1, -(-self.prefetch // self.num_workers)) if self.prefetch else 2,
                multiprocessing_context=self._multiprocessing_context,
                timeout=self._timeout_s or 0,
                persistent_workers=self._persistent_workers,
                pin_memory=self.pin_memory,
            )
        steps = self._workers.batch_sampler
        assert isinstance(steps, _Steps)
        steps.items = items
        return self._workers

    def _to_device(self, batch: Any) -> Any:
        if self.device.type == "cpu":
            return batch
        if self._mover is None:
            pinned_already = self.parallel_method == "process" and self.num_workers > 0
            self._mover = DeviceMover(self.device, pin_memory=self.pin_memory and not pinned_already)
        return self._mover(batch)


class _Epoch:
    """The iterator of one epoch, and the count of what was handed out."""

    def __init__(self, loader: StatefulDataLoader, start: Cursor, num_steps: int) -> None:
        self._loader = loader
        self._start = start
        self._num_steps = num_steps
        self._handed_out = 0
        self._batches: Any = loader._batches(start)
        self._closed = False

    def __iter__(self) -> "Iterator[Any]":
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise ClosedError("this iterator was overtaken by a newer one, by load_state_dict() or by close()")
        loader = self._loader
        batch = next(self._batches, _END)
        if batch is _END:
            self._end()
            raise StopIteration
        batch = loader._to_device(batch)
        self._handed_out += 1
        if self._handed_out == self._num_steps:
            loader._next = Cursor(self._start.epoch + 1)
        return batch

    def cursor(self) -> Cursor:
        """How far the consumer is."""
        return self._loader._plan().after(self._start, self._handed_out)

    def close(self) -> None:
        """Stop making batches. Twice is harmless."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()


class _Steps:
    """The batch sampler of torch's DataLoader: whatever steps come next."""

    items: Iterator[NDArray[np.int64]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.items:
            yield step.tolist()


class _EmptyAware:
    """The built-in collate, which knows what a batch of no rows looks like."""

    def __init__(self, dataset: Any, collate: Stack) -> None:
        self._dataset = dataset
        self._collate = collate

    def __call__(self, samples: Sequence[Any]) -> Any:
        if len(samples) == 0 and not hasattr(samples, "stacked"):
            return map_tensors(self._collate([self._dataset[0]]), lambda tensor: tensor[:0])
        return self._collate(samples)


_END = object()


def _collate(dataset: Any, collate_fn: Callable[[Sequence[Any]], Any] | None) -> Callable[[Sequence[Any]], Any]:
    if collate_fn is None or isinstance(collate_fn, Stack):
        return _EmptyAware(dataset, collate_fn or Stack())
    return collate_fn


def _as_is(batch: Any) -> Any:
    return batch


def _num_bytes(batch: Any) -> int:
    total = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    map_tensors(batch, count)
    return total
