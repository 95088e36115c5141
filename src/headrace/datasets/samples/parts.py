"""The parts below a root: datasets that many writers wrote side by side, each in a folder of its own.

One listing tells all: which folders have an index, which hold shards without one and so are unfinished, and how large
every file is. Folders and files whose names begin with a dot are none of it. The root itself (`""`) is a part where
shards lie directly in it.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Never

from headrace.datasets.samples.index import INDEX, ShardEntry
from headrace.datasets.samples.shard_index import read_index
from headrace.datasets.samples.withdrawal import PRIVATE, is_shard_file
from headrace.errors import StoreError, UnfinishedDatasetError
from headrace.store import Store

__all__ = ["Survey", "below", "part_order", "read_indexes", "survey"]

_DIGITS = re.compile("([0-9]+)")
_READERS = 16  # indexes read at a time: hides the latency of a remote store, and is nothing for a local one
_DEEPEST_EMPTY = 8  # levels without any file; links among these could go on for ever
_PRIVATE_NAME, _, _PRIVATE_REST = PRIVATE.partition("/")


@dataclass(frozen=True)
class Survey:
    """What a root holds, by one listing."""

    location: str
    sizes: dict[str, int]  # path -> bytes, of every file that is not hidden
    indexed: list[str]  # folders with an index, in the order of part_order
    shards: dict[str, str]  # folder -> one of the shard files in it
    begun: set[str]  # folders in which a writer has, or left, what it needs while it writes

    def named(self, path: str) -> str:
        """Where path is, for messages; `""` is the root."""
        return below(self.location, path)

    def has_index(self, folder: str) -> bool:
        """Whether an index lies in the folder."""
        return below(folder, INDEX) in self.sizes

    def refuse_unfinished(self) -> None:
        """UnfinishedDatasetError where a folder holds shards, or what a writer left, and no index."""
        for folder in sorted(self.shards.keys() | self.begun, key=part_order):
            if not self.has_index(folder):
                self.refuse(folder)

    def refuse(self, folder: str) -> Never:
        """UnfinishedDatasetError: the folder has no index, or one that lists none of its shards."""
        shard = self.shards.get(folder)
        found = "a writer began there" if shard is None else f"it holds {shard}"
        problem = f", which its {INDEX} does not list" if self.has_index(folder) else f", but no {INDEX}"
        advice = "finish this part, remove it, or name in index_file_urls only what is to be merged"
        raise UnfinishedDatasetError(self.named(folder), found + problem, advice)


def survey(store: Store) -> Survey:
    """What the store holds."""
    found = Survey(store.location, {}, [], {}, set())
    known = {""}  # folders with a file somewhere below
    for path, size_bytes, *_ in store.list():
        if path.startswith(".") or "/." in path:
            folder = _note_hidden(path, found.begun)
        else:
            found.sizes[path] = size_bytes
            folder, _, name = path.rpartition("/")
            if name == INDEX:
                found.indexed.append(folder)
            elif folder not in found.shards and is_shard_file(name):
                found.shards[folder] = name
        while folder not in known:
            known.add(folder)
            folder = folder.rpartition("/")[0]
    found.indexed.sort(key=part_order)
    if store.capabilities.rename:  # folders can be empty
        _note_empty(store, found, known)
    return found


def part_order(folder: str) -> tuple[tuple[object, ...], ...]:
    """A key that sorts folders name by name, and numbers in names by value: part-2, part-2/x, part-10."""
    # The name itself comes last, so that 01 and 1 are in a certain order, too.
    names = folder.split("/") if folder else []
    return tuple(
        (*(int(text) if at % 2 else text for at, text in enumerate(_DIGITS.split(name))), name) for name in names
    )


def below(folder: str, path: str) -> str:
    """path below folder; either may be `""`."""
    if not folder or not path:
        return folder or path
    return f"{folder}{path}" if folder.endswith("/") else f"{folder}/{path}"


def read_indexes(store: Store, folders: Iterable[str], timeout_s: float) -> Iterator[tuple[str, list[ShardEntry]]]:
    """(folder, what its index lists), in the order of folders; several are read ahead.

    StoreError for one that does not come within timeout_s, ManifestError with its path for a damaged one.
    """
    pool = ThreadPoolExecutor(_READERS, "index")
    ahead: deque[tuple[str, Future[bytes]]] = deque()
    try:
        for folder in folders:
            ahead.append((folder, pool.submit(store.get, below(folder, INDEX))))
            if len(ahead) >= 4 * _READERS:
                yield _entries(store, *ahead.popleft(), timeout_s)
        while ahead:
            yield _entries(store, *ahead.popleft(), timeout_s)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a read that hangs is not waited for


def _entries(store: Store, folder: str, reading: Future[bytes], timeout_s: float) -> tuple[str, list[ShardEntry]]:
    where = below(store.location, below(folder, INDEX))
    try:
        raw = reading.result(timeout_s)
    except TimeoutError:
        if reading.done():
            raise
        raise StoreError(f"{where} was not read within {timeout_s} s; pass a longer download_timeout") from None
    return folder, read_index(raw, where)


def _note_hidden(path: str, begun: set[str]) -> str:
    """Note what a writer left; returns the folder that the hidden one lies in."""
    names = path.split("/")
    first = next(at for at, name in enumerate(names) if name.startswith("."))
    folder = "/".join(names[:first])
    if names[first : first + 2] == [_PRIVATE_NAME, _PRIVATE_REST]:
        begun.add(folder)
    return folder


def _note_empty(store: Store, found: Survey, known: set[str]) -> None:
    """Note the folders in which a writer failed before it had stored anything: no listing shows them."""
    for folder in known - found.shards.keys():
        names = store.folders(folder)
        if not found.has_index(folder) and _is_begun(store, folder, names):
            found.begun.add(folder)
        for inner in _visible(folder, names):
            if inner not in known:
                _note_below(store, inner, found.begun, _DEEPEST_EMPTY)


def _note_below(store: Store, folder: str, begun: set[str], depth: int) -> None:
    if store.list(folder):  # a link to a folder above, which the whole listing did not follow
        return
    names = store.folders(folder)
    if _is_begun(store, folder, names):
        begun.add(folder)
    if depth > 1:
        for inner in _visible(folder, names):
            _note_below(store, inner, begun, depth - 1)


def _is_begun(store: Store, folder: str, names: list[str]) -> bool:
    return _PRIVATE_NAME in names and _PRIVATE_REST in store.folders(below(folder, _PRIVATE_NAME))


def _visible(folder: str, names: list[str]) -> list[str]:
    return [below(folder, name) for name in names if not name.startswith(".")]
