"""Rows of CSV and TSV (RFC 4180): a header line, fields in quotes where they hold delimiters, quotes or line breaks.

A plain file is cut where records begin. Whether a byte lies inside quotes depends on all quotes before it, and on
nothing else: a file is read through once, counting them. So a quote may stand only where the format allows it, which
the reader checks in every record.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from headrace.errors import InputError, OptionError
from headrace.preparation.blocks import blocks_of, line_error, line_of, lines_of, text_of
from headrace.preparation.rows.columns import SAMPLED_ROWS, Columns
from headrace.preparation.rows.splits import Observer, Row
from headrace.preparation.rows.text_file import TextFile
from headrace.preparation.sources import Piece, next_record

__all__ = ["CsvSource", "checked_delimiter", "text_columns"]

_BLOCK_BYTES = 1 << 20
_LONGEST_RECORD_BYTES = 1 << 28  # a quote that is never closed would make one record of the rest of the file
_INT = re.compile(r"0|-?[1-9][0-9]{0,17}|-?[1-8][0-9]{18}")  # not 007, which is a name; and nothing beyond 64 bits
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][+-]?[0-9]{1,2})?|[eE][+-]?[0-9]{1,2})")
_DECIMAL_CHARS = 24  # of 17 digits, which is what a float64 can have; more look like something else
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NAME = re.compile(r"\+[0-9]+|[+-]?0[0-9]+")  # a number to float(), but to people a code, or a telephone
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)

Parse = Callable[[str], Any]


@dataclass(frozen=True)
class CsvSource(TextFile):
    """A file of delimited text. `types` says what the fields of a column are read as: text where it says nothing.

    Of the columns that are `guessed` nobody has said that they are numbers: there 007 is refused, and not read as 7.
    """

    delimiter: str = ","
    quotes: bool = True
    types: Columns = field(default_factory=dict, hash=False)
    guessed: tuple[str, ...] = ()
    has_schema = True

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The next record at or behind each place; of a compressed file the nearer end."""
        if not self.can_be_cut:
            return [0 if 2 * place < self.length else self.length for place in places]
        if not self.quotes:
            return [next_record(self.file, place) for place in places]
        with open(self.file.path, "rb") as file:
            scan = _Scan(file)
            return [scan.record_from(place) for place in places]

    def columns(self) -> Columns:
        """By the header, and by how the fields of the first 100 records look: `int`, `float64`, or else `str`."""
        untyped = replace(self, types={})
        rows = [row for _, row in islice(untyped.rows(0, self.length, None, None), SAMPLED_ROWS)]
        return {name: _type_of([row[name] for row in rows]) for name in self._header()[1]}

    def typed(self, types: Columns, guessed: Iterable[str] = ()) -> "CsvSource":
        """The same file with its fields read as these types; OptionError for one that no text can be read as."""
        for encoding in types.values():
            _parser(encoding)
        return replace(self, types=types, guessed=tuple(guessed))

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(offset in the decompressed file, fields by name) of each record that is not blank.

        InputError for a record with more or fewer fields than the header, for a field that is not of its column's type,
        and for a quote where none may be.
        """
        header_offset, header = self._header()
        types = {name: self.types.get(name, "str") for name in header}
        parsers = [
            (name, (_GUESSED if name in self.guessed else {}).get(encoding) or _parser(encoding))
            for name, encoding in types.items()
            if encoding != "str"
        ]
        piece = replace(self.file, start=start, stop=stop)
        for offset, record in self._records(piece, observer):
            if offset == header_offset or not record.strip(b"\r\n"):
                continue
            fields = self._fields(piece, offset, record)
            if len(fields) != len(header):
                raise line_error(piece, offset, f"has {len(fields)} fields, but the header has {len(header)}")
            row: Row = dict(zip(header, fields, strict=True))
            for name, parse in parsers:
                try:
                    row[name] = parse(row[name])
                except ValueError:
                    raise line_error(piece, offset, _unfit(name, row[name], self.types[name])) from None
            yield offset, row

    def where(self, place: int) -> str:
        """The file and the number of the line on which the record begins."""
        return line_of(self.file, place)

    def _header(self) -> tuple[int, list[str]]:
        """(its offset, the names); InputError where there is none, or a name twice."""
        for offset, record in self._records(self.file, None):
            if not record.strip(b"\r\n"):
                continue
            names = self._fields(self.file, offset, record)
            if twice := {name for name in names if names.count(name) > 1}:
                raise line_error(self.file, offset, f"the header names {sorted(twice)[0]!r} twice")
            return offset, names
        raise InputError(self.file.path, "has no header line")

    def _records(self, piece: Piece, observer: Observer | None) -> Iterator[tuple[int, bytes]]:
        """(offset, record with its line end): a line, or as many as it takes to close the quotes."""
        lines = lines_of(piece, blocks_of(piece, observer))
        if not self.quotes:
            yield from lines
            return
        for offset, line in lines:
            yield offset, line if line.count(b'"') % 2 == 0 else self._closed(piece, offset, line, lines)

    def _closed(self, piece: Piece, offset: int, line: bytes, lines: Iterator[tuple[int, bytes]]) -> bytes:
        parts, size_bytes = [line], len(line)
        for _, line in lines:
            parts.append(line)
            size_bytes += len(line)
            if line.count(b'"') % 2:
                return b"".join(parts)
            if size_bytes > _LONGEST_RECORD_BYTES:
                break
        raise line_error(piece, offset, "has a quote that is not closed; " + _NO_QUOTES)

    def _fields(self, piece: Piece, offset: int, record: bytes) -> list[str]:
        text = text_of(piece, offset, record.removesuffix(b"\n").removesuffix(b"\r"))
        if not self.quotes or '"' not in text:
            return text.split(self.delimiter)
        fields, begin, match = list[str](), 0, _field_pattern(self.delimiter).match
        while found := match(text, begin):
            quoted, bare, end = found.groups()
            fields.append(bare if quoted is None else quoted.replace('""', '"'))
            begin = found.end()
            if not end:
                return fields
        raise line_error(piece, offset, f"field {len(fields) + 1} has a quote in its middle; " + _NO_QUOTES)


_NO_QUOTES = "write it as two quotes in a field that stands in quotes, or pass --no-quotes if quotes are only text"


def checked_delimiter(delimiter: str) -> str:
    """The delimiter; OptionError for what cannot separate fields."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise OptionError("delimiter", delimiter, "one character that is neither a quote nor a line break")
    return delimiter


