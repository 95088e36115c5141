"""Batches made by threads, handed out in order, with bounded depth and bytes.

Handing a batch from one thread to another costs tens of microseconds, more than a batch of token windows takes to make.
So what a batch costs is measured as it goes: while it is less than HAND_OVER_S the consumer makes batches itself, and
once it is more (a slow disk, a costly collate function) threads make them ahead. Which of both never shows in the
batches. The first ones are made by threads, since nothing is known of them and files are often opened there.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import WorkerError

__all__ = ["HAND_OVER_S", "OrderedPool"]

HAND_OVER_S = 200e-6
_MOST_S = 3 * HAND_OVER_S
_LITTLE_S = HAND_OVER_S / 4  # not worth the keeping of a mean

_FAREWELL_S = 2.0  # how long a pool that nobody closed waits for its threads

T = TypeVar("T")

Items = NDArray[np.int64]


class OrderedPool(Generic[T]):
    """An iterator over make(step) for every step's items, in order, made by num_threads threads up to `depth` ahead.

    An exception comes out where its batch would have, and ends the iterator. prefetch_bytes bounds what is waiting and
    being made, by size_of and the largest batch so far; one batch is always allowed. With timeout_s, a batch that takes
    longer is a WorkerError. `close()` ends the threads once the batches being made are finished, and waits for that (at
    most timeout_s); so does the end.
    """

    def __init__(
        self,
        items: Iterator[Items],
        make: Callable[[Items], T],
        *,
        num_threads: int,
        depth: int,
        prefetch_bytes: int | None = None,
        size_of: Callable[[T], int] = lambda _: 0,
        timeout_s: float | None = None,
        named: Callable[[Sequence[int]], str] = str,
    ) -> None:
        self._items = items
        self._named = named
        self._make = make
        self._num_threads = num_threads
        self._depth = depth
        self._prefetch_bytes = prefetch_bytes
        self._size_of = size_of
        self._timeout_s = timeout_s
        self._largest_bytes: int | None = None
        self._cost_s = -1.0  # of a batch, smoothed; not known yet
        self._inline = False
        self._waiting: deque[_Task[T]] = deque()
        self._tasks: SimpleQueue[_Task[T] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        # The threads do not know the pool, so one that is dropped without close() ends them too. They are daemons, so
        # that one which is stuck in a read for ever does not keep the process from exiting.
        weakref.finalize(self, _end, self._tasks, self._waiting, self._threads, _FAREWELL_S)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            if not self._inline:
                return self._from_threads()
            items = next(self._items)
            begin_s = perf_counter()
            batch = self._make(items)
            cost_s = perf_counter() - begin_s
            if cost_s > _LITTLE_S or self._cost_s > _LITTLE_S:
                self._measured(cost_s)
        except BaseException:
            self.close()
            raise
        return batch

    def close(self) -> None:
        """End the threads; batches not yet handed out are dropped. Twice is harmless."""
        self._closed = True
        self._inline = False
        _end(self._tasks, self._waiting, self._threads, self._timeout_s)

    def _measured(self, cost_s: float) -> None:
        # No batch counts for more than three times the limit, so that one which the system interrupted, or the first,
        # which opens files, decides nothing alone.
        cost_s = min(cost_s, _MOST_S)
        self._cost_s = cost_s if self._cost_s < 0 else self._cost_s + (cost_s - self._cost_s) * 0.25
        # A time-out can be kept by another thread only.
        self._inline = self._cost_s <= HAND_OVER_S and not self._waiting and self._timeout_s is None

    def _from_threads(self) -> T:
        if self._closed:
            raise StopIteration
        if not self._waiting:
            self._fill()
        if not self._waiting:
            raise StopIteration
        task = self._waiting[0]
        timeout_s = self._timeout_s
        if not task.done.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._timeout_s = 0.0  # closing need not wait for it again
            raise WorkerError(
                f"loader thread {task.thread or '(none free)'} gave no batch within timeout_s={timeout_s}\n"
                f"while loading {self._named(task.items.tolist())}"
            )
        self._waiting.popleft()
        if task.error is not None:
            raise task.error
        self._measured(task.cost_s)
        if self._prefetch_bytes is not None:
            self._largest_bytes = max(self._largest_bytes or 0, task.bytes)
        if self._cost_s > HAND_OVER_S or self._timeout_s is not None:
            self._fill()
        return task.batch

    def _fill(self) -> None:
        size_of = None if self._prefetch_bytes is None else self._size_of
        while self._has_room():
            try:
                task: _Task[T] = _Task(next(self._items), self._make, size_of)
            except StopIteration:
                return
            except Exception as error:
                task = _Task(np.empty(0, np.int64), self._make, None)  # its turn comes after the batches before it
                task.fail(error)
                self._items = iter(())
                self._waiting.append(task)
                return
            self._waiting.append(task)
            if len(self._threads) < self._num_threads:
                name = f"headrace-loader-{len(self._threads)}"
                self._threads.append(threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True))
                self._threads[-1].start()
            self._tasks.put(task)

    def _has_room(self) -> bool:
        if len(self._waiting) >= self._depth:
            return False
        if self._prefetch_bytes is None or not self._waiting:
            return True
        sizes = [task.bytes for task in self._waiting]
        largest = max(self._largest_bytes or 0, *sizes)
        if self._largest_bytes is None:
            return False  # until the first batch says how large they are
        return sum(size or largest for size in sizes) + largest <= self._prefetch_bytes


class _Task(Generic[T]):
    """One batch to make. `done` can be acquired once it is made, failed or dropped."""

    __slots__ = ("batch", "bytes", "cost_s", "done", "dropped", "error", "items", "make", "size_of", "thread")

    batch: T

    def __init__(self, items: Items, make: Callable[[Items], T], size_of: Callable[[T], int] | None) -> None:
        self.items = items
        self.make = make
        self.size_of = size_of
        self.done = threading.Lock()
        self.done.acquire()
        self.dropped = False
        self.error: BaseException | None = None
        self.cost_s = 0.0
        self.bytes = 0  # 0 until it is made
        self.thread = ""

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done.release()

    def run(self) -> None:
        if self.dropped:
            return
        self.thread = threading.current_thread().name
        begin_s = perf_counter()
        try:
            self.batch = self.make(self.items)
            if self.size_of is not None:
                self.bytes = self.size_of(self.batch)
        except BaseException as error:
            self.fail(error)
            return
        self.cost_s = perf_counter() - begin_s
        self.done.release()


def _work(tasks: "SimpleQueue[_Task[Any] | None]") -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # else the batch would live until the next one comes


def _end(
    tasks: "SimpleQueue[_Task[Any] | None]",
    waiting: "deque[_Task[Any]]",
    threads: list[threading.Thread],
    wait_s: float | None,
) -> None:
    for task in list(waiting):
        task.dropped = True
    waiting.clear()
    for _ in threads:
        tasks.put(None)
    until_s = None if wait_s is None else monotonic() + wait_s
    for thread in threads:
        if thread is not threading.current_thread():  # where the garbage collector happened to run
            thread.join(None if until_s is None else max(0.0, until_s - monotonic()))
    threads.clear()
