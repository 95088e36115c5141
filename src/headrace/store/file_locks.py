"""Locks between a host's processes: any number of names, a few open files, and none that outlives its process.

A name is a byte of a lock file: its place is a digest of the name, far behind the file's end. The system's locks on
ranges of open files (`F_OFD_SETLK`) do the rest: shared or exclusive, released when the process ends, however it ends.
A lock file for each name would cost a descriptor for each mapped file, and there may be thousands.

Such a lock belongs to the open file, not to the thread, so a table counts for itself what this process holds. It never
waits: no lock of the system has a time-out, and who waits has to look at more than the lock.

A process may use hundreds of folders, with sixteen files each. Where its tables have as many open as they may, a shared
lock is left to a map of its file, which keeps that open without a descriptor; the others close theirs right after.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.errors import StoreError
from headrace.store.descriptors import descriptors_together
from headrace.store.files import make_folders
from headrace.store.maps import kept_open

__all__ = ["LockTable", "lock_table"]

_NUM_FILES = 16  # the system's list of locks is searched from its beginning, and it is kept a file
_FIRST_BYTE = 1 << 40
_PLACES = 1 << 61
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_CONFLICT = frozenset({errno.EAGAIN, errno.EACCES})
_EXCLUSIVE = -1
_OF_OPEN_FILES = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
_MAPS_KEEP_LOCKS = sys.platform == "linux"

_tables: "weakref.WeakSet[LockTable]" = weakref.WeakSet()
_by_folder: "weakref.WeakValueDictionary[Path, LockTable]" = weakref.WeakValueDictionary()


def lock_table(folder: Path) -> "LockTable":
    """This process's table for the folder, the same for all who ask: many streams may share a cache."""
    return _by_folder.setdefault(folder, LockTable(folder))


class _Mapped(NamedTuple):
    """What keeps a shared lock whose file was closed, and the number of that file; of none where there was none."""

    inode: int | None
    keeper: object


