"""The parts below a root: datasets that many writers wrote side by side, each in a folder of its own.

One listing tells all: which folders have an index, which only have shards and so are unfinished, and how large every
file is. Folders and files whose names begin with a dot are none of it. The root itself is a part (`""`) where shards
lie directly in it.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Never

from headrace.datasets.ledger import PRIVATE
from headrace.datasets.samples.index import INDEX, ShardEntry, read_index
from headrace.errors import StoreError, UnfinishedDatasetError
from headrace.store import Store

__all__ = ["Survey", "below", "part_order", "read_indexes", "survey"]

_SHARD = re.compile(
    r"shard\.[0-9]+\.(?:mds|json|csv|tsv|xsv)(?:\.meta)?(?:\.(?:br|bz2|gz|snappy|zstd))?"
)  # the last name of a path
_DIGITS = re.compile("([0-9]+)")
_READERS = 16  # indexes read at a time: few enough for a laptop, enough to hide the latency of a remote store


@dataclass(frozen=True)
class Survey:
    """What a root holds, by one listing."""

    location: str
    sizes: dict[str, int]  # path -> bytes, of every file that is not hidden
    indexed: list[str]  # folders with an index, in the order of part_order
    shards: dict[str, str]  # folder -> a shard file in it
    begun: set[str]  # folders in which a writer keeps its private folder

    def named(self, path: str) -> str:
        """The path with the root's location before it; `""` is the root."""
        return below(self.location, path)

    def refuse_unfinished(self) -> None:
        """UnfinishedDatasetError where a folder holds shards, or a writer's private folder, and no index."""
        for folder in sorted(self.shards.keys() | self.begun, key=part_order):
            if below(folder, INDEX) not in self.sizes:
                self.refuse(folder)

    def refuse(self, folder: str) -> Never:
        """UnfinishedDatasetError: the folder's index is not there, or does not list the shards beside it."""
        there = below(folder, INDEX) in self.sizes
        shard = f" the shard {self.shards[folder]}" if folder in self.shards else " what a writer left there"
        raise UnfinishedDatasetError(
            self.named(folder),
            f"its {INDEX} does not list{shard}"
            if there
            else f"there is{shard}, but no {INDEX}".replace(" there,", ","),
            "finish or remove this part; if an index further up lists its shards, name that one in index_file_urls",
        )


def survey(store: Store) -> Survey:
    """What the store holds."""
    found = Survey(store.location, {}, [], {}, set())
    for path, size_bytes, *_ in store.list():
        if path.startswith(".") or "/." in path:
            parts = path.split("/")
            first = next(number for number, part in enumerate(parts) if part.startswith("."))
            if parts[first] == PRIVATE:
                found.begun.add("/".join(parts[:first]))
            continue
        found.sizes[path] = size_bytes
        folder, _, name = path.rpartition("/")
        if name == INDEX:
            found.indexed.append(folder)
        elif _SHARD.fullmatch(name):
            found.shards.setdefault(folder, name)
    found.indexed.sort(key=part_order)
    return found


def part_order(folder: str) -> tuple[object, ...]:
    """A key that sorts folders name by name, numbers in names by value: part-2 before part-10, a folder before its own."""
    names = folder.split("/") if folder else []
    # The name itself comes last, so that 01 and 1 have an order, too.
    return tuple((*(int(text) if text.isdigit() else text for text in _DIGITS.split(name)), name) for name in names)


def below(folder: str, path: str) -> str:
    """path below folder; either may be `""`."""
    return f"{folder}{'' if folder.endswith('/') else '/'}{path}" if folder and path else folder or path


def read_indexes(store: Store, folders: Iterable[str], timeout_s: float) -> Iterator[tuple[str, list[ShardEntry]]]:
    """(folder, what its index lists), in the order of folders; several are read ahead.

    StoreError for one that is not there within timeout_s, ManifestError with its path for a damaged one.
    """
    pool = ThreadPoolExecutor(_READERS)
    try:
        ahead: deque[tuple[str, Future[bytes]]] = deque()
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
