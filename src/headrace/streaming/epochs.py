"""Which epoch an iteration is of: known to a dataset, to its copies in worker processes, and to nobody else.

A DataLoader with workers never calls its dataset in the main process: every worker iterates a copy of its own, and new
workers come each epoch. What they must agree on lies in a small file without a name, which forked and spawned workers
inherit as an open file; with the last of them it is gone. It has a line for each process that iterates, by itself or by
workers: the ranks of a job may all come from one parent, and each counts its own epochs.

    next      where its next iteration begins                     set by load_state_dict()
    current   where the one that was begun last began
    recent    the iterations that were begun last: token, where they began, which workers take part
    join()    a worker takes part in the iteration with its token, and begins the next one where there is none, or where
              it is in that one already: then a seed was set again

The token of an iteration is the seed that a DataLoader draws for it, the same for all its workers, and how often this
process has begun. So no worker has to wait for another, and several loaders may be read at the same time.
"""

import contextlib
import fcntl
import json
import multiprocessing.context
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import torch.utils.data

from headrace.planning import Cursor

__all__ = ["EpochRecord", "iterating_process"]

_RECENT = 16  # iterations of a process whose workers may still be starting
_WHOLE = 1 << 30  # bytes that are locked: all there will ever be


class _Iteration(NamedTuple):
    """One that was begun, and the workers that take part in it, as bits."""

    token: tuple[int, int]
    start: Cursor
    workers: int


class _Line(NamedTuple):
    """What the file says of one process."""

    process: int
    next: Cursor = Cursor()
    current: Cursor = Cursor()
    told: bool = False  # where to begin, and nothing has begun there yet
    recent: tuple[_Iteration, ...] = ()

    def packed(self) -> list[Any]:
        recent = [[*token, start.epoch, start.position, workers] for token, start, workers in self.recent]
        cursors = [self.next.epoch, self.next.position, self.current.epoch, self.current.position]
        return [self.process, *cursors, self.told, recent]

    @classmethod
    def unpacked(cls, saved: Sequence[Any]) -> "_Line":
        process, next_epoch, next_position, epoch, position, told, recent = saved
        begun = tuple(_Iteration((seed, count), Cursor(*start), workers) for seed, count, *start, workers in recent)
        return cls(process, Cursor(next_epoch, next_position), Cursor(epoch, position), told, begun)

    def joined(self, token: tuple[int, int], worker: int) -> tuple["_Line", Cursor]:
        """The line once this worker takes part in the iteration with the token, and where that began."""
        bit = 1 << worker
        for at in reversed(range(len(self.recent))):
            begun = self.recent[at]
            if begun.token == token and not begun.workers & bit:
                taken = begun._replace(workers=begun.workers | bit)
                return self._replace(recent=(*self.recent[:at], taken, *self.recent[at + 1 :])), begun.start
        recent = (*self.recent, _Iteration(token, self.next, bit))[-_RECENT:]
        return _Line(self.process, Cursor(self.next.epoch + 1), self.next, recent=recent), self.next


class EpochRecord:
    """Shared by a dataset and its copies in the processes below this one. Pickled elsewhere it is a copy of its own."""

    def __init__(self) -> None:
        self._open(_Line(os.getpid()))

    def _open(self, line: _Line) -> None:
        self._file = _unnamed_file()
        self._lock = (os.getpid(), threading.Lock())
        self._write([line])

    def __getstate__(self) -> dict[str, Any]:
        if multiprocessing.context.get_spawning_popen() is not None:
            return {"file": DupFd(self._file)}
        return {"line": self._line()._replace(recent=())}

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
        return self._line().next

    @property
    def current(self) -> Cursor:
        """Where the iteration that was begun last began."""
        return self._line().current

    def begin_at(self, cursor: Cursor) -> None:
        """Let the next iteration begin here, and be the one that is current until then."""
        with self._changed() as (line, put):
            put(line._replace(next=cursor, current=cursor, told=True))

    def continue_at(self, cursor: Cursor) -> None:
        """Let the next iteration begin here, while the current one goes on."""
        with self._changed() as (line, put):
            put(line._replace(next=cursor))

    def turn_to(self, epoch: int) -> None:
        """Let the next iteration be of this epoch, but for a place in another one that waits to be begun with."""
        with self._changed() as (line, put):
            waits = line.told and line.current == line.next != Cursor()
            if line.next.epoch != epoch and not waits:
                put(line._replace(next=Cursor(epoch)))

    def begun_at(self, cursor: Cursor) -> None:
        """An iteration that needs no token has begun here."""
        with self._changed() as (line, put):
            put(line._replace(next=Cursor(cursor.epoch + 1), current=cursor, told=False))

    def join(self, token: tuple[int, int], worker: int = 0) -> Cursor:
        """Where the iteration with this token begins; one that this worker is not in yet, or else the next one."""
        with self._changed() as (line, put):
            line, start = line.joined(token, worker)
            put(line)
        return start

    def _line(self) -> _Line:
        """The line of the process that iterates."""
        with self._locked():
            return _own(self._lines())

    @contextlib.contextmanager
    def _changed(self) -> Iterator[tuple[_Line, Callable[[_Line], None]]]:
        """That line, and what puts another one in its place."""
        with self._locked():
            lines = self._lines()
            line = _own(lines)
            yield line, lambda new: self._write({**lines, new.process: new}.values())

    def _lines(self) -> dict[int, _Line]:
        text, *_ = os.pread(self._file, os.fstat(self._file).st_size, 0).partition(b"\n")
        return {line.process: line for line in map(_Line.unpacked, json.loads(text))}

    def _write(self, lines: Iterable[_Line]) -> None:
        os.pwrite(self._file, json.dumps([line.packed() for line in lines]).encode() + b"\n", 0)

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


def _own(lines: Mapping[int, _Line]) -> _Line:
    process = iterating_process()
    # One that is new came from the one that made the dataset, and goes on where that one is.
    return lines.get(process) or _Line(process, next(iter(lines.values())).next)


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
