"""Requests to a remote store at the same time: what each of them costs is the waiting."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["AT_ONCE", "at_once"]

AT_ONCE = 32  # requests of one process

T = TypeVar("T")
R = TypeVar("R")

_pools: dict[int, ThreadPoolExecutor] = {}  # process id -> its own: after a fork the parent's threads are gone


def at_once(function: Callable[[T], R], arguments: Sequence[T]) -> list[R]:
    """function of each argument, in order, by up to AT_ONCE threads; the first error in that order is raised.

    function must not call at_once() itself: it would wait for threads that wait for it.
    """
    if len(arguments) < 2:
        return [function(argument) for argument in arguments]
    return list(_pool().map(function, arguments))


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()
    pool = _pools.get(process)
    if pool is None:  # of two threads that find none one gives way, and its pool has no thread yet
        pool = _pools.setdefault(process, ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headrace-reader"))
    return pool
