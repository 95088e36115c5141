"""Arrays that are made again when they are asked for again: the last few are kept."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from headrace.views.protocol import Int64s

__all__ = ["RecentArrays"]


class RecentArrays:
    """The arrays used last, up to max_bytes of them; at least one. They must be pure functions of their keys.

    Threads that need one array wait for it instead of making it twice. A copy by pickle, and a process that was forked
    while a thread was making one, begin with none.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Int64s] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type["RecentArrays"], tuple[int]]:
        return RecentArrays, (self.max_bytes,)

    def get(self, key: int, make: Callable[[int], Int64s]) -> Int64s:
        """make(key), or what it gave before. Not to be written to."""
        if self._process != os.getpid():
            self._forget()  # the lock of the process that this one was forked from may be held for good
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            array = make(key)
            self._kept[key] = array
            self._bytes += array.nbytes
            while self._bytes > self.max_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            return array
