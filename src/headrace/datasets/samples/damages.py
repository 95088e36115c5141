"""Files of a dataset of samples, read again and compared with what the index says of them."""

from collections.abc import Iterator

from headrace.datasets.samples.index import FileEntry, ShardEntry, stored_files
from headrace.errors import NotFoundError, StoreError
from headrace.formats.digests import HASH_NAMES, Digests
from headrace.store import Store

__all__ = ["is_there", "other_digest", "shard_problems", "stored_name"]


def shard_problems(store: Store, entry: ShardEntry) -> list[tuple[str, str]]:
    """(file, problem) for each file of the shard that is damaged; of a compressed one one of two forms must be there.

    Reads every byte that has a digest.
    """
    return [found for raw, compressed in stored_files(entry) for found in _file_problems(store, raw, compressed)]


def stored_name(store: Store, entry: ShardEntry, name: str) -> str:
    """The file that is there: of one that was decompressed it is the compressed one."""
    for raw, compressed in stored_files(entry):
        if raw.basename == name and compressed is not None and not is_there(store, raw):
            return compressed.basename
    return name


def is_there(store: Store, file: FileEntry) -> bool:
    """Whether the file is there, and of its size."""
    try:
        return store.head(file.basename).size_bytes == file.bytes
    except NotFoundError:
        return False


def other_digest(file: FileEntry, name: str, found: str) -> str:
    """The problem of a file with another digest of this name."""
    return f"has {name} {found}, expected {file.hashes[name]}: its content was changed"


def _file_problems(store: Store, raw: FileEntry, compressed: FileEntry | None) -> Iterator[tuple[str, str]]:
    absent = []
    for file in (raw, compressed):
        if file is None:
            continue
        try:
            problem = _file_problem(store, file)
        except NotFoundError:
            absent.append(file)
            continue
        except StoreError as error:
            problem = f"cannot be read: {error}"
        if problem is not None:
            yield file.basename, problem
    if len(absent) == (1 if compressed is None else 2):
        yield absent[-1].basename, "is missing"


def _file_problem(store: Store, file: FileEntry) -> str | None:
    found_bytes = store.head(file.basename).size_bytes
    if found_bytes != file.bytes:
        return f"has {found_bytes} bytes, expected {file.bytes}"
    names = [name for name in file.hashes if name in HASH_NAMES]
    if not names:
        return None
    computed = Digests(names)
    for piece in store.pieces(file.basename):
        computed.update(piece)
    for name, found in computed.hex().items():
        if found != file.hashes[name]:
            return other_digest(file, name, found)
    return None
