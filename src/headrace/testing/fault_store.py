# ruff: noqa: D102 - Store documents the methods
"""A store with rules a request: it delays, cuts, damages, forgets or refuses what the rules say, and logs every call.

    store = FaultStore(MemoryStore(), [
        Rule(Flip(7), operation="get", path="*.stream", times=1),    # the first read of a stream is damaged
        Rule(Refuse(StoreError("disk full")), operation="put", nth=3),  # every put from the third on
        Rule(Delay(0.2)),                                            # everything is slow
    ])
    ...
    assert store.calls[0] == Call("get", "shard_0000.stream", 4096)

| action | reads (get, get_ranges, view) | writes (put, put_if_absent, write) | everything else |
| --- | --- | --- | --- |
| `Delay(seconds)` | waits first | waits first | waits first |
| `Cut(num_bytes)` | the object seems to end there | keeps only that many bytes, says nothing | - |
| `Flip(offset)` | inverts that byte of the object | inverts it in what is kept | - |
| `Forget()` | - | acknowledges, keeps nothing | acknowledges, does nothing |
| `Refuse(error)` | raises it | raises it, keeps nothing | raises it |
| `Run(function)` | calls function(call) first | calls it first | calls it first |

Operations are the names of Store's methods, and `write`, `sync` and `close_writer` for what open_writer() gave. A `-`
means no effect: queries (head, list, folders) always answer, and so does open_writer unless it is refused.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import TruncatedReadError
from headrace.store import Buffer, ByteWriter, FileInfo, Store
from headrace.store.store import byte_view

__all__ = ["Action", "Call", "Cut", "Delay", "FaultStore", "Flip", "Forget", "Refuse", "Rule", "Run"]


class Call(NamedTuple):
    """One request, as the caller made it."""

    operation: str
    path: str  # of a rename: the source
    num_bytes: int  # asked for or given; 0 where the operation moves none, or before a read knows


@dataclass(frozen=True)
class Delay:
    """Wait before the request goes on."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """Only the first num_bytes bytes of the object exist."""

    num_bytes: int


@dataclass(frozen=True)
class Flip:
    """The byte at offset of the object has all its bits inverted; negative counts from the end (get, view, put)."""

    offset: int


@dataclass(frozen=True)
class Forget:
    """Say that it was done, and do nothing."""


@dataclass(frozen=True)
class Refuse:
    """Raise error instead."""

    error: BaseException


@dataclass(frozen=True)
class Run:
    """Call function first: to kill the process here, to change something behind the caller's back, to raise."""

    function: Callable[[Call], object]


Action = Delay | Cut | Flip | Forget | Refuse | Run


@dataclass(frozen=True)
class Rule:
    """What happens to requests that match.

    operation None means any; path is a glob in which `*` matches `/` too, and of a rename either name may match. The
    rule acts from the nth matching request on (the first is 1), times times (None: for ever).
    """

    action: Action
    operation: str | None = None
    path: str = "*"
    nth: int = 1
    times: int | None = None

    def matches(self, operation: str, *paths: str) -> bool:
        """Whether the rule speaks of this request, its turn aside."""
        return self.operation in (None, operation) and any(fnmatchcase(path, self.path) for path in paths)


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
        self._seen: dict[int, int] = {}  # id of a rule -> how many requests it matched
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

    def get(self, path: str) -> bytes:
        actions = self._begin("get", path)
        data = self.store.get(path)
        self._moved("get", path, len(data))
        return bytes(_damaged(data, actions)) if actions else data

    def view(self, path: str) -> memoryview:
        actions = self._begin("view", path)
        data = self.store.view(path)
        self._moved("view", path, len(data))
        return _damaged(data, actions)

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        actions = self._begin("get_ranges", path)
        views = self.store.get_ranges(path, starts, lengths)
        self._moved("get_ranges", path, sum(map(len, views)))
        for action in actions:
            ranges = [(int(start), view) for start, view in zip(starts, views, strict=True)]
            if isinstance(action, Cut):
                _refuse_past(f"{self.location}/{path}", ranges, action.num_bytes)
            elif isinstance(action, Flip):
                views = [
                    _flipped(view, action.offset - start) if action.offset >= start else view for start, view in ranges
                ]
        return views

    def put(self, path: str, data: Buffer) -> None:
        actions = self._begin("put", path, byte_view(data).nbytes)
        if not _forgets(actions):
            self.store.put(path, _damaged(byte_view(data), actions))

    def put_if_absent(self, path: str, data: Buffer) -> None:
        actions = self._begin("put_if_absent", path, byte_view(data).nbytes)
        if not _forgets(actions):
            self.store.put_if_absent(path, _damaged(byte_view(data), actions))

    def delete(self, path: str) -> None:
        if not _forgets(self._begin("delete", path)):
            self.store.delete(path)

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
        return actions

    def _is_due(self, rule: Rule, operation: str, *paths: str) -> bool:
        if not rule.matches(operation, *paths):
            return False
        turn = self._seen[id(rule)] = self._seen.get(id(rule), 0) + 1
        return turn >= rule.nth and (rule.times is None or turn < rule.nth + rule.times)

    def _moved(self, operation: str, path: str, num_bytes: int) -> None:
        """Write into the log how much a read gave, once that is known."""
        with self._lock:
            for index in range(len(self.calls) - 1, -1, -1):
                if self.calls[index] == Call(operation, path, 0):
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
