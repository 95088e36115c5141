"""Rows of Arrow tables, and of Parquet files, which are read as such.

Numbers, booleans, text and bytes are Python's; lists of numbers are arrays; nested values are lists and dicts. Dates
and times are text as Arrow writes it. A struct of `bytes` and `path`, which is how Hugging Face stores images and
sound, is the file's bytes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace.preparation.rows.columns import FOREIGN, Columns
from headrace.preparation.rows.splits import Observer, Row
from headrace.preparation.sources import Piece, stated

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = [
    "BATCH_BYTES",
    "MEDIA_SAMPLED",
    "ParquetSource",
    "batch_rows",
    "media_columns",
    "parquet_source",
    "rows_of_batch",
    "table_columns",
]

BATCH_BYTES = 16 << 20
MEDIA_SAMPLED = 100
_BATCH_ROWS = 1024
_MEDIA = "media"
_TESTS = {  # pyarrow.types.is_*, in this order
    "uint64": ("uint64",),
    "int": ("integer",),
    "float64": ("floating",),
    "str": ("string", "large_string", "string_view", "date", "time", "timestamp"),
    "bytes": ("binary", "large_binary", "fixed_size_binary", "binary_view"),
    "str_decimal": ("decimal",),
    "null": ("null",),
}
_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


def table_columns(
    schema: "pa.Schema", name: str, nullable: set[str], first: "pa.RecordBatch | pa.Table | None"
) -> Columns:
    """The columns of a table with this schema; `json` for scalars that are null somewhere.

    first holds the media_columns() of some of its rows, by which images are told apart. InputError for a column that is
    there twice. A column of a type that has no form outside Arrow gets FOREIGN and the name of that type.
    """
    found: Columns = {}
    for field in schema:
        if field.name in found:
            raise InputError(name, f"has two columns {field.name!r}")
        encoding = _encoding(field.type)
        if encoding == _MEDIA:
            encoding = _media_kind([] if first is None else _values(first.column(field.name)))
        elif field.name in nullable and encoding in ("int", "uint64", "float64", "str"):
            encoding = "json"
        found[field.name] = encoding
    return found


def media_columns(schema: "pa.Schema") -> list[str]:
    """The columns that hold files."""
    return [field.name for field in schema if _encoding(field.type) == _MEDIA]


def batch_rows(num_rows: int, num_bytes: int) -> int:
    """How many rows to read at once: about BATCH_BYTES of them, 1 to 1,024."""
    return max(1, min(_BATCH_ROWS, BATCH_BYTES * num_rows // max(num_bytes, 1)))


def rows_of_batch(batch: "pa.RecordBatch | pa.Table", names: Sequence[str] | None) -> Iterator[Row]:
    """The rows of a batch, the named columns only."""
    wanted = [name for name in batch.schema.names if names is None or name in names]
    columns = [_values(batch.column(name)) for name in wanted]
    if not columns:
        return ({} for _ in range(batch.num_rows))
    return (dict(zip(wanted, values, strict=True)) for values in zip(*columns, strict=True))


def _encoding(type_: "pa.DataType") -> str:
    """What a column of this type is: an encoding, _MEDIA, or FOREIGN and the type's name where there is none."""
    import pyarrow.types as is_

    type_ = _storage_type(type_)
    if is_.is_struct(type_) and _is_media(type_):
        return _MEDIA
    if is_.is_list(type_) or is_.is_large_list(type_) or is_.is_fixed_size_list(type_):
        inner = type_.value_type
        if is_.is_integer(inner) or is_.is_floating(inner):
            return f"ndarray:{inner.to_pandas_dtype().__name__}"
    for encoding, names in _TESTS.items():
        if any(getattr(is_, f"is_{name}")(type_) for name in names):
            return encoding
    return "json" if _is_json(type_) else f"{FOREIGN}{type_}"


def _is_json(type_: "pa.DataType") -> bool:
    import pyarrow.types as is_

    type_ = _storage_type(type_)
    if is_.is_map(type_) and not is_.is_string(_storage_type(type_.key_type)):
        return False  # objects of JSON have names alone, and 1 would come back as "1"
    if is_.is_nested(type_):
        return all(_is_json(type_.field(k).type) for k in range(type_.num_fields))
    tests = (is_.is_boolean, is_.is_integer, is_.is_floating, is_.is_string, is_.is_large_string, is_.is_null)
    return any(test(type_) for test in tests)


