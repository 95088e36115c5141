"""Rows of streams: windows of a plain stream, spans of one with metadata."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.datasets import StreamReader, StreamStorage, StreamWithMetaStorage
from headrace.errors import InputError
from headrace.formats.annotated import SpanNumpyFormat, span_format
from headrace.formats.documents import DocumentNumpyFormat, DocumentPickleFormat
from headrace.manifest import dtype_from_json
from headrace.preparation.rows.columns import Columns
from headrace.preparation.rows.splits import Observer, Row

__all__ = ["CHANGED", "PICKLED", "SpanSource", "WindowSource", "element_columns", "span_source", "window_source"]

CHANGED = "changed since it was cut into splits; run the preparation again"
PICKLED = "are pickled, and reading them can run any code that is in them; they are not converted"
_PAYLOAD = "payload"
_TOKENS = "tokens"
_CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class WindowSource:
    """A token stream. Places are windows of sequence_length elements, the last one shorter."""

    name: str  # its path
    fingerprint: str
    size_bytes: int
    total_length: int  # elements
    sequence_length: int
    can_be_cut = has_schema = True

    @property
    def length(self) -> int:
        """How many windows."""
        return -(-self.total_length // self.sequence_length)

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The places themselves."""
        return list(places)

    def columns(self) -> Columns:
        """The fields of an element."""
        return element_columns(_stream_dtype(StreamStorage(self.name), self.name), _TOKENS)

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(number, row) of the windows start to stop, exclusive."""
        with _unchanged(StreamStorage(self.name), self) as reader:
            for place in range(start, stop):
                begin = place * self.sequence_length
                end = min(begin + self.sequence_length, self.total_length)
                window = reader.read(begin, end - begin)
                yield place, window if isinstance(window, dict) else {_TOKENS: window}
                if observer is not None:
                    observer(self.size_bytes * (end - begin) // self.total_length)

    def where(self, place: int) -> str:
        """The directory and the first element of the window."""
        return f"{self.name}, element {place * self.sequence_length}"


def window_source(path: Path, storage: StreamStorage, sequence_length: int | None) -> WindowSource:
    """The rows of a stream. InputError without sequence_length, and where the type of elements is not recorded."""
    _stream_dtype(storage, str(path))
    if sequence_length is None:
        raise InputError(
            str(path),
            "is one stream; say with --sequence-length how many elements make a row (the last one is shorter)",
        )
    with storage.sync_reader() as reader:
        total_length = reader.total_length
    return WindowSource(str(path), *_fingerprint_and_size(storage), total_length, sequence_length)


def _stream_dtype(storage: StreamStorage, where: str) -> np.dtype[Any]:
    opened = storage.open()
    if not opened.by_headrace:
        raise InputError(where, "does not record the type of its elements, so they cannot be converted")
    return dtype_from_json(opened.manifest.dtype, where)


@dataclass(frozen=True)
class SpanSource:
    """A stream with metadata. Places are elements; rows are spans."""

    name: str  # its path
    fingerprint: str
    size_bytes: int
    length: int  # elements
    can_be_cut = has_schema = True

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The next span at or behind each place."""
        with StreamWithMetaStorage(self.name).sync_reader() as reader:
            found: list[int] = []
            for place in places:
                passed = bool(found) and place <= found[-1]
                found.append(found[-1] if passed else self._span_from(reader, place))
            return found

    def columns(self) -> Columns:
        """The fields of an element, and the type of a payload."""
        storage_format = _span_format(StreamWithMetaStorage(self.name), self.name)
        found = element_columns(storage_format.stream_dtype, _TOKENS)
        match storage_format.payload:
            case DocumentNumpyFormat(dtype=dtype) if dtype.names is None:
                found[_PAYLOAD] = f"ndarray:{dtype.name}"
            case payload:
                found[_PAYLOAD] = "json" if getattr(payload, "encoding", None) == "json" else "bytes"
        return found

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(first element, row) of the spans from start to stop."""
        held: list[Row] = []  # the pieces of a span that may go on
        held_place = start
        with _unchanged(StreamWithMetaStorage(self.name), self) as reader:
            for begin in range(start, stop, _CHUNK_ELEMENTS):
                end = min(begin + _CHUNK_ELEMENTS, stop)
                for place, goes_on, piece in _pieces(reader, begin, end, start):
                    if held and not goes_on:
                        yield held_place, _joined(held)
                        held = []
                    held_place = held_place if held else place
                    held.append(piece)
                if observer is not None:
                    observer(self.size_bytes * (end - begin) // self.length)
        if held:
            yield held_place, _joined(held)

    def where(self, place: int) -> str:
        """The directory and the first element of the span."""
        return f"{self.name}, element {place}"

    def _span_from(self, reader: StreamReader, place: int) -> int:
        if place == 0:
            return 0
        begin = place - 1  # when a span ends with the element before, place itself begins one
        while begin < self.length:
            count = min(_CHUNK_ELEMENTS, self.length - begin)
            lengths = reader.read(begin, count)["span_lengths"]
            if len(lengths) > 1:
                return begin + int(lengths[0])
            begin += max(count - 1, 1)
        return self.length


def span_source(path: Path, storage: StreamWithMetaStorage) -> SpanSource:
    """The rows of a stream with metadata. InputError for pickled payloads, and where no types are recorded."""
    storage_format = _span_format(storage, str(path))
    if isinstance(storage_format.payload, DocumentPickleFormat):
        raise InputError(str(path), f"its payloads {PICKLED}")
    if _PAYLOAD in (storage_format.stream_dtype.names or ()):
        raise InputError(str(path), f"its elements have a field {_PAYLOAD!r}, which is the name of the payload here")
    with storage.sync_reader() as reader:
        length = reader.total_length
    return SpanSource(str(path), *_fingerprint_and_size(storage), length)


def _span_format(storage: StreamWithMetaStorage, where: str) -> SpanNumpyFormat:
    opened = storage.open()
    if not opened.by_headrace:
        raise InputError(where, "does not record the type of its elements, so they cannot be converted")
    return span_format(opened.manifest.dtype, where)


def _pieces(reader: StreamReader, begin: int, end: int, start: int) -> Iterator[tuple[int, bool, Row]]:
    """(place, whether it goes on with the piece before, piece) of the spans between begin and end, cut there."""
    back = 1 if begin > start else 0  # one element more tells whether the first span began before
    window = reader.read(begin - back, end - begin + back)
    lengths, payloads = window.pop("span_lengths"), window.pop("payloads")
    stop = 0
    for length, payload in zip(lengths.tolist(), payloads, strict=True):
        first, stop = max(stop, back), stop + length
        goes_on = stop - length < back
        if first < stop:
            piece = {name: values[first:stop] for name, values in window.items()}
            yield begin - back + first, goes_on, {**piece, _PAYLOAD: payload}


def _joined(pieces: list[Row]) -> Row:
    if len(pieces) == 1:
        return pieces[0]
    return {
        name: value if name == _PAYLOAD else np.concatenate([piece[name] for piece in pieces])
        for name, value in pieces[0].items()
    }


def element_columns(dtype: np.dtype[Any], plain: str) -> Columns:
    """The fields of a structured type; of a plain one the name it is given."""
    if dtype.names is None:
        return {plain: f"ndarray:{dtype.name}"}
    return {name: f"ndarray:{dtype[name].base.name}" for name in dtype.names}


def _fingerprint_and_size(storage: StreamStorage | StreamWithMetaStorage) -> tuple[str, int]:
    opened = storage.open()
    return storage.fingerprint_of(opened), opened.manifest.total_bytes


@contextmanager
def _unchanged(
    storage: StreamStorage | StreamWithMetaStorage, source: WindowSource | SpanSource
) -> Iterator[StreamReader]:
    """A reader of the dataset, if it is the one that was cut."""
    if storage.fingerprint_of(storage.open()) != source.fingerprint:
        raise InputError(source.name, CHANGED)
    with storage.sync_reader() as reader:
        yield reader
