"""Requests to a remote store at the same time: what each of them costs is the waiting."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

__all__ = ["AT_ONCE", "FILES_AT_ONCE", "at_once"]

AT_ONCE = 32  # requests of one process
FILES_AT_ONCE = 8  # of them such that fetch whole files, which take memory and the network for themselves

T = TypeVar("T")
R = TypeVar("R")

_own = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}  # process id -> its own: after a fork the parent's threads are gone


def at_once(function: Callable[[T], R], arguments: Sequence[T], most: int = AT_ONCE) -> list[R]:
    """function of each argument, in order, by up to `most` threads; the first error in that order is raised.

    Where function calls at_once() itself that goes on one by one: else threads might wait for threads that wait.
    """
    if len(arguments) < 2 or getattr(_own, "is_of_pool", False):
        return [function(argument) for argument in arguments]
    if most >= AT_ONCE:
        return list(_pool().map(function, arguments))

    def every(first: int) -> list[R]:
        return [function(argument) for argument in arguments[first::most]]

    found: list[R | None] = [None] * len(arguments)
    for first, results in enumerate(_pool().map(every, range(min(most, len(arguments))))):
        found[first::most] = results
    return cast("list[R]", found)


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()
    pool = _pools.get(process)
    if pool is None:  # of two threads that find none one gives way, and its pool has no thread yet
        pool = _pools.setdefault(process, ThreadPoolExecutor(AT_ONCE, "headrace-reader", _mark))
    return pool


def _mark() -> None:
    _own.is_of_pool = True
