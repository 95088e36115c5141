"""Work that need not be waited for, in order and bounded: a few shards are compressed, hashed and stored at a time."""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Background"]

T = TypeVar("T")


class Background(Generic[T]):
    """Runs jobs on threads and hands over their results in the order of submission, one at a time, on these threads.

    After a failure nothing more is run or handed over; `failure` has the first one at once, in whatever thread it came.
    """

    def __init__(self, max_workers: int | None, hand_over: Callable[[T], None]) -> None:
        workers = max_workers or min(4, os.cpu_count() or 1)
        self._most = workers + 1  # one waits while all threads work
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="headrace-shard")
        self._hand_over = hand_over
        self._jobs: deque[Future[None]] = deque()
        self._submitted = 0
        self._lock = threading.Lock()
        self._results: dict[int, T] = {}  # of jobs behind one that is not done
        self._handed_over = 0
        self._handing_over = False
        self.failure: BaseException | None = None

    def submit(self, job: Callable[[], T]) -> None:
        """Run the job soon; waits while too many are in flight."""
        while self._jobs and (self._jobs[0].done() or len(self._jobs) >= self._most):
            self._await_first()
        if self.failure is not None:
            return
        future = self._pool.submit(self._run, self._submitted, job)
        self._submitted += 1
        self._jobs.append(future)

    def drain(self) -> None:
        """Return once every job is done and handed over, or one has failed."""
        while self._jobs:
            self._await_first()

    def close(self) -> None:
        """Forget jobs that did not begin, and wait for those that did."""
        self._jobs.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def fail(self, error: BaseException) -> None:
        """Note a failure, unless there was one before."""
        if self.failure is None:
            self.failure = error

    def _await_first(self) -> None:
        self._jobs[0].result()
        self._jobs.popleft()

    def _run(self, number: int, job: Callable[[], T]) -> None:
        try:
            if self.failure is None:
                self._done(number, job())
        except BaseException as error:
            self.fail(error)
        finally:
            del self, job  # else the failure, whose traceback has this frame, and what both hold would keep one another

    def _done(self, number: int, result: T) -> None:
        """Hand over what is next in order, unless another thread is at it, which then goes on with this result."""
        with self._lock:
            self._results[number] = result
            if self._handing_over:
                return
            self._handing_over = True
        try:
            while (next_result := self._next()) is not None:
                self._hand_over(next_result)
        except BaseException as error:
            self.fail(error)  # before anybody else may go on
            self._handing_over = False
            raise
        finally:
            del self  # as in _run

    def _next(self) -> T | None:
        with self._lock:
            if self.failure is not None or self._handed_over not in self._results:
                self._handing_over = False
                return None
            self._handed_over += 1
            return self._results.pop(self._handed_over - 1)
