"""How one file of a dataset comes into a cache, and what everybody does who wants it meanwhile.

    is it there? -- yes ------------------------------------------------------------> mapped, pinned
        | no
    take its download lock -- somebody has it: wait until the file is there, or its holder failed or died;
        |                     one that makes no progress is passed over by taking the next lock
    make room -- there is none: the file passes, mapped and unlinked, or is held in memory
        |
    read, count, digest, write under a private name -- wrong: again, and then the error goes to all who wait
        |
    stamp, rename ------------------------------------------------------------------> mapped, pinned

A process may be killed or stopped at any of these steps: nobody else has to do anything about it.
"""

import contextlib
import errno
import os
import time
from types import TracebackType

from headrace.errors import DamagedObjectError, HeadraceError, ObjectChangedError, StoreError, TruncatedReadError
from headrace.store.arrivals import Target, fill
from headrace.store.cache_files import CacheFolder, Entry, Temporary
from headrace.store.copies import EMPTY, Copies, Passing, Wanted, in_cache, paused
from headrace.store.eviction import evict
from headrace.store.maps import map_file

__all__ = ["Downloads", "NoRoomError"]

_TRIES = 3  # of what arrives damaged; how often a request is repeated is the store's policy
_MOST_TAKEOVERS = 4
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.05
_ROOM_TRIES = 200  # milliseconds
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class NoRoomError(Exception):
    """There is no room to keep the file, and it was not to be fetched without."""


class Downloads:
    """Fetches files into one cache folder, each by one process at a time. Safe with threads and in forked children.

    takeover_s is how long a download by another process may stand still before it is passed over.
    """

    def __init__(self, copies: Copies, limit_bytes: int | None, takeover_s: float) -> None:
        self.copies = copies
        self.folder = copies.folder
        self.limit_bytes = limit_bytes
        self.takeover_s = takeover_s
        self._passing = Passing()

    def fetched(self, wanted: Wanted, *, may_pass: bool = True) -> tuple[memoryview, bool]:
        """The file as memory, from the cache or fetched into it, and whether it is kept there.

        With may_pass=False NoRoomError where it cannot be kept. Otherwise what the store raised: to whoever fetches,
        and to all who waited for that.
        """
        with in_cache(wanted.entry, "cache"):
            known = self.folder.failure(wanted.entry)
            waiting = _Waiting(self, wanted)
            while (lock := self._lock(wanted.entry, waiting.takeovers)) is None:
                if self.folder.locks.read_only:
                    raise self._read_only(wanted)
                waiting.pause()
                if (view := self.copies.mapped(wanted)) is not None:
                    return view, True
            with lock:
                if (view := self.copies.mapped(wanted, discard=True)) is not None:
                    return view, True
                if self.folder.failure(wanted.entry) not in (None, known):  # while we waited
                    error = self.folder.failed(wanted.entry, wanted.store.location)
                    if error is not None:
                        raise error
                return self._download(wanted, lock, may_pass=may_pass)

    def _lock(self, entry: Entry, takeovers: int) -> "_DownloadLock | None":
        for level in range(takeovers + 1):
            name = f"fetch {level} {entry.name}"
            if self.folder.locks.take(name):
                return _DownloadLock(self.folder, name)
        return None

    def _download(self, wanted: Wanted, lock: "_DownloadLock", *, may_pass: bool) -> tuple[memoryview, bool]:
        tries = 0
        while True:
            try:
                self.folder.remove_dead()
                found = self._try(wanted, lock, may_pass=may_pass)
            except HeadraceError as error:
                tries += 1
                damaged = isinstance(error, DamagedObjectError | ObjectChangedError | TruncatedReadError)
                if not damaged or tries == _TRIES:
                    self.folder.record_failure(wanted.entry, wanted.store.location, error)
                    raise
            except FileNotFoundError as error:  # of the cache's own: somebody removed the directory below us
                tries += 1
                if tries == _TRIES:
                    raise StoreError(f"{self.folder.root}: {error}; something removes files there") from error
                self.folder.locks.renew()
            except OSError as error:
                if error.errno in _READ_ONLY:
                    raise self._read_only(wanted) from error
                if error.errno not in _FULL:
                    raise
                self._make_disk_space(wanted, error)
            else:
                self.folder.forget_failure(wanted.entry)
                return found

    def _try(self, wanted: Wanted, lock: "_DownloadLock", *, may_pass: bool) -> tuple[memoryview, bool]:
        size = wanted.expected.size_bytes
        with contextlib.closing(Temporary(self.folder, wanted.entry)) as temporary:
            if self._has_room(temporary, size):
                stamp_ns = fill(wanted, Target(temporary.descriptor), verify=self.copies.verify)
                return self._published(wanted, temporary, stamp_ns), True
            if not may_pass:
                raise NoRoomError
            temporary.pass_by()
            lock.give_back()  # nothing will appear that others could wait for
            if not self._passing.begin():
                memory = bytearray(size)
                fill(wanted, Target(temporary.descriptor, memory), verify=self.copies.verify)
                return memoryview(memory).toreadonly(), False
            try:
                fill(wanted, Target(temporary.descriptor), verify=self.copies.verify)
                view = _map(temporary, size)
                self._passing.hold(view)
            finally:
                self._passing.end()
            return view, False

    def _published(self, wanted: Wanted, temporary: Temporary, stamp_ns: int | None) -> memoryview:
        view = _map(temporary, wanted.expected.size_bytes)
        self.folder.stamp(temporary.descriptor, None if stamp_ns is None else wanted.stamp_s * 10**9 + stamp_ns)
        self.folder.label(wanted.fingerprint, wanted.store.location)
        pinned = self.copies.pin(wanted.entry)
        try:
            self.folder.publish(temporary, wanted.entry)
        finally:
            if pinned:
                self.copies.unpin_after(view, wanted.entry)
        return view

    def _has_room(self, temporary: Temporary, size: int) -> bool:
        """Whether the file can be kept, which from now on counts as much as it will take. Makes room where it can."""
        if self.limit_bytes is None:
            temporary.reserve(size)
            return True
        if size > self.limit_bytes:
            return False
        # One process at a time, so that two do not both find too little; but none waits for one that is stopped.
        is_held = False
        for _ in range(_ROOM_TRIES):
            if is_held := self.folder.locks.take("room"):
                break
            paused(_FIRST_WAIT_S)
        try:
            temporary.reserve(size)
            if evict(self.folder, self.limit_bytes) is not None:
                return True
            temporary.reserve(0)  # at once: others would find too little room because of it
            return False
        finally:
            if is_held:
                self.folder.locks.give_back("room")

    def _make_disk_space(self, wanted: Wanted, error: OSError) -> None:
        """Remove files from the cache because the disk is full; StoreError where there is nothing to remove."""
        size = wanted.expected.size_bytes
        if all(evict(self.folder, 1 << 62, at_least=num_bytes) is None for num_bytes in (max(1, size), 1)):
            full = StoreError(
                f"{self.folder.directory}: {os.strerror(error.errno or 0)}, and the cache has nothing to remove; "
                f"{wanted.where()} needs {size:,} bytes: free some space, or set its limit to what the disk can hold"
            )
            full.errno = error.errno
            raise full from error

    def _read_only(self, wanted: Wanted) -> StoreError:
        return StoreError(
            f"{self.folder.directory} cannot be written, and it has no copy of {wanted.where()}; have the cache filled "
            "by a process that may write there, or use another directory"
        )


