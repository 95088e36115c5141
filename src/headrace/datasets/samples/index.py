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

from headrace.datasets.neighbours import INDEX
from headrace.errors import ManifestError, OptionError, PathOutsideRootError
from headrace.formats.compression import codec
from headrace.formats.digests import HASH_NAMES
from headrace.store import checked_path

__all__ = [
    "INDEX",
    "MOST_BYTES",
    "MOST_SAMPLES",
    "VERSION",
    "CsvEntry",
    "FileEntry",
    "JsonEntry",
    "MdsEntry",
    "ShardEntry",
    "TsvEntry",
    "XsvEntry",
    "decoded_entry",
    "file_entries",
    "index_bytes",
    "is_digested",
    "merged_index_bytes",
    "schema_of",
    "stored_files",
    "with_prefix",
]

VERSION = 2
_HASH_NAMES = frozenset(HASH_NAMES)
MOST_BYTES = 1 << 62  # of a file
MOST_SAMPLES = 1 << 32  # of a shard, whose offsets have 32 bits; sums stay within int64


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
_decode_entry = msgspec.json.Decoder(ShardEntry).decode


def decoded_entry(text: bytes | msgspec.Raw, where: str, shard: int) -> ShardEntry:
    """The entry in text, checked; ManifestError, with `where` and shard, for what is none or makes no sense."""
    try:
        entry = _decode_entry(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(where, f"shard {shard} is not described as it must be: {error}") from None
    if problem := _problem(entry):
        raise ManifestError(where, f"shard {shard}: {problem}")
    return entry


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


def _problem(entry: ShardEntry) -> str:
    """Why the entry makes no sense; "" where it does."""
    if not 0 <= entry.samples < MOST_SAMPLES:
        return f"it has {entry.samples} samples"
    files = list(file_entries(entry))
    for file in files:
        try:
            checked_path(file.basename)
        except PathOutsideRootError:
            return f"its file {file.basename!r} lies outside the dataset"
        if not 0 <= file.bytes < MOST_BYTES:
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
    if isinstance(entry, MdsEntry) and any(size is not None and size < 0 for size in entry.column_sizes):
        return f"its columns have values of {entry.column_sizes} bytes"
    if not isinstance(entry, MdsEntry) and (entry.zip_data is None) != (entry.zip_meta is None):
        return "one of its files is compressed and the other is not"
    return ""
