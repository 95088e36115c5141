"""Locks between a host's processes: any number of names, a few open files, and none that outlives its process.

A name is a byte of a lock file: its place is a digest of the name, far behind the file's end. The system's locks on
ranges of open files (`F_OFD_SETLK`) do the rest: shared or exclusive, released when the process ends, however it ends.
A lock file for each name would cost a descriptor for each mapped file, and there may be thousands.

Such a lock belongs to the open file, not to the thread, so a table counts for itself what this process holds. It never
waits: no lock of the system has a time-out, and who waits has to look at more than the lock.
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

from headrace.errors import StoreError
from headrace.store.files import make_folders

__all__ = ["LockTable"]

_NUM_FILES = 16  # the system's list of locks is searched from its beginning, and it is kept a file
_FIRST_BYTE = 1 << 40
_PLACES = 1 << 61
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_CONFLICT = frozenset({errno.EAGAIN, errno.EACCES})
_EXCLUSIVE = -1
_OF_OPEN_FILES = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)

_tables: "weakref.WeakSet[LockTable]" = weakref.WeakSet()


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
        self._reset()
        _tables.add(self)
        weakref.finalize(self, _close_all, self._files).atexit = False

    def _reset(self) -> None:
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._command = _OF_OPEN_FILES
        self._held: dict[str, int] = {}  # name -> how many share it, or _EXCLUSIVE
        self._dropped: deque[str] = deque()  # shared locks that are no longer needed

    def share(self, name: str) -> bool:
        """Whether this process now holds the name with others, once more; False while somebody has it alone."""
        with self._locked():
            count = self._held.get(name, 0)
            if count == _EXCLUSIVE or (count == 0 and not self._lock(name, fcntl.F_RDLCK)):
                return False
            self._held[name] = count + 1
            return True

    def take(self, name: str) -> bool:
        """Whether this process now holds the name alone; False while anybody, this process included, holds it."""
        with self._locked():
            if name in self._held or self.read_only:
                return False
            self._leave_deleted(_place(name)[0])
            if not self._lock(name, fcntl.F_WRLCK):
                return False
            self._held[name] = _EXCLUSIVE
            return True

    def give_back(self, name: str) -> None:
        """Ends what take() began."""
        with self._locked():
            if self._held.pop(name, None) is not None:
                self._lock(name, fcntl.F_UNLCK)

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
        """Let go of everything, and open the lock files anew: those that are open may have been deleted."""
        with self._locked():
            self._held.clear()
            _close_all(self._files)

    def abandon(self) -> None:
        """Let go of what was inherited in a forked child: an open file of the parent's would keep its locks alive."""
        _close_all(self._files)
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
            self._lock(name, fcntl.F_UNLCK)

    def _lock(self, name: str, kind: int) -> bool:
        number, place = _place(name)
        descriptor = self._file(number)
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
                return self._lock(name, kind)
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
        for name in [name for name in self._held if _place(name)[0] == number]:
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
