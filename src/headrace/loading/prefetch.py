"""Batches made by threads, handed out in order, with bounded depth and bytes.

Handing a batch from one thread to another costs tens of microseconds, more than a batch of token windows takes to make.
So cheap batches are made by the consumer itself, and only those that cost more than HAND_OVER_S go to the pool; what a
batch costs is measured as it goes, so a dataset whose reads become slow is prefetched from then on.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar

from headrace.errors import WorkerError

__all__ = ["HAND_OVER_S", "OrderedPool"]

HAND_OVER_S = 200e-6

T = TypeVar("T")


class OrderedPool(Generic[T]):
    """An iterator over make(item) for every item, in order, made by num_threads threads up to `depth` ahead.

    An exception of make comes out where its batch would have; the iterator ends there. `close()` waits for the batches
    being made and ends the threads; so does the end of the items. prefetch_bytes bounds what is waiting, by size_of;
    one batch is always allowed.
    """

    def __init__(
        self,
        items: Iterator[Any],
        make: Callable[[Any], T],
        *,
        num_threads: int,
        depth: int,
        prefetch_bytes: int | None = None,
        size_of: Callable[[T], int] = lambda _: 0,
        timeout_s: float | None = None,
    ) -> None:
        self._items = items
        self._make = make
        self._num_threads = num_threads
        self._depth = depth
        self._prefetch_bytes = prefetch_bytes
        self._size_of = size_of
        self._timeout_s = timeout_s
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[tuple[T, float]]] = deque()
        self._cost_s = 0.0  # of a batch, smoothed
        self._closed = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed:
            raise StopIteration
        try:
            if self._cost_s > HAND_OVER_S:
                self._fill()
            if self._waiting:
                batch, cost_s = self._take()
            else:
                batch, cost_s = self._timed(next(self._items))
        except BaseException:
            self.close()
            raise
        self._cost_s += (cost_s - self._cost_s) * 0.25
        if self._cost_s > HAND_OVER_S:
            self._fill(batch)
        return batch

    def close(self) -> None:
        """End the threads; batches not yet handed out are dropped. Twice is harmless."""
        self._closed = True
        for future in self._waiting:
            future.cancel()
        self._waiting.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=self._timeout_s is None, cancel_futures=True)

    def _timed(self, item: Any) -> tuple[T, float]:
        begin_s = time.perf_counter()
        batch = self._make(item)
        return batch, time.perf_counter() - begin_s

    def _fill(self, batch: T | None = None) -> None:
        if batch is not None and self._prefetch_bytes is not None:
            size = self._size_of(batch)
            if size:
                self._depth = max(1, min(self._depth, self._prefetch_bytes // size))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="headrace-loader")
        while len(self._waiting) < self._depth:
            try:
                item = next(self._items)
            except StopIteration:
                return
            self._waiting.append(self._pool.submit(self._timed, item))

    def _take(self) -> tuple[T, float]:
        try:
            return self._waiting.popleft().result(self._timeout_s)
        except FutureTimeoutError:
            raise WorkerError(f"no batch came from the loader's threads within {self._timeout_s} s") from None
