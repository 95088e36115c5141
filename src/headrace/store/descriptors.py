"""Open files for positional reads: the least recently used are closed, and never one that a thread is reading."""

import os
import resource
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from headrace.errors import NotFoundError

__all__ = ["Descriptors", "descriptors_together", "open_to_read"]

_FEWEST = 1

_sharing: "weakref.WeakValueDictionary[int, Descriptors]" = weakref.WeakValueDictionary()  # by id()


def descriptors_together() -> int:
    """How many descriptors all of one kind in this process may keep open together: a quarter of its soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft // 4


class Descriptors:
    """At most max_open descriptors by full path, shared by threads; more only while more are being read at once.

    max_together is for all in this process that were given one: each has an equal part, and closes what is above it as
    soon as there is one more, since a dataset may have hundreds of streams.
    """

    def __init__(self, max_open: int, max_together: int | None = None) -> None:
        self.max_open = max_open
        self._max_together = max_together
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()  # full path -> descriptor, oldest use first
        self._forgotten = 0  # how often forget() ran
        # A store that is dropped without close() must not keep its files open for the rest of the process's life.
        weakref.finalize(self, _close_all, self._open).atexit = False
        if max_together is not None:
            _sharing[id(self)] = self
            for reference in _sharing.valuerefs():  # a list, which no other thread changes
                if (other := reference()) is not None:
                    other._keep_to_its_part()

    @contextmanager
    def opened(self, full_path: str) -> Iterator[int]:
        """A descriptor of the file, which stays open inside the block whatever others do."""
        descriptor = self._take(full_path)
        try:
            yield descriptor.number
        finally:
            self._give_back(descriptor)

    def forget(self, full_path: str) -> None:
        """Open the file, or all files below the folder, anew at the next use."""
        below = full_path + "/"
        with self._lock:
            self._forgotten += 1
            for path in [path for path in self._open if path == full_path or path.startswith(below)]:
                self._drop(path)

    def close(self) -> None:
        """Close what nobody reads; what is being read is closed right after."""
        with self._lock:
            for path in list(self._open):
                self._drop(path)

    def abandon(self) -> None:
        """Close all in a forked child: no thread of it reads them, and their lock may be held for ever."""
        _close_all(self._open)

    @property
    def _most(self) -> int:
        if self._max_together is None:
            return self.max_open
        return min(self.max_open, max(_FEWEST, self._max_together // len(_sharing)))

    def _keep_to_its_part(self) -> None:
        # Whoever holds the lock does it himself, in the end; after a fork nobody may.
        if self._lock.acquire(blocking=False):
            try:
                self._shrink(self._most)
            finally:
                self._lock.release()

    def _take(self, full_path: str) -> "_Descriptor":
        with self._lock:
            descriptor = self._open.get(full_path)
            if descriptor is not None:
                self._open.move_to_end(full_path)
                descriptor.users += 1
                return descriptor
            # Room is made before opening, so that the process's limit is not passed even for a moment.
            self._shrink(self._most - 1)
            forgotten = self._forgotten
        opened = _Descriptor(open_to_read(full_path))
        with self._lock:
            if forgotten != self._forgotten:  # it may be the file that was just replaced: good for this use only
                opened.dropped = True
                opened.users = 1
                return opened
            present = self._open.setdefault(full_path, opened)
            if present is not opened:  # another thread opened it meanwhile
                os.close(opened.number)
            present.users += 1
            return present

    def _give_back(self, descriptor: "_Descriptor") -> None:
        with self._lock:
            descriptor.users -= 1
            if descriptor.dropped and not descriptor.users:
                os.close(descriptor.number)
            self._shrink(self._most)

    def _shrink(self, limit: int) -> None:
        excess = len(self._open) - limit
        if excess > 0:
            idle = (path for path, descriptor in self._open.items() if not descriptor.users)
            for path in list(islice(idle, excess)):
                self._drop(path)

    def _drop(self, full_path: str) -> None:
        descriptor = self._open.pop(full_path)
        descriptor.dropped = True
        if not descriptor.users:
            os.close(descriptor.number)


def _close_all(descriptors: "OrderedDict[str, _Descriptor]") -> None:
    while descriptors:
        os.close(descriptors.popitem()[1].number)


class _Descriptor:
    __slots__ = ("dropped", "number", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.users = 0
        self.dropped = False


def open_to_read(full_path: str) -> int:
    """A descriptor of the regular file, to be closed by the caller; NotFoundError for a folder or a device."""
    number = os.open(full_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # without it a named pipe would block
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotFoundError(f"{full_path} is a folder or a device, not an object")
    return number
