"""Files that a writer put after another one had taken its place, which it learns when it asks the next time."""

from collections.abc import Callable, Iterable, Iterator

from headrace.datasets.samples.index import INDEX, FileEntry, file_entries
from headrace.datasets.samples.shard_index import read_index
from headrace.datasets.samples.withdrawal import PRIVATE, content, receipt_of
from headrace.errors import ManifestError
from headrace.formats.digests import new_digest
from headrace.store import Buffer, Store

__all__ = ["take_back", "take_back_index"]

_DIGEST = "xxh3_128"


def take_back(store: Store, name: str, pieces: Callable[[], Iterable[Buffer]]) -> None:
    """Remove this file, of which pieces() gives the content, where it landed over the one that a successor counts on.

    Missing it is an error to every reader; other bytes, as many, might be none. It stays where nothing counts on it,
    where its size tells already, and where the successor recorded a digest that says the same of it.
    """
    for file in _counted(store, name):
        own_size, own = _digest(file, pieces())
        if file.bytes != own_size or own == file.hashes.get(_hash_name(file)):
            continue
        mine, there = (_digest(None, each)[1] for each in (pieces(), store.pieces(name)))
        if mine == there:
            store.delete(name)


def take_back_index(store: Store, index: bytes) -> None:
    """Remove this index where it came too late: the shards are a successor's, who is not done yet.

    One that is done took it for its own: it is the same.
    """
    if content(store, INDEX) == index and (store.capabilities.rename or store.list(PRIVATE)):
        store.delete(INDEX)


def _counted(store: Store, name: str) -> Iterator[FileEntry]:
    """What the index says of the file, or where none is, the shard's receipt."""
    listed = content(store, INDEX) or content(store, receipt_of(name))
    try:
        entries = read_index(listed, store.location) if listed else []
    except ManifestError:
        return
    yield from (file for entry in entries for file in file_entries(entry) if file.basename == name)


def _hash_name(file: FileEntry | None) -> str:
    return min(file.hashes, default=_DIGEST) if file else _DIGEST


def _digest(file: FileEntry | None, pieces: Iterable[Buffer]) -> tuple[int, str]:
    digest, size = new_digest(_hash_name(file)), 0
    for piece in pieces:
        digest.update(piece)
        size += memoryview(piece).nbytes
    return size, digest.hexdigest()