def _storage_type(type_: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if isinstance(type_, pa.BaseExtensionType):
        return _storage_type(type_.storage_type)
    return _storage_type(type_.value_type) if pa.types.is_dictionary(type_) else type_


def _is_media(type_: "pa.StructType") -> bool:
    import pyarrow.types as is_

    if {field.name for field in type_} != {"bytes", "path"}:
        return False
    return bool(is_.is_binary(type_.field("bytes").type) or is_.is_large_binary(type_.field("bytes").type))


def _media_kind(files: list[Any]) -> str:
    """`jpeg` or `png` where all are files of that kind, else `bytes`."""
    for encoding, magic in _MAGIC.items():
        if files and all(file is not None and file.startswith(magic) for file in files):
            return encoding
    return "bytes"


def _values(column: "pa.Array | pa.ChunkedArray") -> list[Any]:
    """The values of a column, one a row."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _values(chunk)]
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    match _encoding(column.type):
        case "media":  # a file that is elsewhere, by its path alone, is a null
            return [None if value is None else value["bytes"] for value in column.to_pylist()]
        case "str" if not pa.types.is_string(column.type):
            return _texts(column)
        case encoding if encoding.startswith("ndarray:") and not _has_nulls(column):
            return _arrays(column)
    return list(column.to_pylist(maps_as_pydicts="strict") if pa.types.is_nested(column.type) else column.to_pylist())


class NoDate:
    """Stands for a date that Arrow cannot write. Nothing takes it, so that it is refused, with its row."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _texts(column: "pa.Array") -> list[Any]:
    """Dates, times and strings of any kind as text."""
    import pyarrow as pa

    def written(values: "pa.Array") -> list[Any]:
        texts: list[Any] = values.cast(pa.large_string()).to_pylist()
        return texts

    texts = written(column)
    if not pa.types.is_temporal(column.type):
        return texts
    # For a date that it cannot write, Arrow has the text <value out of range: 9223372036854775807>; but where there is
    # a time zone, it writes some other date.
    is_zoned = pa.types.is_timestamp(column.type) and column.type.tz is not None
    checked = written(column.view(pa.timestamp(column.type.unit))) if is_zoned else texts
    return [
        NoDate(found) if found is not None and found.startswith("<") else text
        for text, found in zip(texts, checked, strict=True)
    ]


def _has_nulls(column: "pa.Array") -> bool:
    return bool(column.null_count or column.flatten().null_count)


def _arrays(column: "pa.Array") -> list[Any]:
    """An array a row, copied from the batch, so that none of them keeps it in memory."""
    import pyarrow as pa

    values = column.flatten().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(column.type):
        return [row.copy() for row in values.reshape(len(column), column.type.list_size)]
    offsets = column.offsets.to_numpy()
    offsets = (offsets - offsets[0]).tolist() if len(offsets) else []
    return [values[begin:end].copy() for begin, end in pairwise(offsets)]


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file. Places are rows; borders between splits prefer borders of row groups."""

    file: Piece
    length: int  # rows
    can_be_cut = has_schema = True

    @property
    def name(self) -> str:
        """Its path."""
        return self.file.path

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self.file.size_bytes

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The places themselves; or the border of a row group, if it is nearer than half the way to the next place."""
        with _opened(self.file) as file:
            borders = _group_starts(file)
        reach = self.length // (2 * len(places) + 2)
        nearest = [min(borders, key=lambda border: abs(border - place)) for place in places]
        return [
            border if abs(border - place) <= reach else place for border, place in zip(nearest, places, strict=True)
        ]

    def columns(self) -> Columns:
        """By the file's schema and its counts of nulls."""
        with _opened(self.file) as file:
            schema, metadata = file.schema_arrow, file.metadata
            nullable = set()
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                for column in map(group.column, range(group.num_columns)):
                    if column.statistics is not None and column.statistics.null_count:
                        nullable.add(column.path_in_schema)
            media = media_columns(schema)
            first = next(file.iter_batches(MEDIA_SAMPLED, columns=media), None) if media else None
            return table_columns(schema, self.name, nullable, first)

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(number, row) of the rows start to stop; InputError for a damaged file."""
        with _opened(self.file) as file:
            metadata = file.metadata
            starts = _group_starts(file)
            groups = [g for g in range(len(starts) - 1) if starts[g] < stop and start < starts[g + 1]]
            place = starts[groups[0]] if groups else start
            size_bytes = sum(metadata.row_group(group).total_byte_size for group in groups)
            num_rows = sum(metadata.row_group(group).num_rows for group in groups)
            wanted = None if names is None else [name for name in file.schema_arrow.names if name in names]
            for batch in file.iter_batches(batch_rows(num_rows, size_bytes), groups, wanted):
                skipped = min(max(start - place, 0), batch.num_rows)
                batch, place = batch.slice(skipped, stop - place - skipped), place + skipped
                yield from enumerate(rows_of_batch(batch, wanted), place)
                place += batch.num_rows
                if observer is not None and batch.num_rows:
                    observer(self.size_bytes * batch.num_rows // self.length)
                if place >= stop:
                    return

    def where(self, place: int) -> str:
        """The file and the row's number, from 0."""
        return f"{self.name}, row {place} (the first one is 0)"


def parquet_source(path: str) -> ParquetSource:
    """The rows of a Parquet file; InputError for a file that is none, ImportError without PyArrow."""
    piece = stated(path)
    with _opened(piece) as file:
        return ParquetSource(piece, file.metadata.num_rows)


@contextmanager
def _opened(piece: Piece) -> Iterator["pq.ParquetFile"]:
    """The file, open; what Arrow finds wrong with it in the `with` block becomes InputError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError("reading Parquet needs the package pyarrow; pip install 'headrace[parquet]'") from None
    stat = os.stat(piece.path)
    if (stat.st_size, stat.st_mtime_ns) != (piece.size_bytes, piece.modified_ns):
        raise InputError(piece.path, "changed since it was cut into splits; run the preparation again")
    try:
        with pq.ParquetFile(piece.path, memory_map=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise InputError(piece.path, f"is damaged, or no Parquet file ({error})") from None


def _group_starts(file: "pq.ParquetFile") -> list[int]:
    """The first row of each row group, and the number of rows."""
    groups = range(file.metadata.num_row_groups)
    return list(accumulate((file.metadata.row_group(group).num_rows for group in groups), initial=0))
