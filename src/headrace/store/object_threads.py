"""The threads that wait for requests."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["interruptible", "pool"]

Result = TypeVar("Result")

_FOR_MAIN = "main"  # more than one, because those that were interrupted still wait
_NUM_FOR_MAIN = 8
_LOOK_S = 0.2

_pools: dict[tuple[int, int | str], ThreadPoolExecutor] = {}  # by process id: a child has no threads of its parent


def pool(threads: int) -> ThreadPoolExecutor:
    """This process's pool of so many threads."""
    return _pool(threads, threads)


def interruptible(read: Callable[[], Result]) -> Result:
    """read(), which Ctrl-C ends for the caller even while it waits for a server.

    Python handles signals in its main thread, between its own instructions; obstore waits for an answer within one of
    them. So where this is the main thread, another one waits. That one goes on after Ctrl-C: for reading only.
    """
    if threading.current_thread() is not threading.main_thread():
        return read()
    try:
        waiting = _pool(_FOR_MAIN, _NUM_FOR_MAIN).submit(read)
    except RuntimeError:  # the interpreter ends, and starts no thread any more
        return read()
    # By turns: a signal that comes right before this thread falls asleep does not wake it.
    while not wait([waiting], timeout=_LOOK_S).done:
        pass
    return waiting.result()


def _pool(name: int | str, threads: int) -> ThreadPoolExecutor:
    key = (os.getpid(), name)
    found = _pools.get(key)
    if found is None:
        found = _pools.setdefault(key, ThreadPoolExecutor(threads, thread_name_prefix="headrace-requests"))
    return found
