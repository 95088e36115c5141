"""Who makes the batches: the consumer, threads, or torch's worker processes. The batches are the same."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.loading.announcing import announced
from headrace.loading.batches import BatchMaker
from headrace.loading.prefetch import OrderedPool
from headrace.loading.sampler import LeafSampler
from headrace.loading.steps import StepPlan, leaf_of, locate
from headrace.loading.workers import WorkerPool
from headrace.planning import Cursor
from headrace.views.skipping import SkippedItems

__all__ = ["BatchSource", "Parallel", "at_least"]


@dataclass(frozen=True)
class Parallel:
    """How batches are made ahead. ValueError or TypeError for what makes no sense.

    worker_init_fn(worker) is called in each process before it makes anything; seed takes the place of torch's own in
    what the processes' generators begin with. pin_memory is for processes.
    """

    num_workers: int = 0
    method: str = "thread"
    prefetch: int = 0
    prefetch_bytes: int | None = None
    timeout_s: float | None = None
    multiprocessing_context: Any = None
    persistent_workers: bool = False
    pin_memory: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        at_least("num_workers", self.num_workers, 0)
        at_least("prefetch", self.prefetch, 0)
        at_least("prefetch_bytes", self.prefetch_bytes, 1)
        if self.method not in ("thread", "process"):
            raise ValueError(f"parallel_method={self.method!r} must be 'thread' or 'process'")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s} must be more than 0, or None for no time-out")
        if self.prefetch_bytes is not None and self.by_processes:
            raise ValueError("prefetch_bytes bounds threads only; with parallel_method='process' use prefetch")
        context = self.multiprocessing_context
        if isinstance(context, str) and context not in get_all_start_methods():
            raise ValueError(f"multiprocessing_context={context!r} must be one of {get_all_start_methods()}")

    @property
    def by_processes(self) -> bool:
        """Whether worker processes make the batches (and pin them)."""
        return self.method == "process" and self.num_workers > 0


class BatchSource:
    """Iterators over one rank's batches. Keeps worker processes between them where that is asked for.

    Where dataset replaces samples that cannot be decoded, skipped is the record that it notes them in.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Sequence[Any]], Any] | None,
        plan: StepPlan,
        parallel: Parallel,
        skipped: SkippedItems | None = None,
    ) -> None:
        self._dataset = dataset
        self._make = BatchMaker(leaf_of(dataset), collate_fn)
        self._plan = plan
        self._parallel = parallel
        self._skipped = skipped
        self._workers: WorkerPool | None = None

    def batches(self, start: Cursor) -> Iterator[Any]:
        """The batches from start to the end of its epoch, on the CPU. close(), where it has one, stops the making."""
        parallel = self._parallel
        if parallel.by_processes:
            return self._from_processes(start)
        items = announced(self._plan.items(start, self._locate), leaf_of(self._dataset))
        if parallel.num_workers == 0 and parallel.prefetch == 0:
            return map(self._make, items)
        return OrderedPool(
            items,
            self._make,
            num_threads=max(1, parallel.num_workers),
            depth=max(1, parallel.prefetch, parallel.num_workers),
            prefetch_bytes=parallel.prefetch_bytes,
            size_of=_num_bytes,
            timeout_s=parallel.timeout_s,
            named=self._make.named,
        )

    def close(self) -> None:
        """End the processes that were kept. The next batches() starts new ones."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _from_processes(self, start: Cursor) -> Iterator[Any]:
        parallel, plan = self._parallel, self._plan
        if self._workers is None:
            sampler = LeafSampler(
                self._dataset,
                plan.global_batch_size,
                plan.rank,
                plan.world_size,
                drop_last=plan.drop_last,
                pad=plan.pad,
            )
            self._workers = WorkerPool(
                self._make,
                sampler,
                plan.rank,
                self._skipped,
                parallel.seed,
                num_workers=parallel.num_workers,
                prefetch_factor=-(-parallel.prefetch // parallel.num_workers) or None,
                multiprocessing_context=parallel.multiprocessing_context,
                timeout=parallel.timeout_s or 0,
                persistent_workers=parallel.persistent_workers,
                pin_memory=parallel.pin_memory,
                worker_init_fn=parallel.worker_init_fn,
            )
        return self._workers.batches(start)

    def _locate(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return locate(self._dataset, positions)


def at_least(name: str, value: int | None, least: int) -> None:
    """Refuse what is no integer (TypeError) or too small (ValueError); None passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")


def _num_bytes(tree: Any) -> int:
    """The bytes of all that a batch holds."""
    if isinstance(size := getattr(tree, "nbytes", None), int):  # tensors, arrays, memoryviews, batches of windows
        return size
    if isinstance(tree, str | bytes | bytearray):
        return len(tree)
    if isinstance(tree, Mapping):
        return sum(map(_num_bytes, tree.values()))
    if isinstance(tree, tuple | list):
        return sum(map(_num_bytes, tree))
    if dataclasses.is_dataclass(tree):
        return sum(_num_bytes(getattr(tree, field.name)) for field in dataclasses.fields(tree))
    return 0
