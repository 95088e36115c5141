"""merge_index: one index for what many writers wrote side by side. Shards stay where they are, as they are.

Every index speaks for the shards in its own folder. What it lists further down is a copy of what the indexes there say,
left by an earlier merge, and is not counted again: so a merged root merges to the same bytes, and a root that is itself
a part keeps its shards.

    root/index.json       shard.00000.mds, a/shard.00000.mds      its own, and a copy
    root/a/index.json     shard.00000.mds, x/shard.00000.mds      its own, and a copy
    root/a/x/index.json   shard.00000.mds                         its own
    merged                shard.00000.mds, a/shard.00000.mds, a/x/shard.00000.mds

Where the caller names the indexes, these are all that counts: a copy in one of them stands for a folder that is not
named itself.
"""

import inspect
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple, overload

from headrace.datasets.neighbours import refuse_shards
from headrace.datasets.samples.conditional import put_first, remove_rest
from headrace.datasets.samples.index import (
    INDEX,
    JsonEntry,
    ShardEntry,
    file_entries,
    merged_index_bytes,
    schema_of,
    stored_files,
    with_prefix,
)
from headrace.datasets.samples.options import Place, opened_outputs
from headrace.datasets.samples.parts import Survey, below, part_order, read_indexes, survey
from headrace.datasets.samples.places import overlap, part_folder, remove_copies
from headrace.datasets.samples.shard_index import ShardIndex
from headrace.datasets.samples.withdrawal import content
from headrace.errors import (
    CorruptShardError,
    ManifestError,
    NoDatasetError,
    OptionError,
    PartMismatchError,
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import Store, confirmed

__all__ = ["merge_index"]

Root = Place | tuple[Place, Place]
_EMPTY = merged_index_bytes([])
_TRIES = 3  # with a store that keeps less than it says
_HEAD, _TAIL = _EMPTY[:-2], _EMPTY[-2:]


@overload
def merge_index(out: Root, keep_local: bool = True, download_timeout: float = 60) -> None: ...


@overload
def merge_index(
    index_file_urls: Iterable[Root], out: Root, keep_local: bool = True, download_timeout: float = 60
) -> None: ...


def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write `out`/index.json: one dataset of all parts below `out`, or of those that index_file_urls names.

        merge_index(out, keep_local=True, download_timeout=60)
        merge_index(index_file_urls, out, keep_local=True, download_timeout=60)

    A part is a folder with an index.json, at any depth; `out` itself is one where shards lie directly in it. Parts come
    in the order of their paths, numbers by value (part-2 before part-10), or as index_file_urls gives them; a set of
    those is ordered by path. Parts without samples add nothing. Shards are neither moved nor rewritten, and the index
    is replaced as a whole, at the end; merged twice it is the same.

    out              a directory, a URL, a Store, or a pair (local, remote) of those: what counts is the remote, which
                     has to hold all parts
    index_file_urls  paths or URLs of index.json files, folders of a Store, or pairs (local, remote); all below `out`
    keep_local       of a pair: put the index into local, too; else remove from local whatever the remote now holds
    download_timeout seconds that the reading of one index may take

    Raises NoDatasetError where there are no parts, UnfinishedDatasetError for a folder with shards and no index,
    PartMismatchError for parts of another format or with other columns (compression, hashes and size limit may differ),
    CorruptShardError for a shard that is missing or has another size than its index says, ManifestError for a damaged
    index, ExistingOutputError where `out` holds a dataset of another kind, or got another index meanwhile, OptionError
    for arguments that mean nothing.
    Then nothing was written.
    """
    merge = _merge_named if _names_indexes(args, kwargs) else _merge_below
    try:
        given = inspect.signature(merge).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"merge_index(out) or merge_index(index_file_urls, out): {error}") from None
    merge(*given.args, **given.kwargs)


def _names_indexes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Which of the two forms was called. A tuple alone is a pair (local, remote); before `out` it is a list."""
    if "index_file_urls" in kwargs or not args:
        return "index_file_urls" in kwargs
    if isinstance(args[0], tuple):
        return "out" in kwargs or (len(args) > 1 and not isinstance(args[1], bool))
    return isinstance(args[0], Iterable) and not isinstance(args[0], str)


class _Output(NamedTuple):
    """Where the merged index goes."""

    roots: list[Store]  # [root] or [local, remote]
    keep_local: bool
    timeout_s: float

    @property
    def root(self) -> Store:
        """The one that counts."""
        return self.roots[-1]


def _merge_below(out: Root, keep_local: bool = True, download_timeout: float = 60) -> None:
    output = _opened(out, keep_local, download_timeout)
    found = survey(output.root)
    refuse_shards(output.root, found.sizes)
    found.refuse_unfinished()
    if len(output.roots) > 1:
        _refuse_what_only_local_has(output.roots[0], found)
    if not any(found.indexed):  # "" is the root's own
        problem = (
            "has an index, but no parts below it" if found.indexed else f"has no parts, that is folders with an {INDEX}"
        )
        raise NoDatasetError(found.location, f"{problem}: nothing was merged")
    _merge(output, found, found.indexed, named=False)


def _merge_named(
    index_file_urls: Iterable[Root], out: Root, keep_local: bool = True, download_timeout: float = 60
) -> None:
    if isinstance(index_file_urls, Place):
        raise OptionError("index_file_urls", index_file_urls, "a list of them")
    output = _opened(out, keep_local, download_timeout)
    named = dict.fromkeys(part_folder(url, output.roots) for url in index_file_urls)
    if not named:
        raise NoDatasetError(output.root.location, "index_file_urls is empty: nothing was merged")
    folders = sorted(named, key=part_order) if isinstance(index_file_urls, Set) else list(named)
    found = survey(output.root)
    refuse_shards(output.root, found.sizes)
    for folder in folders:
        if not found.has_index(folder):
            raise UnfinishedDatasetError(
                found.named(folder), f"it has no {INDEX}", "finish this part, or leave it out of index_file_urls"
            )
    _merge(output, found, folders, named=True)


def _opened(out: Root, keep_local: bool, download_timeout: float) -> _Output:
    if not isinstance(keep_local, bool):
        raise OptionError("keep_local", keep_local, "True or False; merge_index([index, ...], out) takes a list")
    if not isinstance(download_timeout, int | float) or not download_timeout > 0:
        raise OptionError("download_timeout", download_timeout, "seconds above 0")
    roots = opened_outputs(out, keep_local=True)
    if len(roots) > 1 and overlap(*roots):
        raise OptionError("out", out, "a pair (local, remote) of places of which neither is inside the other")
    return _Output(roots, keep_local, download_timeout)


def _refuse_what_only_local_has(local: Store, found: Survey) -> None:
    missing = [folder for folder in survey(local).indexed if folder and not found.has_index(folder)]
    if missing:
        raise UnfinishedDatasetError(
            found.location,
            f"{len(missing)} parts are only in {local.location} ({', '.join(missing[:3])})",
            "upload them first, or remove them",
        )


def _merge(output: _Output, found: Survey, folders: list[str], *, named: bool) -> None:
    merged = _Merged(found, folders, named=named)
    for folder, entries in read_indexes(output.root, folders, output.timeout_s):
        merged.add(folder, entries)
    index = merged.index_bytes()
    _put(output.root, index)
    if len(output.roots) > 1:
        local = output.roots[0]
        if output.keep_local:
            _put(local, index)
        else:
            _remove_merged(local, folders, index)


def _put(store: Store, index: bytes) -> None:
    """Store the index unless it is there already: those who read the same one need not open it anew."""
    store.remove_orphans()  # of a merge that was killed
    found = content(store, INDEX)
    if found == index:
        return
    for _ in range(_TRIES):
        if found is None:
            put_first(store, INDEX, index, "while its parts were merged")
        else:
            store.put(INDEX, index)  # an older one is replaced as a whole: no moment is without an index
        if store.capabilities.rename:
            return
        _, kept = confirmed(store, INDEX, len(index), lambda: (index,))
        if not kept:
            return
        if found is None:
            remove_rest(store, INDEX, index, own=True)
    raise StoreError(f"{below(store.location, INDEX)}: the store kept {kept}, though it said that all was well")


def _remove_merged(local: Store, folders: Iterable[str], index: bytes) -> None:
    """Remove from local what the remote has: whole shards that the index lists, and indexes. Anything else stays."""
    there = survey(local).sizes
    paths = [path for folder in ("", *folders) if (path := below(folder, INDEX)) in there]
    for entry in ShardIndex(index, local.location):
        paths += [file.basename for file in file_entries(entry) if there.get(file.basename) == file.bytes]
    remove_copies(local, paths)


class _Merged:
    """An index in the making: part after part is checked and written out, and only text is kept.

    named says that the folders are all that counts, and not just all that were found.
    """

    def __init__(self, found: Survey, folders: Iterable[str], *, named: bool) -> None:
        self._found = found
        self._folders = frozenset(folders)
        self._named = named
        self._texts: list[bytes] = []
        self._first: tuple[str, ShardEntry] | None = None  # what all others must be like, and where it is
        self._copies: dict[str, tuple[str, ShardEntry]] = {}  # path -> copy that counts, and the folder of its index

    def add(self, folder: str, entries: list[ShardEntry]) -> None:
        """Append the part's shards; raises what merge_index does."""
        counted = [(shard, _moved(entry, folder)) for shard, entry in self._counted(folder, entries)]
        if not any(entry.samples for _, entry in counted):
            return
        paths: set[str] = set()
        for shard, entry in counted:
            path = entry.raw_data.basename
            if path in paths:
                raise ManifestError(self._index(folder), f"lists {path} twice")
            paths.add(path)
            self._check_schema(folder, entry)
            self._check_files(folder, shard, entry)
        self._texts.append(merged_index_bytes([entry for _, entry in counted])[len(_HEAD) : -len(_TAIL)])

    def index_bytes(self) -> bytes:
        """The whole index."""
        return _HEAD + b", ".join(self._texts) + _TAIL

    def _index(self, folder: str) -> str:
        return self._found.named(below(folder, INDEX))

    def _counted(self, folder: str, entries: list[ShardEntry]) -> Iterator[tuple[int, ShardEntry]]:
        """(number, entry) of each shard for which this index speaks."""
        has_own = False
        for shard, entry in enumerate(entries):
            inner = entry.raw_data.basename.rpartition("/")[0]
            has_own |= not inner
            if not inner or self._copy_counts(folder, shard, entry, below(folder, inner)):
                yield shard, entry
        if not self._named and not has_own and folder in self._found.shards:
            self._found.refuse(folder)

    def _copy_counts(self, folder: str, shard: int, entry: ShardEntry, of: str) -> bool:
        """Whether the entry, a copy of what an index in the folder `of` said, is all there is of that shard."""
        if of in self._folders:
            return False
        moved = _moved(entry, folder)
        path = moved.raw_data.basename
        if self._named:
            other, known = self._copies.setdefault(path, (folder, moved))
            if known != moved:
                raise ManifestError(self._index(folder), f"says otherwise of {path} than {self._index(other)}")
            return known is moved
        if folder:
            # Shards in a folder without an index were refused before, so these are gone.
            raise CorruptShardError(self._index(folder), shard, f"{path} is missing, with the {INDEX} beside it")
        return False  # what the root lists is what is being made anew

    def _check_schema(self, folder: str, entry: ShardEntry) -> None:
        if self._first is None:
            self._first = folder, entry
        first_folder, first = self._first
        if schema_of(entry) == schema_of(first):
            return
        if folder == first_folder:
            raise ManifestError(self._index(folder), f"its shards differ: {_difference(first, entry)}")
        parts = _part(first_folder), _part(folder)
        raise PartMismatchError(self._found.location, parts, _difference(first, entry))

    def _check_files(self, folder: str, shard: int, entry: ShardEntry) -> None:
        """Of each file one form has to be there, and whatever is there has to have its size."""
        for forms in stored_files(entry):
            files = [(file, self._found.sizes.get(file.basename)) for file in forms if file is not None]
            wrong = [
                f"{file.basename} has {size} bytes, not {file.bytes}"
                for file, size in files
                if size not in (None, file.bytes)
            ]
            if all(size is None for _, size in files):
                wrong = [f"{files[-1][0].basename} is missing"]
            if wrong:
                raise CorruptShardError(self._index(folder), shard, ", ".join(wrong))


def _moved(entry: ShardEntry, folder: str) -> ShardEntry:
    return with_prefix(entry, folder) if folder else entry


def _part(folder: str) -> str:
    return f"part {folder!r}" if folder else "the root's own part"


def _difference(one: ShardEntry, other: ShardEntry) -> str:
    """In what the schemas differ, the first one's side first."""
    if one.format != other.format:
        return f"the format is {one.format} and {other.format}"
    found = []
    for name in ("newline", "separator"):
        values = getattr(one, name, None), getattr(other, name, None)
        if values[0] != values[1]:
            found.append(f"the {name} is {values[0]!r} and {values[1]!r}")
    columns, others = _columns(one), _columns(other)
    for name in dict.fromkeys([*columns, *others]):
        encodings = columns.get(name, "absent"), others.get(name, "absent")
        if encodings[0] != encodings[1]:
            found.append(f"column {name!r} is {encodings[0]} and {encodings[1]}")
    return "; ".join(found) or f"the columns are in the order {list(columns)} and {list(others)}"


def _columns(entry: ShardEntry) -> dict[str, str]:
    if isinstance(entry, JsonEntry):
        return entry.columns
    return dict(zip(entry.column_names, entry.column_encodings, strict=True))
