"""Batches made by processes: torch's own DataLoader does the work, so its start methods and time-outs are torch's.

Whatever a sample raises travels as text, because an exception may not survive the way between two processes. What
torch says of a worker that died or keeps us waiting is completed here: which worker it was, and at which samples.
"""

import copy
import logging
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch.utils.data._utils import signal_handling

from headrace.errors import WorkerError
from headrace.loading.batches import BatchMaker
from headrace.loading.parcels import Parcel, needs_no_parcel
from headrace.loading.sampler import ElasticBatchSampler
from headrace.planning import Cursor, derive_seed
from headrace.views.skipping import Skipped, SkippedItems

__all__ = ["Failure", "Reported", "WorkerDataset", "WorkerPool"]

_DEATH_S = 1.0
_LOOK_S = 1.0  # torch looks for dead workers when a time-out is over, so it is given short ones

_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Failure:
    """What went wrong in a worker, as text."""

    kind: str
    text: str
    place: str  # the samples, or rows, that were being loaded
    trace: str

    def error(self) -> WorkerError:
        """The error for the consumer."""
        return WorkerError(f"{self.kind}: {self.text}\nwhile loading {self.place}\n\n{self.trace}")


class Reported(NamedTuple):
    """A batch, and which of its samples were skipped. A tuple, so that torch pins what is in it."""

    batch: Any
    skipped: Sequence[Skipped]


class WorkerDataset(torch.utils.data.Dataset[Any]):
    """What a worker holds: an item of it is a whole batch, or one Reported, in a Parcel if need be, or the Failure met
    instead."""

    def __init__(self, make: BatchMaker, skipped: SkippedItems | None = None) -> None:
        self._make = make
        self._skipped = skipped

    def __getitems__(self, items: Sequence[int]) -> Any:
        """The collated batch of these items."""
        try:
            # torch sends from a thread whose errors nobody hears: the batch would be waited for in vain. So it is made
            # ready here, where one that cannot be pickled, or no memory left to share, is an error like any other.
            batch = self._made(np.asarray(items, np.int64))
            return batch if needs_no_parcel(batch) else Parcel(batch)
        except Exception as error:
            return Failure(type(error).__name__, _text(error), self._make.named(items), traceback.format_exc())

    def __getitem__(self, item: int) -> Any:
        return self.__getitems__([item])

    def _made(self, items: NDArray[np.int64]) -> Any:
        if self._skipped is None:
            return self._make(items)
        # With each batch again: one that nobody gets to see, since its loop was broken off, tells nobody.
        with self._skipped.reporting() as met:
            batch = self._make(items)
        return Reported(batch, tuple(met.values())) if met else batch


class _Flag:
    """An event that nobody can wait for, and that needs no lock. torch's has one, and asks it before each batch: a
    worker that is killed meanwhile keeps the lock, and all others, the main process too, wait for it for ever."""

    def __init__(self, context: BaseContext) -> None:
        self._is_set = context.RawValue("b", 0)

    def set(self) -> None:
        self._is_set.value = 1

    def is_set(self) -> bool:
        return bool(self._is_set.value)


@dataclass(frozen=True)
class _Beginning:
    """What a worker does first. torch's ends when its parent is another one than it was as it began to wait for work:
    one whose main process was killed before that would wait for ever."""

    worker_init_fn: Callable[[int], None] | None
    is_child: bool  # of the main process, and not of a fork server, which ends with that

    def __call__(self, worker: int) -> None:
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
        main = multiprocessing.parent_process()
        if self.is_child and main is not None and os.getppid() != main.pid:
            os._exit(1)  # there is nobody to tell


def _without_locked_events(context: Any) -> Any:
    """The context, or that of this start method, with _Flag for its events; None is the start method in use."""
    if context is None or isinstance(context, str):
        context = multiprocessing.get_context(context)
    if isinstance(context, BaseContext):  # torch refuses what is none
        context = copy.copy(context)
        context.Event = lambda: _Flag(context)
    return context


