"""Work that need not be waited for, in order and bounded: a few shards are compressed, hashed and stored at a time."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Background"]

T = TypeVar("T")


class Background(Generic[T]):
    """Runs jobs on threads and hands over their results in the order of submission, on the submitter's thread.

    After a failure nothing more is run or handed over; `failure` has the first one at once, in whatever thread it came.
    """

    def __init__(self, max_workers: int | None, hand_over: Callable[[T], None]) -> None:
        workers = max_workers or min(4, os.cpu_count() or 1)
        self._most = workers + 1  # one waits while all threads work
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="headrace-shard")
        self._hand_over = hand_over
        self._jobs: deque[Future[T | None]] = deque()  # None: not run, or failed
        self.failure: BaseException | None = None

    def submit(self, job: Callable[[], T]) -> None:
        """Run the job soon; waits while too many are in flight."""
        while self._jobs and (self._jobs[0].done() or len(self._jobs) >= self._most):
            self._take()
        if self.failure is not None:
            return
        future = self._pool.submit(self._run, job)
        self._jobs.append(future)

    def drain(self) -> None:
        """Return once every job is done and handed over, or one has failed."""
        while self._jobs:
            self._take()

    def close(self) -> None:
        """Forget jobs that did not begin, and wait for those that did."""
        self._jobs.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def fail(self, error: BaseException) -> None:
        """Note a failure, unless there was one before."""
        if self.failure is None:
            self.failure = error

    def _run(self, job: Callable[[], T]) -> T | None:
        try:
            return None if self.failure is not None else job()
        except BaseException as error:
            self.fail(error)
            return None
        finally:
            del self, job  # else the failure, whose traceback has this frame, and what both hold would keep one another

    def _take(self) -> None:
        result = self._jobs[0].result()
        if result is not None and self.failure is None:
            try:
                self._hand_over(result)
            except Exception as error:
                self.fail(error)
        self._jobs.popleft()
