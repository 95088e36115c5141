# ruff: noqa: D102 - Store documents the methods
"""A store with rules a request: it delays, cuts, damages, forgets or refuses what the rules say, and logs every call.

    store = FaultStore(MemoryStore(), [
        Rule(Flip(7), operation="get", path="*.stream", times=1),    # the first read of a stream is damaged
        Rule(Refuse(StoreError("disk full")), operation="put", nth=3),  # every put from the third on
        Rule(Delay(0.2)),                                            # everything is slow
    ])
    ...
    assert store.calls[0] == Call("get", "shard_0000.stream", 4096)

| action | reads (get, get_ranges, view, pieces) | writes (put, put_if_absent, upload, write) | everything else |
| --- | --- | --- | --- |
| `Delay(seconds)` | waits first | waits first | waits first |
| `Cut(num_bytes)` | the object seems to end there | keeps only that many bytes, says nothing | - |
| `Flip(offset)` | inverts that byte of the object | inverts it in what is kept | - |
| `Forget()` | - | acknowledges, keeps nothing | acknowledges, does nothing |
| `Refuse(error)` | raises it | raises it, keeps nothing | raises it |
| `Status(code, retry_after_s)` | raises what a store makes of that HTTP status | the same, keeps nothing | the same |
| `Stall(seconds)` | waits, then the time-out's error | the same, keeps nothing | the same |
| `Break(num_bytes)` | the connection breaks there, which raises | the same, keeps nothing | breaks at once |
| `Expire()` | raises what an expired token does | the same, keeps nothing | the same |
| `Run(function)` | calls function(call) first | calls it first | calls it first |

A write or delete that meets `Status` or `Break` with performed=True is done, and only its answer is lost.

Operations are the names of Store's methods, and `write`, `sync` and `close_writer` for what open_writer() gave.
get_ranges_of is an operation of its own, and a read as get_ranges is; prefetch is logged once a path, of_dataset never.
A `-` means no effect: queries (head, stored, list, folders) always answer, and so does open_writer unless it is
refused.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import AccessDeniedError, TemporaryStoreError, TruncatedReadError
from headrace.store import Buffer, ByteWriter, FileInfo, Store, Stored
from headrace.store.store import PIECE_BYTES, DatasetFile, byte_view
from headrace.testing.faults import (
    Action,
    Break,
    Call,
    Cut,
    Delay,
    Expire,
    Flip,
    Forget,
    Refuse,
    Rule,
    Run,
    Stall,
    Status,
    status_error,
)

__all__ = [
    "Action",
    "Break",
    "Call",
    "Cut",
    "Delay",
    "Expire",
    "FaultStore",
    "Flip",
    "Forget",
    "Refuse",
    "Rule",
    "Run",
    "Stall",
    "Status",
]


READS = ("get", "get_ranges", "get_ranges_of", "view", "pieces")
Views = list[memoryview]  # where `list` is a method


class FaultStore(Store):
    """Another store behind rules; without rules it behaves as that store does, and only logs.

    Several rules may act on one request, in their order. `calls` is the log; rules may be appended to `rules` at any
    time. Pickles with the inner store and the rules; counts and log start anew. Safe to share among threads.
    """

    def __init__(self, store: Store, rules: Iterable[Rule] = ()) -> None:
        self.store = store
        self.rules = list(rules)
        self.location = store.location
        self.capabilities = store.capabilities
        self.calls: list[Call] = []
        self._seen: dict[int, tuple[Rule, int]] = {}  # by id: the rule, so that no other gets its id, and its turns
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {"store": self.store, "rules": list(self.rules)}

    def __setstate__(self, state: dict[str, object]) -> None:
        FaultStore.__init__(self, **state)  # type: ignore[arg-type]

    def count(self, operation: str | None = None, path: str = "*") -> int:
        """How many logged calls match; as in a Rule, None means any operation."""
        return sum(operation in (None, call.operation) and fnmatchcase(call.path, path) for call in list(self.calls))

    def head(self, path: str) -> FileInfo:
        self._begin("head", path)
        return self.store.head(path)

    def stored(self, path: str) -> Stored:
        self._begin("stored", path)
        return self.store.stored(path)

    def get(self, path: str) -> bytes:
        actions = self._begin("get", path)
        data = self.store.get(path)
        self._moved("get", path, len(data))
        self._break_past(path, len(data), actions)
        return bytes(_damaged(data, actions)) if actions else data

    def view(self, path: str) -> memoryview:
        actions = self._begin("view", path)
        data = self.store.view(path)
        self._moved("view", path, len(data))
        self._break_past(path, len(data), actions)
        return _damaged(data, actions)

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Views:
        actions = self._begin("get_ranges", path)
        views = self.store.get_ranges(path, starts, lengths)
        self._moved("get_ranges", path, sum(map(len, views)))
        return self._damaged_ranges(path, starts, views, actions)

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Views:
        actions = self._begin("get_ranges_of", found.path)
        views = self.store.get_ranges_of(found, starts, lengths)
        self._moved("get_ranges_of", found.path, sum(map(len, views)))
        return self._damaged_ranges(found.path, starts, views, actions)

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        actions = self._begin("pieces", path)
        done, stop = 0, min((action.num_bytes for action in actions if isinstance(action, Cut)), default=None)
        for piece in self.store.pieces(path, piece_bytes):
            kept = piece if stop is None else piece[: max(0, stop - done)]
            broken = min(
                (action.num_bytes - done for action in actions if isinstance(action, Break)), default=len(kept)
            )
            for action in actions:
                if isinstance(action, Flip):
                    kept = _flipped(kept, action.offset - done)
            if broken < len(kept):
                yield from (kept[:broken],) if broken > 0 else ()
                self._break_past(path, done + len(kept), actions)
            self._moved("pieces", path, done + len(piece), done)
            done += len(piece)
            if len(kept):
                yield kept

    def put(self, path: str, data: Buffer) -> None:
        actions = self._begin("put", path, byte_view(data).nbytes)
        if not _forgets(actions):
            self.store.put(path, _damaged(byte_view(data), actions))
        self._lose_answer(path, actions)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        actions = self._begin("put_if_absent", path, byte_view(data).nbytes)
        if not _forgets(actions):
            self.store.put_if_absent(path, _damaged(byte_view(data), actions))
        self._lose_answer(path, actions)

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        actions = self._begin("upload", path, Path(file).stat().st_size)
        if _forgets(actions):
            return
        if any(isinstance(action, Cut | Flip) for action in actions):
            damaged = _damaged(Path(file).read_bytes(), actions)
            if check is not None:
                check()
            self.store.put(path, damaged)
        else:
            self.store.upload(path, file, check=check)
        self._lose_answer(path, actions)

    def of_dataset(self, fingerprint: str, file: Callable[[str], DatasetFile]) -> Store:
        """What the inner store gives, behind the same rules and with the same log."""
        bound = self.store.of_dataset(fingerprint, file)
        if bound is self.store:
            return self
        faults = FaultStore(bound)
        faults.rules, faults.calls, faults._seen, faults._lock = self.rules, self.calls, self._seen, self._lock
        return faults

    def prefetch(self, paths: Sequence[str], budget_bytes: int) -> None:
        for path in paths:
            self._begin("prefetch", path)
        self.store.prefetch(paths, budget_bytes)

    def delete(self, path: str) -> None:
        actions = self._begin("delete", path)
        if not _forgets(actions):
            self.store.delete(path)
        self._lose_answer(path, actions)

    def folders(self, folder: str = "") -> list[str]:
        self._begin("folders", folder)
        return self.store.folders(folder)

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        self._begin("list", folder)
        return self.store.list(folder, recursive=recursive)

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        self._begin("open_writer", path)
        writer = self.store.open_writer(path, append=append)
        return _FaultWriter(self, path, writer, self.store.head(path).size_bytes if append else 0)

    def rename(self, source: str, target: str) -> None:
        if not _forgets(self._begin("rename", source, 0, target)):
            self.store.rename(source, target)

    def make_folder(self, folder: str) -> None:
        if not _forgets(self._begin("make_folder", folder)):
            self.store.make_folder(folder)

    def remove_folder(self, folder: str) -> None:
        if not _forgets(self._begin("remove_folder", folder)):
            self.store.remove_folder(folder)

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:
        if not _forgets(self._begin("remove_orphans", folder)):
            self.store.remove_orphans(folder, of=of)

    @property
    def max_views(self) -> int:
        """As many as the inner store allows."""
        return self.store.max_views

    def close(self) -> None:
        self.store.close()

    def _begin(self, operation: str, path: str, num_bytes: int = 0, *more_paths: str) -> "tuple[Action, ...]":
        """Log the call and do what comes before it; returns the actions that are still to be done."""
        call = Call(operation, path, num_bytes)
        with self._lock:
            self.calls.append(call)
            actions = tuple(rule.action for rule in self.rules if self._is_due(rule, operation, path, *more_paths))
        for action in actions:
            match action:
                case Delay(seconds):
                    threading.Event().wait(seconds)
                case Run(function):
                    function(call)
                case Refuse(error):
                    raise error
                case Status(performed=False):
                    raise status_error(action, self._named(path))
                case Stall(seconds):
                    threading.Event().wait(seconds)
                    raise TemporaryStoreError(f"{self._named(path)}: nothing came for {seconds} s")
                case Expire(renewable):
                    kind = TemporaryStoreError if renewable else AccessDeniedError
                    raise kind(f"{self._named(path)}: the token has expired")
                case Break(num_bytes, performed=False) if operation not in READS or num_bytes < 0:
                    raise _broken(self._named(path), num_bytes)
        return actions

    def _named(self, path: str) -> str:
        return f"{self.location.rstrip('/')}/{path}"

    def _break_past(self, path: str, stop: int, actions: "tuple[Action, ...]") -> None:
        """Raise where a read up to stop meets a break before it."""
        for action in actions:
            if isinstance(action, Break) and action.num_bytes < stop:
                raise _broken(self._named(path), action.num_bytes)

    def _lose_answer(self, path: str, actions: "tuple[Action, ...]") -> None:
        """Raise after the deed where only the answer is lost."""
        for action in actions:
            match action:
                case Status(performed=True):
                    raise status_error(action, self._named(path))
                case Break(performed=True):
                    raise _broken(self._named(path), action.num_bytes)

    def _damaged_ranges(
        self, path: str, starts: NDArray[np.int64], views: Views, actions: "tuple[Action, ...]"
    ) -> Views:
        for action in actions:
            ranges = [(int(start), view) for start, view in zip(starts, views, strict=True)]
            if isinstance(action, Cut):
                _refuse_past(self._named(path), ranges, action.num_bytes)
            elif isinstance(action, Flip):
                views = [
                    _flipped(view, action.offset - start) if action.offset >= start else view for start, view in ranges
                ]
            self._break_past(path, max((start + len(view) for start, view in ranges), default=0), (action,))
        return views

    def _is_due(self, rule: Rule, operation: str, *paths: str) -> bool:
        if not rule.matches(operation, *paths):
            return False
        turn = self._seen.get(id(rule), (rule, 0))[1] + 1
        self._seen[id(rule)] = rule, turn
        return turn >= rule.nth and (rule.times is None or turn < rule.nth + rule.times)

    def _moved(self, operation: str, path: str, num_bytes: int, known: int = 0) -> None:
        """Write into the log how much a read gave, once that is known; known is what the log says already."""
        with self._lock:
            for index in range(len(self.calls) - 1, -1, -1):
                if self.calls[index] == Call(operation, path, known):
                    self.calls[index] = Call(operation, path, num_bytes)
                    return


class _FaultWriter:
    """A writer whose offsets, for Cut and Flip, are the object's."""

    def __init__(self, faults: FaultStore, path: str, writer: ByteWriter, written: int) -> None:
        self._faults, self._path, self._writer = faults, path, writer
        self._written = written

    def write(self, data: Buffer) -> None:
        whole = byte_view(data)
        actions = self._faults._begin("write", self._path, whole.nbytes)
        start, self._written = self._written, self._written + whole.nbytes
        kept = whole
        for action in actions:
            if isinstance(action, Cut):
                kept = kept[: max(0, action.num_bytes - start)]
            elif isinstance(action, Flip) and action.offset >= start:
                kept = _flipped(kept, action.offset - start)
        if not _forgets(actions):
            self._writer.write(kept)

    def sync(self) -> None:
        if not _forgets(self._faults._begin("sync", self._path)):
            self._writer.sync()

    def close(self) -> None:
        self._faults._begin("close_writer", self._path)
        self._writer.close()


def _broken(where: str, num_bytes: int) -> TemporaryStoreError:
    return TemporaryStoreError(f"{where}: the connection broke after {num_bytes} bytes")


def _forgets(actions: tuple[Action, ...]) -> bool:
    return any(isinstance(action, Forget) for action in actions)


def _damaged(data: Buffer, actions: tuple[Action, ...]) -> memoryview:
    view = memoryview(data)
    for action in actions:
        if isinstance(action, Cut):
            view = view[: max(0, action.num_bytes)]
        elif isinstance(action, Flip):
            view = _flipped(view, action.offset + len(view) if action.offset < 0 else action.offset)
    return view


def _flipped(view: memoryview, offset: int) -> memoryview:
    """A copy in which the byte at offset is inverted; the view itself where it does not reach that far."""
    if not 0 <= offset < len(view):
        return view
    copied = bytearray(view)
    copied[offset] ^= 0xFF
    return memoryview(copied).toreadonly()


def _refuse_past(where: str, ranges: list[tuple[int, memoryview]], size: int) -> None:
    for start, view in ranges:
        if start + len(view) > size:
            raise TruncatedReadError(where, start, len(view), size)