class WorkerPool:
    """torch's DataLoader over a BatchMaker and a sampler; options are torch's. What the workers skip is added to
    skipped, which is that of the BatchMaker's dataset. seed takes the place of torch's initial one."""

    def __init__(
        self,
        make: BatchMaker,
        sampler: ElasticBatchSampler,
        rank: int,
        skipped: SkippedItems | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self._sampler = sampler
        self._skipped = skipped
        self._make = make
        self._rank = rank
        self._seed = seed
        # torch draws the seed of its workers from the process's generator, and so changes what a model draws next.
        self._generator = torch.Generator()
        self._num_workers: int = options["num_workers"]
        self._keep: bool = options["persistent_workers"]
        self._timeout_s: float = options["timeout"]
        options["timeout"] = min(self._timeout_s, _LOOK_S)
        context = options["multiprocessing_context"] = _without_locked_events(options["multiprocessing_context"])
        is_child = isinstance(context, BaseContext) and context.get_start_method() != "forkserver"
        options["worker_init_fn"] = _Beginning(options.get("worker_init_fn"), is_child)
        self._loader: Any = torch.utils.data.DataLoader(
            WorkerDataset(make, skipped), batch_sampler=sampler, collate_fn=_as_is, generator=self._generator, **options
        )

    def batches(self, start: Cursor) -> Iterator[Any]:
        """The batches from start to the end of its epoch. WorkerError when a worker fails, dies or is too slow."""
        self._sampler.begin_at(start)
        initial = torch.initial_seed() if self._seed is None else self._seed
        seed = derive_seed(initial, "workers", self._rank, start.epoch, start.position)
        self._generator.manual_seed(seed)
        self._let_go_of_the_dead()
        try:
            iterator = self._begun()
        except Exception as error:
            raise self._not_begun(error) from error
        except BaseException:
            self.close()  # an interruption: of those that were kept some begin anew, and some do not
            raise
        keep, received = self._keep, 0
        try:
            while True:
                try:
                    batch = self._next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    keep = False
                    # In no variable of this frame: the error has the frame in its trace, and both would stay.
                    raise self._explained(error, iterator, start, received) from error
                if isinstance(batch, Failure):
                    raise batch.error()
                received += 1
                yield self._noted(batch)
        finally:
            if not keep:
                self.close(iterator)

    def _begun(self) -> Any:
        """torch's iterator. Workers that were kept first make what they have in hand, one of them perhaps for long."""
        kept = getattr(self._loader, "_iterator", None)
        if kept is not None:
            kept._timeout = self._timeout_s
        iterator = iter(self._loader)
        iterator._timeout = self._loader.timeout
        return iterator

    @property
    def _time_out(self) -> str:
        """The time-out in words, by the names that loaders have for it."""
        return f"timeout_s={self._timeout_s:g} (of a StreamingDataLoader, and of torch, timeout)"

    def _not_begun(self, error: Exception) -> WorkerError:
        """What kept torch's iterator from beginning. Workers that were kept are ended: the next ones are new."""
        kept = getattr(self._loader, "_iterator", None)
        late = kept is not None and _timed_out(error)
        if late:
            _kill(kept)
        self.close()
        if late:
            return WorkerError(
                "the loader workers that were kept are still at a batch of an iteration that was broken off, after "
                f"{self._time_out}; new ones take over"
            )
        return WorkerError(
            f"the workers could not be started ({type(error).__name__}: {error}); a dataset or collate_fn for them "
            "must be picklable unless the start method is fork"
        )

    def _next(self, iterator: Any) -> Any:
        begin = monotonic()
        while True:
            try:
                return next(iterator)
            except RuntimeError as error:
                if not _timed_out(error) or monotonic() - begin >= self._timeout_s:
                    raise

    def close(self, iterator: Any = None) -> None:
        """End the worker processes, those kept included."""
        kept = getattr(self._loader, "_iterator", None)
        self._loader._iterator = None
        for running in (iterator, kept):
            if running is not None:
                _unwatch(running)
                running._shutdown_workers()

    def _let_go_of_the_dead(self) -> None:
        """New workers are made where one of those that were kept has died: torch would wait for it."""
        kept = getattr(self._loader, "_iterator", None)
        dead = [] if kept is None else [worker for worker in kept._workers if worker.exitcode is not None]
        if dead:
            _log.warning(
                "loader worker %s died while nobody read (exit code %s); new workers take over",
                dead[0].pid,
                dead[0].exitcode,
            )
            self.close()

    def _noted(self, batch: Any) -> Any:
        if self._skipped is None or not isinstance(batch, Reported):
            return batch
        for skipped in batch.skipped:
            self._skipped.add(skipped)
        return batch.batch

    def _explained(self, error: Exception, iterator: Any, start: Cursor, received: int) -> WorkerError:
        try:
            return self._told(error, iterator, start, received)
        except RuntimeError as interruption:  # torch's signal handler tells of a death once, anywhere
            return self._told(interruption, iterator, start, received)

    def _told(self, error: Exception, iterator: Any, start: Cursor, received: int) -> WorkerError:
        """torch's error with the worker's number and process, and the samples it was at."""
        processes = list(iterator._workers)
        _unwatch(iterator)
        timed_out = _timed_out(error)
        if not timed_out:
            # A connection breaks a moment before the death of who held its other end can be seen.
            wait([process.sentinel for process in processes], timeout=_DEATH_S)
        dead = [number for number, process in enumerate(processes) if process.exitcode is not None]
        # torch deals the batches to the workers in turn, so the one that is awaited tells whose it is.
        number = dead[0] if dead else received % self._num_workers
        step = received + (number - received) % self._num_workers
        items = next(islice(self._sampler.lists_from(start), step, None), [])
        if not dead:
            _kill(iterator)
        if dead:
            how = f"died (exit code {processes[number].exitcode}): {error}"
        elif timed_out:
            how = f"gave no batch in time: nothing came within {self._time_out}"
        else:
            how = f"failed ({type(error).__name__}): {error}"
        return WorkerError(
            f"loader worker {number} (process {processes[number].pid}) {how}\n"
            f"while loading {self._make.named(items)}, or those it was given after them"
        )


def _unwatch(iterator: Any) -> None:
    """What becomes of the workers from here on is no news: torch's signal handler would raise it wherever we are then,
    in place of the error that is on its way."""
    while getattr(iterator, "_worker_pids_set", False):
        try:
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False
        except RuntimeError:  # the handler, once more
            continue
        except ValueError:  # removed, and interrupted before that was noted
            return


def _kill(iterator: Any) -> None:
    """End the workers at once. One of them may never return, and torch would wait for it."""
    _unwatch(iterator)
    for process in iterator._workers:
        process.kill()


def _timed_out(error: Exception) -> bool:
    return "timed out" in str(error)


def _as_is(batch: Any) -> Any:
    return batch


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception as inner:
        return f"(its text cannot be had: {type(inner).__name__})"