class LockTable:
    """Named locks that all processes of a host share through the files of one folder.

    The folder appears at the first use. Where it cannot be written, locks are shared ones only, and where it does not
    exist either, every shared lock is granted: nobody can take anything away there. Safe with threads; a forked child
    holds nothing. StoreError where the file system knows no locks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_only = False
        self._files: dict[int, int | None] = {}  # number -> descriptor; None: there is none, and none can be made
        self._maps: dict[str, _Mapped] = {}  # name -> what keeps its lock, of a file that is not open here
        self._reset()
        _tables.add(self)
        weakref.finalize(self, _close_all, self._files).atexit = False

    def _reset(self) -> None:
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._command = _OF_OPEN_FILES
        self._held: dict[str, int] = {}  # name -> how many share it, or _EXCLUSIVE
        self._users = [0] * _NUM_FILES  # how many of these names are locked by the descriptor of each file
        self._dropped: deque[str] = deque()  # shared locks that are no longer needed

    def share(self, name: str) -> bool:
        """Whether this process now holds the name with others, once more; False while somebody has it alone."""
        with self._locked():
            count = self._held.get(name, 0)
            if count == _EXCLUSIVE or (count == 0 and not self._acquire(name, fcntl.F_RDLCK)):
                return False
            self._held[name] = count + 1
            return True

    def take(self, name: str) -> bool:
        """Whether this process now holds the name alone; False while anybody, this process included, holds it."""
        with self._locked():
            if name in self._held or self.read_only:
                return False
            self._leave_deleted(_place(name)[0])
            if not self._acquire(name, fcntl.F_WRLCK):
                return False
            self._held[name] = _EXCLUSIVE
            return True

    def give_back(self, name: str) -> None:
        """Ends what take() began."""
        with self._locked():
            if self._held.pop(name, None) is not None:
                self._release(name)

    def drop(self, name: str, process: int) -> None:
        """Ends what share() began in that process. Never waits, so that a finalizer may call it wherever it runs."""
        if process == os.getpid():
            self._dropped.append(name)
            self._drain()

    def is_free(self, name: str) -> bool:
        """Whether nobody, in no process, holds the name; False where that cannot be found out."""
        if not self.take(name):
            return False
        self.give_back(name)
        return True

    @property
    def num_held(self) -> int:
        """How many names this process holds."""
        return len(self._held)

    def close(self) -> None:
        """Close the lock files where nothing is held; they are opened again when needed."""
        with self._locked():
            if not self._held and self._command != fcntl.F_SETLK:  # closing would end another table's locks as well
                _close_all(self._files)

    def renew(self) -> None:
        """Let go of what is held in lock files that were deleted: nobody else can see it."""
        with self._locked():
            for number in list(self._files):
                self._leave_deleted(number)
            for name, mapped in list(self._maps.items()):
                if mapped.inode != self._inode(name):
                    del self._held[name], self._maps[name]

    def abandon(self) -> None:
        """Let go of what was inherited in a forked child: an open file of the parent's would keep its locks alive."""
        _close_all(self._files)
        self._maps.clear()
        self._reset()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            yield
        self._drain()

    def _drain(self) -> None:
        # The mutex may be held right here, further down the stack: its holder drains after itself.
        while self._dropped and self._mutex.acquire(blocking=False):
            try:
                while self._dropped:
                    self._release_one(self._dropped.popleft())
            finally:
                self._mutex.release()

    def _release_one(self, name: str) -> None:
        count = self._held.get(name, 0)
        if count > 1:
            self._held[name] = count - 1
        elif count == 1:
            del self._held[name]
            self._release(name)

    def _acquire(self, name: str, kind: int) -> bool:
        """Whether the name, which was not held, is locked now."""
        number, place = _place(name)
        may_map = kind == fcntl.F_RDLCK and self._command != fcntl.F_SETLK and _MAPS_KEEP_LOCKS
        if may_map and self._has_too_many(len(self._files) + (number not in self._files)):
            return self._share_by_map(name)
        if not self._lock(self._file(number), kind, place):
            self._close_spare(number)
            return False
        self._users[number] += 1
        return True

    def _share_by_map(self, name: str) -> bool:
        # Opened anew, since a map keeps all locks of the file that it is of.
        number, place = _place(name)
        descriptor = self._opened(self._path(number))
        if descriptor is None:
            self._maps[name] = _Mapped(None, None)
            return True
        try:
            is_locked = self._lock(descriptor, fcntl.F_RDLCK, place)
            if is_locked and self._command != fcntl.F_SETLK:
                self._maps[name] = _Mapped(os.fstat(descriptor).st_ino, kept_open(descriptor))
        finally:
            os.close(descriptor)
        # Closing it has ended a lock that belongs to the process, as some systems have them.
        return is_locked if self._command != fcntl.F_SETLK else self._acquire(name, fcntl.F_RDLCK)

    def _inode(self, name: str) -> int | None:
        """The number of the file in the folder that the name is locked in."""
        try:
            return os.stat(self._path(_place(name)[0])).st_ino
        except OSError:
            return None

    def _release(self, name: str) -> None:
        """Ends what _acquire() began."""
        if self._maps.pop(name, None) is None:
            number, place = _place(name)
            self._lock(self._file(number), fcntl.F_UNLCK, place)
            self._users[number] -= 1
            self._close_spare(number)

    def _has_too_many(self, num_files: int) -> bool:
        return num_files > descriptors_together() // len(_tables)

    def _close_spare(self, number: int) -> None:
        """Close a lock file that nothing is locked by, where more are open than may be."""
        if not self._users[number] and self._command != fcntl.F_SETLK and self._has_too_many(len(self._files)):
            descriptor = self._files.pop(number, None)
            if descriptor is not None:
                os.close(descriptor)

    def _lock(self, descriptor: int | None, kind: int, place: int) -> bool:
        if descriptor is None:
            return kind != fcntl.F_WRLCK
        try:
            fcntl.fcntl(descriptor, self._command, _request(kind, place))
        except OSError as error:
            if error.errno in _CONFLICT:
                return False
            if error.errno == errno.EBADF and kind == fcntl.F_WRLCK:  # the file is open for reading only
                return False
            if error.errno == errno.EINVAL and self._command != fcntl.F_SETLK:
                # A sandbox whose kernel lacks them has the older ones, of processes. Two tables in one process do not
                # see one another then, which costs a fetch or a file too many, and nothing else.
                self._command = fcntl.F_SETLK
                return self._lock(descriptor, kind, place)
            if error.errno in _NO_LOCKS:
                raise StoreError(
                    f"{self.folder}: this file system has no locks ({error.strerror}), and processes that share a "
                    "cache need them; put the cache on a local disk"
                ) from error
            raise
        return True

    def _leave_deleted(self, number: int) -> None:
        """Close a lock file that is no longer in the folder: what is held there, nobody else can see."""
        descriptor = self._files.get(number)
        if descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._path(number)), os.fstat(descriptor)):
                return
        os.close(descriptor)
        del self._files[number]
        self._users[number] = 0
        for name in self._held.keys() - self._maps.keys():
            if _place(name)[0] == number:
                del self._held[name]

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, f"{number:x}")

    def _file(self, number: int) -> int | None:
        if number not in self._files:
            self._files[number] = self._opened(self._path(number))
        return self._files[number]

    def _opened(self, path: str) -> int | None:
        for _ in range(2):
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                try:
                    make_folders(os.fspath(self.folder), fsync=False)
                except OSError as error:
                    if error.errno not in _READ_ONLY:
                        raise
                    break
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
                break
        self.read_only = True
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None


def _close_all(files: dict[int, int | None]) -> None:
    for descriptor in files.values():
        if descriptor is not None:
            os.close(descriptor)
    files.clear()


def _request(kind: int, place: int) -> bytes:
    """The system's struct flock for one byte."""
    if sys.platform == "darwin":
        return struct.pack("qqihh", place, 1, 0, kind, os.SEEK_SET)
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, place, 1, 0)


def _place(name: str) -> tuple[int, int]:
    found = int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "little")
    return found % _NUM_FILES, _FIRST_BYTE + (found >> 4) % _PLACES


def _abandon_inherited() -> None:
    for table in list(_tables):
        table.abandon()


os.register_at_fork(after_in_child=_abandon_inherited)
