"""Removing a dataset of samples: no moment shows a part of it as whole, and a crash forgets nothing of what has to go.

    begun = index.json          what goes, noted in .headrace/samples/begun
    index.json deleted          from here on the directory is unfinished
    the rest deleted            indexes of parts that list the same shards, receipts (the last first), shards
    begun = nothing             by the writer, once nothing is left of it

What goes is what the index lists, wherever it lies, and shards directly in the directory. All other files stay, and so
does what lies behind a link to another directory: there it is somebody else's, too.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator

from headrace.datasets.neighbours import INDEX, SAMPLES
from headrace.datasets.samples.index import file_entries, index_bytes
from headrace.datasets.samples.many_requests import delete_all
from headrace.datasets.samples.shard_index import read_index
from headrace.errors import ManifestError, NotFoundError
from headrace.store import Store
from headrace.store.below import directory_of

__all__ = [
    "LEASES",
    "PART",
    "PLAN",
    "PRIVATE",
    "begin",
    "content",
    "has_index",
    "is_shard_file",
    "is_withdrawing",
    "receipt_of",
    "receipts_in",
    "remove_if_empty",
    "remove_private",
    "withdraw",
]

PRIVATE = SAMPLES
LEASES = f"{PRIVATE}/leases"
PLAN = f"{PRIVATE}/plan.json"  # of prepare(), which writes into folders
PART = ".part"  # of a file in PRIVATE that is written piece by piece
_BEGUN = f"{PRIVATE}/begun"
_UNLISTED = index_bytes([])  # what is noted where no index says what goes
_SHARD_RECEIPT = f"{PRIVATE}/shard."
_SHARD_FILE = re.compile(r"shard\.([0-9]{5,})\.(?:mds|json|csv|tsv|xsv)(?:\.meta)?(?:\.(?:br|bz2|gz|snappy|zstd))?")


def is_shard_file(path: str) -> bool:
    """Whether a file's name, in whatever folder, is one that writers give to the files of shards."""
    return _SHARD_FILE.fullmatch(path.rpartition("/")[2]) is not None


def receipt_of(name: str) -> str:
    """The path of the receipt of the shard to which the file of this name belongs."""
    match = _SHARD_FILE.fullmatch(name)
    assert match is not None
    return f"{_SHARD_RECEIPT}{match[1]}"


def receipts_in(store: Store) -> list[str]:
    """The paths of all receipts, in order of their shards."""
    found = [info.path for info in store.list(PRIVATE, recursive=False) if info.path.startswith(_SHARD_RECEIPT)]
    return sorted(found, key=lambda path: (len(path), path))


def has_index(store: Store) -> bool:
    """Whether index.json is there."""
    try:
        store.head(INDEX)
    except NotFoundError:
        return False
    return True


def withdraw(store: Store, *, keep: Collection[str] = (), check: Callable[[], None] = lambda: None) -> None:
    """Remove the dataset, its index first; what a withdrawal that was killed had still to remove goes, too.

    Files that are no dataset's stay, and so does what is in the top-level folders to keep. check raises where the place
    is another writer's now; it is asked right before the index goes.
    """
    index = content(store, INDEX)
    noted = content(store, _BEGUN) if index is None else index or _UNLISTED
    shards = {info.path for info in store.list(recursive=False) if is_shard_file(info.path)}
    receipts = receipts_in(store)
    if index is not None or ((shards or receipts) and not noted):
        noted = noted or _UNLISTED
        # Not conditional: it replaces other notes, and one that comes late costs shards to be gone on with, no dataset.
        store.put(_BEGUN, noted)
        check()
        store.delete(INDEX)
    listed = {path for path in _listed(noted or b"", store) if is_shard_file(path)}
    shards |= {path for path in listed if path.partition("/")[0] not in keep}
    links = {folder for folder in _folders_of(shards) if _is_link(store, folder)}
    shards = {path for path in shards if links.isdisjoint(_folders_of([path]))}
    folders = _folders_of(shards)
    for paths in (_indexes_of(shards, folders, store), list(reversed(receipts)), sorted(shards)):
        delete_all(store, paths)
    if store.capabilities.rename:
        for folder in folders:
            remove_if_empty(store, folder)


def begin(store: Store) -> None:
    """Note that a writer begins, where nothing is left to withdraw; until its index is there this is unfinished."""
    if content(store, _BEGUN) != b"":
        store.put(_BEGUN, b"")  # over what withdraw() noted; one that comes late is the same as the successor's


def is_withdrawing(store: Store) -> bool:
    """Whether a withdrawal began that did not end."""
    return bool(content(store, _BEGUN))


def remove_private(store: Store) -> None:
    """Remove what writers need until the index is there; the caller's own lease goes last."""
    if store.capabilities.rename:
        store.remove_folder(PRIVATE)
        remove_if_empty(store, PRIVATE.partition("/")[0])
        return
    delete_all(store, [info.path for info in store.list(PRIVATE) if not info.path.startswith(f"{LEASES}/")])


def content(store: Store, path: str) -> bytes | None:
    """The object, None where there is none."""
    try:
        return store.get(path)
    except NotFoundError:
        return None


def _listed(index: bytes, store: Store, folder: str = "") -> Iterator[str]:
    """The files that an index in the folder lists; none for one that is damaged."""
    try:
        entries = read_index(index, store.location)
    except ManifestError:
        return
    for entry in entries:
        yield from (f"{folder}/{file.basename}" if folder else file.basename for file in file_entries(entry))


def _folders_of(shards: Collection[str]) -> list[str]:
    """The folders below the directory in which these are, those further down first."""
    found = set()
    for path in shards:
        while path := path.rpartition("/")[0]:
            found.add(path)
    return sorted(found, key=lambda folder: (-folder.count("/"), folder))


def _indexes_of(shards: set[str], folders: list[str], store: Store) -> list[str]:
    """The indexes in these folders that list one of these shards, those further up first."""
    found = []
    for folder in reversed(folders):
        path = f"{folder}/{INDEX}"
        if (index := content(store, path)) is not None and not shards.isdisjoint(_listed(index, store, folder)):
            found.append(path)
    return found


def _is_link(store: Store, folder: str) -> bool:
    directory = directory_of(store)
    return directory is not None and (directory / folder).is_symlink()


def remove_if_empty(store: Store, folder: str) -> None:
    """Remove the folder if it holds nothing at all, and then those above it of which the same is true."""
    directory = directory_of(store)
    if directory is not None:  # which may hold what no listing shows, and what somebody just put there
        with contextlib.suppress(OSError):
            while folder:
                (directory / folder).rmdir()
                folder = folder.rpartition("/")[0]
        return
    while folder and not store.list(folder) and not store.folders(folder):
        store.remove_folder(folder)
        folder = folder.rpartition("/")[0]
