"""What becomes of a row: the records that a target's writer appends."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import FieldError
from headrace.formats.documents import DocumentJsonFormat
from headrace.preparation.rows.columns import coercer, plain
from headrace.preparation.rows.splits import Row, Rows, RowSplit

__all__ = ["Form", "PackedJsonFormat", "RowRecords"]

Form = Literal["columns", "bytes", "array", "json", "line"]

_AS_JSON = DocumentJsonFormat()


class PackedJsonFormat(DocumentJsonFormat):
    """DocumentJsonFormat whose records are JSON already."""

    def pack(self, data: bytes) -> bytes:
        """The record itself."""
        return data


@dataclass(frozen=True)
class RowRecords:
    """make_records for `prepare`: the records of a split of rows.

    columns are those to keep, with the encoding into which values are brought, or None where they stay as they are;
    None keeps all. What a record is, is its form:

        columns   a dict of these columns
        bytes     the value of the one column, text in UTF-8
        array     the same, an array
        json      the JSON of the row, or, if `single`, of the value of the one column
        line      the JSON of the row, and a line end
    """

    form: Form
    columns: tuple[tuple[str, str | None], ...] | None = None
    closed: bool = False  # whether a row with other columns is refused
    single: bool = False

    def __call__(self, split: RowSplit) -> "_Records":
        """The records, which can say where the last one came from."""
        names = None if self.columns is None else [name for name, _ in self.columns]
        return _Records(Rows(split, names), self._record())

    def _record(self) -> Callable[[Row], Any]:
        select = self._select()
        match self.form:
            case "columns":
                return select
            case "line":
                return lambda row: _json_row(select(row)) + b"\n"
            case "json" if not self.single:
                return lambda row: _json_row(select(row))
        assert self.columns is not None
        ((name, _),) = self.columns
        match self.form:
            case "bytes":
                return lambda row: _utf8(select(row)[name])
            case "array":
                return lambda row: select(row)[name]
            case _:
                return lambda row: _json_value(name, select(row)[name])

    def _select(self) -> Callable[[Row], Row]:
        if self.columns is None:
            return lambda row: row
        plan = [
            (name, _same if encoding is None else coercer(name, encoding), encoding is None, encoding == "json")
            for name, encoding in self.columns
        ]
        known = {name for name, _ in self.columns}
        closed = self.closed

        def select(row: Row) -> Row:
            record = {}
            for name, coerce, optional, nullable in plan:
                if name in row:
                    record[name] = coerce(row[name])
                elif nullable:
                    record[name] = None
                elif not optional:
                    raise FieldError(name, f"is missing; --columns {name}=json takes that for null")
            if closed and not row.keys() <= known:
                _refuse_unknown(row, known)
            return record

        return select


class _Records:
    def __init__(self, rows: Rows, record: Callable[[Row], Any]) -> None:
        self._rows = rows
        self._record = record

    def __iter__(self) -> Iterator[Any]:
        return map(self._record, self._rows)

    def where(self) -> str:
        """The file and line, or row, of the last record."""
        return self._rows.where()


def _same(value: Any) -> Any:
    return value


def _refuse_unknown(row: Row, known: set[str]) -> None:
    name = next(name for name in row if name not in known)
    raise FieldError(
        name, "is in none of the first rows, from which the columns follow; name those to keep with --columns"
    )


def _utf8(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _json_row(row: Row) -> bytes:
    try:
        return _AS_JSON.pack(plain(row))
    except (FieldError, TypeError, RecursionError):
        for name, value in row.items():
            _json_value(name, value)
        raise


def _json_value(name: str, value: Any) -> bytes:
    try:
        return _AS_JSON.pack(plain(value))
    except FieldError as error:
        raise FieldError(name, error.problem) from None
    except (TypeError, RecursionError) as error:
        raise FieldError(name, str(error)) from None
