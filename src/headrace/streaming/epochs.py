"""Which epoch an iteration is of: known to a dataset, to its copies in worker processes, and to nobody else.

A DataLoader with workers never calls its dataset in the main process: every worker iterates a copy of its own, and new
workers come each epoch. What they must agree on lies in a small file without a name, which forked and spawned workers
inherit as an open file; with the last of them it is gone. It has a line for each process that iterates, by itself or by
workers: the ranks of a job may all come from one parent, and each counts its own epochs.

    next      where its next iteration begins                     set by load_state_dict()
    current   where the one that was begun last began, and its token
    join()    the first worker with a new token begins the next iteration; those with the same token take part in it

The token of an iteration is the seed that a DataLoader draws for it, the same for all its workers, and how often this
process has begun. So no worker has to wait for another.
"""

import contextlib
import fcntl
import multiprocessing.context
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import torch.utils.data

from headrace.planning import Cursor

__all__ = ["EpochRecord", "iterating_process"]

_LINE = struct.Struct("<7q")
_NONE = (0, 0)  # the token of no iteration: that of one says how often its process has begun
_WHOLE = 1 << 30  # bytes that are locked: all there will ever be


class _Line(NamedTuple):
    """What the file says of one process."""

    process: int
    next: Cursor = Cursor()
    current: Cursor = Cursor()
    token: tuple[int, int] = _NONE

    def packed(self) -> bytes:
        cursors = (self.next.epoch, self.next.position, self.current.epoch, self.current.position)
        return _LINE.pack(self.process, *cursors, *self.token)

    @classmethod
    def unpacked(cls, raw: bytes) -> "_Line":
        process, next_epoch, next_position, epoch, position, *token = _LINE.unpack(raw)
        return cls(process, Cursor(next_epoch, next_position), Cursor(epoch, position), (token[0], token[1]))


class EpochRecord:
    """Shared by a dataset and its copies in the processes below this one. Pickled elsewhere it is a copy of its own."""

    def __init__(self) -> None:
        self._open(_Line(os.getpid()))

    def _open(self, line: _Line) -> None:
        self._file = _unnamed_file()
        self._lock = (os.getpid(), threading.Lock())
        os.pwrite(self._file, line.packed(), 0)

    def __getstate__(self) -> dict[str, Any]:
        if multiprocessing.context.get_spawning_popen() is not None:
            return {"file": DupFd(self._file)}
        return {"line": self._line()[0]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            self._file = state["file"].detach()
            self._lock = (os.getpid(), threading.Lock())
        else:
            self._open(state["line"]._replace(process=os.getpid()))

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            with contextlib.suppress(OSError):
                os.close(self._file)

    @property
    def next(self) -> Cursor:
        """Where the next iteration begins."""
        return self._line()[0].next

    @property
    def current(self) -> Cursor:
        """Where the iteration that was begun last began."""
        return self._line()[0].current

    def begin_at(self, cursor: Cursor) -> None:
        """Let the next iteration begin here, and be the one that is current until then."""
        with self._locked():
            line, place = self._line()
            self._write(line._replace(next=cursor, current=cursor, token=_NONE), place)

    def continue_at(self, cursor: Cursor) -> None:
        """Let the next iteration begin here, while the current one goes on."""
        with self._locked():
            line, place = self._line()
            self._write(line._replace(next=cursor), place)

    def turn_to(self, epoch: int) -> None:
        """Let the next iteration be of this epoch, but for a place in another one that waits to be begun with."""
        with self._locked():
            line, place = self._line()
            waits = line.token == _NONE and line.current == line.next != Cursor()
            if line.next.epoch != epoch and not waits:
                self._write(line._replace(next=Cursor(epoch)), place)

    def begun_at(self, cursor: Cursor) -> None:
        """An iteration that needs no token has begun here."""
        with self._locked():
            line, place = self._line()
            self._write(_Line(line.process, Cursor(cursor.epoch + 1), cursor), place)

    def join(self, token: tuple[int, int]) -> Cursor:
        """Where the iteration with this token begins; a new token begins the next one."""
        with self._locked():
            line, place = self._line()
            if line.token != token:
                line = _Line(line.process, Cursor(line.next.epoch + 1), line.next, token)
                self._write(line, place)
            return line.current

    def _line(self) -> tuple[_Line, int]:
        """The line of the process that iterates, and where it is, or will be."""
        process = iterating_process()
        raw = os.pread(self._file, os.fstat(self._file).st_size, 0)
        for place in range(0, len(raw), _LINE.size):
            line = _Line.unpacked(raw[place : place + _LINE.size])
            if line.process == process:
                return line, place
        # It came from the one that made the dataset, and goes on where that one is.
        return _Line(process, _Line.unpacked(raw[: _LINE.size]).next), len(raw)

    def _write(self, line: _Line, place: int) -> None:
        os.pwrite(self._file, line.packed(), place)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the threads of this process, and among the processes that have the file."""
        process, lock = self._lock
        if process != os.getpid():  # one that another thread held when this process was forked stays so for ever
            self._lock = (os.getpid(), lock := threading.Lock())
        with lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX, _WHOLE)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, _WHOLE)


def iterating_process() -> int:
    """The process that a loader runs in: this one, or the parent of this one if this is a worker of a DataLoader."""
    if torch.utils.data.get_worker_info() is None:
        return os.getpid()
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _unnamed_file() -> int:
    """A new empty file without a name: in memory where the system has such, else in the folder for such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-epochs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
