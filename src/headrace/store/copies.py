"""The copies that lie in a cache, as one process sees them: looked at, checked where that is due, mapped and pinned."""

import errno
import os
import stat
import threading
import weakref
from enum import Enum
from typing import NamedTuple

import xxhash

from headrace.errors import StoreError
from headrace.store import files
from headrace.store.cache_files import CacheFolder, Entry
from headrace.store.eviction import pin_name
from headrace.store.maps import map_file, mapping_of
from headrace.store.store import DatasetFile, Store

__all__ = ["EMPTY", "Copies", "Passing", "Wanted", "digest_of", "in_cache", "kept_digest", "own_digest", "paused"]

EMPTY = memoryview(b"")
_SECOND_NS = 1_000_000_000
# Neither a link that somebody put there, whose target is his, nor a pipe that would block.
_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_OURS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_PIN_TRIES, _PIN_WAIT_S = 200, 0.001


class Wanted(NamedTuple):
    """A file of a dataset: where it comes from, what it must be, and where its copy lies."""

    store: Store
    path: str
    expected: DatasetFile
    entry: Entry
    fingerprint: str  # of the dataset
    stamp_s: int  # the second that a checked copy bears as its time

    def where(self, path: str = "") -> str:
        """The file's full name, or that of another one of its store, for messages."""
        location = self.store.location
        return f"{location}{'' if location.endswith('/') else '/'}{path or self.path}"


class State(Enum):
    """What can be said of a copy by looking at it."""

    WHOLE = "it is as it was when it was checked"
    UNSURE = "its size is right, and its content has to be checked"
    DAMAGED = "its size is wrong, or it is no file"


class Copies:
    """The copies in one cache folder. Safe with threads, and in forked children."""

    def __init__(self, folder: CacheFolder, *, verify: bool) -> None:
        self.folder = folder
        self.verify = verify
        # Entry -> inode and time: what was checked here, and cannot be stamped.
        self._trusted: dict[str, tuple[int, int]] = {}

    def mapped(self, wanted: Wanted, *, discard: bool = False) -> memoryview | None:
        """The copy as memory, pinned while that lives; None where there is none that is whole.

        discard removes one that is damaged: only who holds the download lock may ask for that.
        """
        pinned = self.pin(wanted.entry)
        view = None
        try:
            descriptor = os.open(wanted.entry.full_path, _TO_READ)
            try:
                view = self._checked(wanted, descriptor)
            finally:
                os.close(descriptor)
            if view is None and discard:
                self.folder.discard(wanted.entry.full_path)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
        finally:
            if pinned:
                self.unpin_after(view, wanted.entry)
        return view

    def is_whole(self, wanted: Wanted) -> bool:
        """Whether there is a copy that was checked."""
        try:
            return self._state(wanted, os.lstat(wanted.entry.full_path)) is State.WHOLE
        except OSError:
            return False

    def pin(self, entry: Entry) -> bool:
        """Whether the entry is kept from being evicted, until unpin_after()."""
        # Who evicts holds the name for an instant. One that is stopped in that instant must not stop us, and without a
        # pin nothing is wrong with the data: what is mapped stays readable, but takes space that nobody counts.
        for attempt in range(_PIN_TRIES):
            if self.folder.locks.share(pin_name(entry.name)):
                return True
            if attempt + 1 < _PIN_TRIES:
                paused(_PIN_WAIT_S)
        return False

    def unpin_after(self, view: memoryview | None, entry: Entry) -> None:
        """End what pin() began: when the view's memory goes, or at once where there is none."""
        name, process = pin_name(entry.name), os.getpid()
        if view is None or view is EMPTY:
            self.folder.locks.drop(name, process)
        else:
            # Slices, and arrays over it, keep the mapping alive, and not the view.
            weakref.finalize(mapping_of(view), self.folder.locks.drop, name, process).atexit = False

    def _state(self, wanted: Wanted, status: os.stat_result) -> State:
        if not stat.S_ISREG(status.st_mode) or status.st_size != wanted.expected.size_bytes:
            return State.DAMAGED
        is_checked = status.st_mtime_ns // _SECOND_NS == wanted.stamp_s
        if is_checked or not self.verify:
            return State.WHOLE
        is_trusted = self._trusted.get(wanted.entry.name) == (status.st_ino, status.st_mtime_ns)
        return State.WHOLE if is_trusted else State.UNSURE

    def _checked(self, wanted: Wanted, descriptor: int) -> memoryview | None:
        """The open copy as memory; None where it is damaged."""
        status = os.fstat(descriptor)
        state = self._state(wanted, status)
        if state is State.DAMAGED:
            return None
        size = wanted.expected.size_bytes
        view = map_file(descriptor, size) if size else EMPTY
        if state is State.WHOLE:
            self.folder.touch(descriptor, status)
        elif not self._is_intact(wanted.expected, view, status.st_mtime_ns):
            return None
        else:
            try:
                self.folder.stamp(descriptor, wanted.stamp_s * _SECOND_NS + status.st_mtime_ns % _SECOND_NS)
            except OSError:  # it is another user's, or the directory is read-only
                self._trusted[wanted.entry.name] = (status.st_ino, status.st_mtime_ns)
        return view

    def _is_intact(self, expected: DatasetFile, view: memoryview, modified_ns: int) -> bool:
        """Whether the digest is as told or, where none is, as the file's time has kept it."""
        if expected.digest:
            return digest_of(expected, view) == expected.digest
        return kept_digest(own_digest(view)) == modified_ns % _SECOND_NS


class Passing:
    """The one unlinked file that a process may have mapped, since it takes disk space that nobody sees."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._is_arriving = False
        self._mapping: weakref.ref[object] | None = None

    def begin(self) -> bool:
        """Whether there is none yet, so that one may arrive now, until hold() or end()."""
        if self._process != os.getpid():
            Passing.__init__(self)
        with self._lock:
            if self._is_arriving or (self._mapping is not None and self._mapping() is not None):
                return False
            self._is_arriving = True
            return True

    def hold(self, view: memoryview) -> None:
        """It has arrived, and counts while it is mapped."""
        self._mapping = None if view is EMPTY else weakref.ref(mapping_of(view))

    def end(self) -> None:
        """None is arriving any more."""
        self._is_arriving = False


def in_cache(entry: Entry, action: str) -> files.named:
    """A block in which every OSError becomes a StoreError, and never one that says that the dataset lacks a file."""
    return files.named(entry.full_path, action, absent=StoreError)


def digest_of(expected: DatasetFile, data: memoryview) -> str:
    """The digest of data, in the way that the dataset digests this file; "" where it does not."""
    if expected.new_digest is None:
        return ""
    digest = expected.new_digest()
    digest.update(data)
    return digest.hexdigest()


def own_digest(data: memoryview = EMPTY) -> xxhash.xxh3_64:
    """A digest of data, to go on with, for files of which the dataset tells none."""
    return xxhash.xxh3_64(data)


def kept_digest(digest: xxhash.xxh3_64) -> int:
    """What a time's nanoseconds can keep of it: 30 bits, enough for bytes that a power cut lost."""
    return digest.intdigest() % _SECOND_NS


def paused(seconds: float) -> None:
    """Let others go on. No lock of the system has a time-out, so who waits for one looks again and again."""
    threading.Event().wait(seconds)
