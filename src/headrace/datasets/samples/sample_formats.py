"""From what an index says of a shard to the format that reads it, and what reading needs the caller's word for."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, NoReturn

from headrace.datasets.samples.index import JsonEntry, MdsEntry, ShardEntry, XsvEntry, schema_of
from headrace.errors import ManifestError, OptionError, SchemaMismatchError, UnsafeDataError
from headrace.formats.lines import LineShards
from headrace.formats.mds.encodings import Encoding, encoding
from headrace.formats.mds.samples import SampleColumns
from headrace.formats.mds.shards import MdsShards
from headrace.formats.sample_shards import Decode, SampleShards
from headrace.formats.xsv import XsvShards

__all__ = ["SampleFormats", "ShardReading", "columns_of"]


class ShardReading(NamedTuple):
    """How shards of one schema are read."""

    shards: SampleShards
    decode: Decode


class SampleFormats:
    """The formats of a dataset's shards, each made once: shards of one dataset nearly always have the same.

    encodings are the caller's own, and come before the built-in ones of the same name; columns are those to be decoded
    (None for all).
    """

    def __init__(
        self,
        columns: Sequence[str] | None,
        encodings: Sequence[Encoding],
        *,
        allow_unsafe_types: bool,
        same_columns: bool = True,
    ) -> None:
        self._columns = columns
        self._same_columns = same_columns
        for own in encodings:
            if not isinstance(own, Encoding):
                raise OptionError("encodings", encodings, "Encodings: objects with name, size, encode and decode")
        self._own = {own.name: own for own in encodings}
        self._allow_unsafe_types = allow_unsafe_types
        self._known: dict[Hashable, ShardReading] = {}
        self._first: tuple[str, ...] = ()  # the columns of the first shard that was opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_first": ()}

    def of(self, entry: ShardEntry, where: str) -> ShardReading:
        """How this shard is read. where names the index.

        ManifestError for a schema that makes no sense, OptionError for a column that is not there, UnsafeDataError for
        pickles without the caller's word, SchemaMismatchError where a shard has other columns than another one, and all
        must have the same.
        """
        key = schema_of(entry), entry.column_sizes if isinstance(entry, MdsEntry) else None
        if key not in self._known:
            self._known[key] = self._made(entry, where)
        return self._known[key]

    def _made(self, entry: ShardEntry, where: str) -> ShardReading:
        try:
            shards = self._shards(entry, where)
        except OptionError as error:
            raise ManifestError(where, f"its columns cannot be read: {error}") from None
        names = tuple(columns_of(entry))
        self._first = self._first or names
        if (
            self._same_columns and self._columns is None and names != self._first
        ):  # a batch of such samples would be none
            raise SchemaMismatchError(
                where, "shards with the columns", names, self._first, "pass columns=[...] with those that all have"
            )
        return ShardReading(shards, shards.decoder(self._columns))

    def _shards(self, entry: ShardEntry, where: str) -> SampleShards:
        match entry:
            case MdsEntry():
                return MdsShards(self._mds_columns(entry, where))
            case JsonEntry():
                return LineShards(entry.columns, entry.newline)
            case _:
                columns = dict(zip(entry.column_names, entry.column_encodings, strict=True))
                separator = entry.separator if isinstance(entry, XsvEntry) else None
                return XsvShards(entry.format, columns, separator, entry.newline)

    def _mds_columns(self, entry: MdsEntry, where: str) -> SampleColumns:
        if list(entry.column_names) != sorted(set(entry.column_names)):
            raise ManifestError(where, f"column names {entry.column_names} are not sorted and unique")
        found: dict[str, str | Encoding] = {}
        for name, kind, size in zip(entry.column_names, entry.column_encodings, entry.column_sizes, strict=True):
            selected = self._columns is None or name in self._columns
            found[name] = self._encoding(name, kind, where) if selected else _Unread(kind, size)
            if (expected := getattr(found[name], "size", size)) != size:
                problem = f"column {name!r} of encoding {kind!r} has values of {size} bytes, not {expected}"
                raise ManifestError(where, problem)
        columns = SampleColumns(found)
        if columns.unsafe and not self._allow_unsafe_types:
            raise UnsafeDataError(
                f"{where}: the values of column {', '.join(columns.unsafe)} are pickled",
                "allow_unsafe_types=True",
                "leave them out with columns=[...]",
            )
        return columns

    def _encoding(self, column: str, kind: str, where: str) -> Encoding:
        if kind in self._own:
            return self._own[kind]
        try:
            return encoding(kind)
        except OptionError:
            problem = (
                f"column {column!r} has the encoding {kind!r}, which is none of Streaming's; pass your Encoding of "
            )
            raise ManifestError(where, f"{problem}that name in encodings=[...], or leave the column out") from None


class _Unread:
    """Stands for the encoding of a column that is passed over."""

    def __init__(self, name: str, size: int | None) -> None:
        self.name, self.size = name, size

    def encode(self, value: Any) -> NoReturn:
        raise NotImplementedError

    def decode(self, data: memoryview) -> NoReturn:
        raise NotImplementedError


def columns_of(entry: ShardEntry) -> dict[str, str]:
    """Name and encoding of each column."""
    if isinstance(entry, JsonEntry):
        return dict(sorted(entry.columns.items()))
    return dict(zip(entry.column_names, entry.column_encodings, strict=True))
