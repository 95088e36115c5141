"""What a dataset consists of, whatever its kind: files with their sizes and digests, and what commits it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import xxhash

from headrace.datasets.kinds import holds_samples, open_storage
from headrace.datasets.ledger import MANIFEST, PRIVATE
from headrace.datasets.neighbours import INDEX, SAMPLES
from headrace.datasets.opening import Opened, open_directory
from headrace.datasets.samples.dataset import opened_folder
from headrace.datasets.samples.index import FileEntry, ShardEntry, file_entries, stored_files
from headrace.datasets.samples.many_requests import each
from headrace.datasets.samples.parts import below
from headrace.datasets.samples.shard_index import ShardIndex, read_index
from headrace.datasets.samples.withdrawal import content
from headrace.errors import CorruptShardError, DatasetChangedError, ManifestError, NotFoundError
from headrace.formats.digests import HASH_NAMES
from headrace.store import FileInfo, Store

__all__ = ["Contents", "CopiedFile", "contents_of", "listed"]

_QUICKEST = ("xxh3_128", "xxh3_64", "xxh128", "xxh64", "xxh32", *HASH_NAMES)


class CopiedFile(NamedTuple):
    """One file of a dataset. digest is "" where none is recorded under a name that is known here."""

    path: str
    size_bytes: int
    hash_name: str
    digest: str


class Contents(NamedTuple):
    """All that a copy needs to know. Two datasets with equal identities have the same files."""

    private: str  # the folder for a writer's notes
    files: list[CopiedFile]
    commits: list[tuple[str, bytes]]  # (path, content) of what is put last, in this order; [] for foreign files
    identity: str
    fingerprint: str | None  # None where nothing records what is in the files
    made_here: bool = False  # whether the source lacks the commit, and has receipts instead


def contents_of(store: Store) -> Contents:
    """The contents of the whole dataset there; whatever opening it raises where there is none, or an unfinished one.

    CorruptShardError for a file that is missing or has another size than recorded.
    """
    is_published = content(store, MANIFEST) is not None
    if not is_published and (not store.capabilities.listing or holds_samples(store)):
        return _samples(store)
    return _shards(store)


def listed(store: Store, paths: Iterable[str]) -> dict[str, FileInfo]:
    """What the store says of those of the paths that are there."""
    if store.capabilities.listing:
        wanted = set(paths)
        return {info.path: info for info in store.list() if info.path in wanted}

    def found(path: str) -> FileInfo | None:
        try:
            return store.head(path)
        except NotFoundError:
            return None

    return {info.path: info for info in each(store, found, paths) if info is not None}


def _shards(store: Store) -> Contents:
    kind = open_storage(store)
    opened = open_directory(store, kind.kind, kind.suffixes, kind.optional)
    manifest = opened.manifest
    commits = []
    if opened.published:
        raw = store.get(MANIFEST)
        if manifest != type(manifest).from_json(raw, f"{store.location}/{MANIFEST}"):
            raise DatasetChangedError(store.location, f"{MANIFEST} was replaced")
        commits = [(MANIFEST, raw)]
    elif opened.by_headrace:
        commits = [(MANIFEST, manifest.to_json())]  # receipts commit a shard each, and half of them would be a dataset
    files = [
        CopiedFile(file.name, file.bytes, "xxh3_128" if opened.by_headrace else "", file.xxh3_128)
        for shard in manifest.shards
        for file in shard.files
    ]
    found = listed(store, [file.path for file in files])
    for number, shard in enumerate(manifest.shards):
        for file in shard.files:
            if file.name not in found or found[file.name].size_bytes != file.bytes:
                raise CorruptShardError(
                    store.location, number, _size_problem(found.get(file.name), file.name, file.bytes)
                )
    made_here = bool(commits) and not opened.published
    return Contents(PRIVATE, files, commits, _identity(files, commits, found), _fingerprint(opened), made_here)


def _fingerprint(opened: Opened) -> str | None:
    return opened.manifest.fingerprint if opened.by_headrace else None


def _samples(store: Store) -> Contents:
    index = opened_folder(store).index
    raw = store.get(INDEX)
    if ShardIndex(raw, store.location).digest != index.digest:
        raise DatasetChangedError(store.location, f"{INDEX} was replaced")
    entries = list(index)
    found = listed(store, [file.basename for entry in entries for file in file_entries(entry)])
    files = [file for shard, entry in enumerate(entries) for file in _forms(store, shard, entry, found)]
    commits = [*_part_indexes(store, files), (INDEX, raw)]
    identity = _identity(files, commits, found)
    return Contents(SAMPLES, files, commits, identity, index.digest)


def _forms(store: Store, shard: int, entry: ShardEntry, found: dict[str, FileInfo]) -> Iterator[CopiedFile]:
    """The files of a shard in the forms that are there, of which there is one at least."""
    for forms in stored_files(entry):
        there = [file for file in forms if file is not None and file.basename in found]
        if not there:
            wanted = forms[1] or forms[0]
            raise CorruptShardError(store.location, shard, _size_problem(None, wanted.basename, wanted.bytes))
        for file in there:
            if found[file.basename].size_bytes != file.bytes:
                problem = _size_problem(found[file.basename], file.basename, file.bytes)
                raise CorruptShardError(store.location, shard, problem)
            yield _copied(file)


def _copied(file: FileEntry) -> CopiedFile:
    name = next((name for name in _QUICKEST if name in file.hashes), "")
    return CopiedFile(file.basename, file.bytes, name, file.hashes.get(name, ""))


def _part_indexes(store: Store, files: Iterable[CopiedFile]) -> list[tuple[str, bytes]]:
    """The indexes of parts that list nothing but copied files, those further down first."""
    paths = {file.path for file in files}
    folders = {path.rpartition("/")[0] for path in paths} - {""}
    ordered = sorted(folders, key=lambda folder: (-folder.count("/"), folder))
    contents = each(store, lambda folder: content(store, below(folder, INDEX)), ordered)
    found = []
    for folder, raw in zip(ordered, contents, strict=True):
        if raw is not None and _lists_only(raw, folder, paths):
            found.append((below(folder, INDEX), raw))
    return found


def _lists_only(raw: bytes, folder: str, paths: set[str]) -> bool:
    try:
        entries = read_index(raw, folder)
    except ManifestError:
        return False  # the index above is what counts
    wanted = (forms for entry in entries for forms in stored_files(entry))
    return all(any(file is not None and below(folder, file.basename) in paths for file in forms) for forms in wanted)


def _size_problem(found: FileInfo | None, name: str, size_bytes: int) -> str:
    is_there = "is missing" if found is None else f"has {found.size_bytes} bytes"
    return f"{name} {is_there}, but {size_bytes} bytes are recorded"


def _identity(files: list[CopiedFile], commits: list[tuple[str, bytes]], found: dict[str, FileInfo]) -> str:
    """Of files without a digest their version counts: nothing else tells that they are what they were."""
    unknown = [(file.path, found[file.path].version) for file in files if not file.digest]
    digests = [(path, xxhash.xxh3_128_hexdigest(data)) for path, data in commits]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([files, digests, unknown]))