class _DownloadLock:
    def __init__(self, folder: CacheFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._is_held = True

    def give_back(self) -> None:
        """Twice is harmless."""
        if self._is_held:
            self._is_held = False
            self._folder.locks.give_back(self._name)

    def __enter__(self) -> None:
        """Held already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


class _Waiting:
    """Somebody else fetches the file. Whoever stands still for too long is passed over: stopped, or as good as that.

    That is safe. One that wakes goes on with a file of its own, which is whole and of the same content when it takes
    its final name.
    """

    def __init__(self, downloads: Downloads, wanted: Wanted) -> None:
        self.takeovers = 0
        self._folder, self._wanted, self._takeover_s = downloads.folder, wanted, downloads.takeover_s
        self._wait_s = _FIRST_WAIT_S
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._began_s = self._moved_s = time.monotonic()

    def pause(self) -> None:
        """Wait a little; StoreError when too many have stopped."""
        paused(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        progress, pids = self._folder.progress(self._wanted.entry)
        now = time.monotonic()
        if progress != self._seen:
            self._seen, self._moved_s = progress, now
        elif now - self._moved_s > self._takeover_s:
            if self.takeovers == _MOST_TAKEOVERS:
                raise self._stuck(pids, now)
            self.takeovers, self._moved_s = self.takeovers + 1, now

    def _stuck(self, pids: list[int], now: float) -> StoreError:
        who = ", ".join(map(str, sorted(set(pids)))) or "unknown"
        return StoreError(
            f"{self._wanted.where()}: waited {now - self._began_s:.0f} s for others to fetch it into "
            f"{self._folder.directory}, and they stand still (process {who}); continue or end those that "
            "are stopped"
        )


def _map(temporary: Temporary, size: int) -> memoryview:
    return map_file(temporary.descriptor, size) if size else EMPTY
