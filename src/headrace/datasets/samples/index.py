"""index.json: which shards a dataset of samples has, and the bytes that Streaming writes for it.

    {"shards": [ENTRY, ...], "version": 2}     by a writer, everything sorted
    {"version": 2, "shards": [ENTRY, ...]}     by merge_index, only what is inside the entries sorted

An entry has exactly the keys of its format, since Streaming refuses any other. `basename` may hold folders. Whatever is
read here is untrusted: names stay inside the root, numbers stay in range.
"""

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import xxhash

from headrace.datasets.neighbours import INDEX
from headrace.errors import ManifestError, ManifestVersionError, OptionError, PathOutsideRootError
from headrace.formats.compression import codec
from headrace.formats.digests import HASH_NAMES
from headrace.store import checked_path

__all__ = [
    "INDEX",
    "VERSION",
    "CsvEntry",
    "FileEntry",
    "JsonEntry",
    "MdsEntry",
    "ShardEntry",
    "ShardIndex",
    "TsvEntry",
    "XsvEntry",
    "file_entries",
    "index_bytes",
    "is_digested",
    "merged_index_bytes",
    "read_index",
    "schema_of",
    "stored_files",
    "with_prefix",
]

VERSION = 2
_HASH_NAMES = frozenset(HASH_NAMES)
_MOST_BYTES = 1 << 62  # of a file
_MOST_SAMPLES = 1 << 32  # of a shard, whose offsets have 32 bits; sums stay within int64


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a shard, with the digests that were asked for."""

    basename: str  # below the index's folder
    bytes: int
    hashes: dict[str, str]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="format"):
    format: ClassVar[str]

    version: Literal[2]
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    samples: int
    raw_data: FileEntry
    zip_data: FileEntry | None


class MdsEntry(_Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mds"):
    """A shard of one file, whose columns are binary."""

    format: ClassVar[str] = "mds"

    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]


class _SplitEntry(_Entry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="split"):
    newline: str
    raw_meta: FileEntry
    zip_meta: FileEntry | None


class JsonEntry(_SplitEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="json"):
    """A shard of JSON lines, with a file of offsets."""

    format: ClassVar[str] = "json"

    columns: dict[str, str]


class _XsvEntry(_SplitEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="table"):
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]


class CsvEntry(_XsvEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="csv"):
    """A shard of comma-separated lines, with a file of offsets."""

    format: ClassVar[str] = "csv"


class TsvEntry(_XsvEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="tsv"):
    """A shard of tab-separated lines, with a file of offsets."""

    format: ClassVar[str] = "tsv"


class XsvEntry(_XsvEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="xsv"):
    """A shard of lines with a separator of its own, with a file of offsets."""

    format: ClassVar[str] = "xsv"

    separator: str


ShardEntry = MdsEntry | JsonEntry | CsvEntry | TsvEntry | XsvEntry


class _Top(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    shards: list[msgspec.Raw]


class _Versioned(msgspec.Struct):
    version: Any = None


_decode_entry = msgspec.json.Decoder(ShardEntry).decode


class ShardIndex:
    """An index in memory: its text, and how many samples each shard has. Entries are made when they are asked for.

    So a hundred thousand shards cost little more than their text.
    """

    def __init__(self, raw: bytes, where: str) -> None:
        """Decodes raw; ManifestError or ManifestVersionError, with `where`, for what is no index that makes sense."""
        self.where = where
        self._texts = _shard_texts(raw, where)
        self.samples = np.zeros(len(self._texts), np.int64)  # of each shard
        self.stored_bytes = 0  # of all shards, in the form in which they were written
        self.num_undigested = 0  # shards of which nothing but sizes and structure can be checked
        shards: dict[str, int] = {}
        for number in range(len(self._texts)):
            entry = self.entry(number)
            name = entry.raw_data.basename
            # What merging parts of equal names leaves behind: some samples twice, others never.
            if (other := shards.setdefault(name, number)) != number:
                raise ManifestError(where, f"shards {other} and {number} are the same file, {name!r}")
            self.samples[number] = entry.samples
            self.stored_bytes += sum((compressed or raw).bytes for raw, compressed in stored_files(entry))
            self.num_undigested += not is_digested(entry)
        self.digest = xxhash.xxh3_128_hexdigest(raw)  # names this content

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.samples.sum())

    def entry(self, shard: int) -> ShardEntry:
        """What the index says of one shard."""
        try:
            entry = _decode_entry(self._texts[shard])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ManifestError(self.where, f"shard {shard} is not described as it must be: {error}") from None
        problem = _problem(entry)
        if problem:
            raise ManifestError(self.where, f"shard {shard}: {problem}")
        return entry

    def __iter__(self) -> Iterator[ShardEntry]:
        return (self.entry(shard) for shard in range(len(self)))


def read_index(raw: bytes, where: str) -> list[ShardEntry]:
    """Every entry of the index; ManifestError or ManifestVersionError, with `where`, for what is none."""
    return list(ShardIndex(raw, where))


def index_bytes(entries: Sequence[ShardEntry]) -> bytes:
    """index.json as a writer writes it."""
    return json.dumps({"shards": [_described(entry) for entry in entries], "version": VERSION}, sort_keys=True).encode()


def merged_index_bytes(entries: Sequence[ShardEntry]) -> bytes:
    """index.json as merge_index writes it."""
    shards = ", ".join(json.dumps(_described(entry), sort_keys=True) for entry in entries)
    return f'{{"version": {VERSION}, "shards": [{shards}]}}'.encode()


def file_entries(entry: ShardEntry) -> Iterator[FileEntry]:
    """The files that the entry names: of each raw file its own entry, and that of its compressed form if there is one.

    Of the two forms one is enough.
    """
    yield entry.raw_data
    if entry.zip_data is not None:
        yield entry.zip_data
    if not isinstance(entry, MdsEntry):
        yield entry.raw_meta
        if entry.zip_meta is not None:
            yield entry.zip_meta


def stored_files(entry: ShardEntry) -> list[tuple[FileEntry, FileEntry | None]]:
    """(raw, compressed) for the data file, then for the file of offsets where the format has one."""
    files = [(entry.raw_data, entry.zip_data)]
    return files if isinstance(entry, MdsEntry) else [*files, (entry.raw_meta, entry.zip_meta)]


def is_digested(entry: ShardEntry) -> bool:
    """Whether the index has a digest of each file of the shard, under a name that is known here."""
    return not any(_HASH_NAMES.isdisjoint((compressed or raw).hashes) for raw, compressed in stored_files(entry))


def schema_of(entry: ShardEntry) -> Hashable:
    """What all parts of one dataset have in common: format, columns, and how lines are cut."""
    match entry:
        case MdsEntry():
            return entry.format, tuple(zip(entry.column_names, entry.column_encodings, strict=True))
        case JsonEntry():
            return entry.format, entry.newline, tuple(sorted(entry.columns.items()))
        case _:
            columns = tuple(zip(entry.column_names, entry.column_encodings, strict=True))
            return entry.format, entry.newline, getattr(entry, "separator", None), columns


def with_prefix(entry: ShardEntry, folder: str) -> ShardEntry:
    """The same shard as an index one or more folders further up lists it."""
    names = ("raw_data", "zip_data", "raw_meta", "zip_meta")
    files = {name: file for name in names if (file := getattr(entry, name, None)) is not None}
    moved = {
        name: FileEntry(f"{folder}/{file.basename}" if folder else file.basename, file.bytes, file.hashes)
        for name, file in files.items()
    }
    return msgspec.structs.replace(entry, **moved)


def _described(entry: ShardEntry) -> Any:
    return msgspec.to_builtins(entry)


def _shard_texts(raw: bytes, where: str) -> list[msgspec.Raw]:
    if not raw:
        raise ManifestError(where, "is empty (0 bytes)")
    try:
        return _top(raw, where).shards
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(where, f"is not the index of a dataset ({error}; {len(raw)} bytes)") from None


def _top(raw: bytes, where: str) -> _Top:
    try:
        top = msgspec.json.decode(raw, type=_Top)
    except msgspec.ValidationError:
        found = msgspec.json.decode(raw, type=_Versioned).version
        if found is not None and found != VERSION:
            raise ManifestVersionError(where, found, (VERSION,)) from None
        raise
    if top.version != VERSION:
        raise ManifestVersionError(where, top.version, (VERSION,))
    return top


def _problem(entry: ShardEntry) -> str:
    """Why the entry makes no sense; "" where it does."""
    if not 0 <= entry.samples < _MOST_SAMPLES:
        return f"it has {entry.samples} samples"
    files = list(file_entries(entry))
    for file in files:
        try:
            checked_path(file.basename)
        except PathOutsideRootError:
            return f"its file {file.basename!r} lies outside the dataset"
        if not 0 <= file.bytes < _MOST_BYTES:
            return f"its file {file.basename!r} has {file.bytes} bytes"
    if len({file.basename for file in files}) < len(files):
        return f"two of its files are called {files[0].basename!r}"
    if (entry.compression is None) != (entry.zip_data is None):
        return f"its compression is {entry.compression!r}, but zip_data is {'not ' * (entry.zip_data is not None)}null"
    with_offsets = entry.raw_data if isinstance(entry, MdsEntry) else entry.raw_meta
    if entry.samples and with_offsets.bytes < 4 * (entry.samples + 2):
        return f"it has {entry.samples} samples, whose offsets cannot be in the {with_offsets.bytes} bytes of its file"
    try:
        codec(entry.compression)
    except OptionError as error:
        return str(error)
    match entry:
        case MdsEntry():
            num_columns = {len(entry.column_names), len(entry.column_encodings), len(entry.column_sizes)}
        case JsonEntry():
            num_columns = {len(entry.columns)}
        case _:
            num_columns = {len(entry.column_names), len(entry.column_encodings)}
    if len(num_columns) > 1:
        return "its lists of column names, encodings and sizes have different lengths"
    if not isinstance(entry, MdsEntry) and (entry.zip_data is None) != (entry.zip_meta is None):
        return "one of its files is compressed and the other is not"
    return ""