def text_columns(guesses: Sequence[str]) -> str:
    """The type for a column of several files, each of which looks like one of the guesses."""
    found = set(guesses)
    return "str" if "str" in found else "float64" if "float64" in found else "int"


def _type_of(values: list[str]) -> str:
    if values and all(_INT.fullmatch(value) for value in values):
        return "int"
    return "float64" if values and all(_looks_like_float(value) for value in values) else "str"


def _looks_like_float(text: str) -> bool:
    return bool(_INT.fullmatch(text) or (len(text) <= _DECIMAL_CHARS and _DECIMAL.fullmatch(text)))


def _parser(encoding: str) -> Parse:
    """From a field's text to a value for this encoding; the parser raises ValueError."""
    if encoding in ("int", "str_int") or encoding.startswith(("int", "uint")):
        return _parsed_int
    if encoding.startswith(("float", "str_float")):
        return _parsed_float
    match encoding:
        case "str":
            return str
        case "json":
            return _parsed_json
        case "bytes":
            return str.encode
        case "str_decimal":
            return _parsed_decimal
    raise OptionError(
        "columns", encoding, "int, float64, str, json, bytes or another scalar for a column of a CSV file"
    )


def _parsed_int(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _parsed_float(text: str) -> float:
    value = float(text) if _FLOAT.fullmatch(text) else None
    beyond = value is not None and math.isinf(value) and text[-1].isdigit()
    if value is None or beyond or (_WHOLE.fullmatch(text) and int(text) != value):
        raise ValueError(text)
    return value


def _guessed_int(text: str) -> int:
    value = _parsed_int(text)
    if str(value) != text:
        raise ValueError(text)
    return value


def _guessed_float(text: str) -> float:
    if _NAME.fullmatch(text):
        raise ValueError(text)
    return _parsed_float(text)


_GUESSED: dict[str, Parse] = {"int": _guessed_int, "float64": _guessed_float}


def _parsed_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError):
        raise ValueError(text) from None


def _parsed_decimal(text: str) -> Any:
    from decimal import Decimal, InvalidOperation

    try:
        if "_" in text or text != text.strip():  # which Decimal() skips
            raise ValueError(text)
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None


def _unfit(name: str, text: str, encoding: str) -> str:
    shown = repr(text) if len(text) <= 60 else repr(text[:57]) + "..."
    return (
        f"column {name!r} has {shown}, which is no {encoding} (its type follows from the first rows of each file, or "
        f"from --columns); --columns {name}=str keeps the text as it is"
    )


def _field_pattern(delimiter: str) -> re.Pattern[str]:
    d = re.escape(delimiter)
    return re.compile(rf'(?:"([^"]*(?:""[^"]*)*)"|([^"{d}]*))({d}|\Z)')  # re keeps compiled patterns


class _Scan:
    """Walks through a file, counting quotes, to find where records begin."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._place = 0
        self._inside = False

    def record_from(self, place: int) -> int:
        """The first place at or behind `place`, which never goes back, at which a record begins, or the file's end."""
        if place == 0 or (place <= self._place and not self._inside and self._place > 0):
            return self._place
        while self._place < place - 1 and (block := self._file.read(min(place - 1 - self._place, _BLOCK_BYTES))):
            self._inside ^= bool(block.count(b'"') % 2)
            self._place += len(block)
        self._finish_record()
        return self._place

    def _finish_record(self) -> None:
        while block := self._file.read(_BLOCK_BYTES):
            at = 0
            while True:
                quote = block.find(b'"', at)
                end = -1 if self._inside else block.find(b"\n", at, quote if quote >= 0 else None)
                if end >= 0:
                    self._place += end + 1
                    self._file.seek(self._place)
                    return
                if quote < 0:
                    break
                self._inside = not self._inside
                at = quote + 1
            self._place += len(block)
