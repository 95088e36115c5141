"""Streams with metadata: every run of elements (a span) points at a payload of its own (GuideLoom's layout).

    NNNNNNN.in_band.bin           (int32 payload number, element) | (int32 payload number, element) | ...
    NNNNNNN.out_of_band.bin       payload 0 | payload 1 | ...
    NNNNNNN.out_of_band.index     where each payload begins, as for documents

Payloads are numbered from 0 in each shard. The two payload files are absent while a shard has no element.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import FieldError, ManifestError
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentFormat,
    Payload,
    document_format,
    document_schema,
    payload_bytes,
    reads_in_place,
)
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat, disk_dtype, stands_for, stored_elements
from headrace.manifest import JsonType, dtype_from_json, dtype_to_json

__all__ = [
    "AnnotatedFormat",
    "SpanFormat",
    "SpanNumpyFormat",
    "Spans",
    "annotated_dtype",
    "annotated_schema",
    "packed_spans",
    "span_format",
]

Elements = NDArray[Any]


@runtime_checkable
class AnnotatedFormat(Protocol):
    """GuideLoom's protocol: one step an element. `SpanFormat` is the fast one; an object may mix both."""

    stream_dtype: np.dtype[Any]

    def size(self, data: Any) -> int:
        """How many elements the record has."""
        ...

    def pack(self, data: Any) -> Generator[tuple[Any, Payload | None], None, Elements]:
        """Yields one (key, payload) for each element and returns the elements.

        Where the key changes a span begins, and its payload is stored; elsewhere the payload is not looked at. A key
        that was left does not come back in the same record.
        """
        ...

    def unpack(
        self,
        stream_data: Elements,
        document_shard: NDArray[np.int64],
        document_index: NDArray[np.int32],
        document_data: list[memoryview],
    ) -> Any:
        """The sample of one window.

        Element k belongs to payload document_data[document_index[k]], which lies in shard
        document_shard[document_index[k]]. A window that runs on into another shard begins a new entry there.
        """
        ...


@runtime_checkable
class SpanFormat(Protocol):
    """Records and windows as spans: runs of elements that share a payload. No Python step an element."""

    stream_dtype: np.dtype[Any]

    def pack_spans(self, data: Any) -> tuple[NDArray[Any], Sequence[Payload], Elements]:
        """(span_lengths, payloads, stream): the integers add up to len(stream), each at least 1, one payload a span."""
        ...

    def unpack_spans(self, stream: Elements, span_lengths: NDArray[np.int64], payloads: Sequence[memoryview]) -> Any:
        """The sample of one window: its elements, and length and payload of each span in it.

        Spans cut by the window's ends have the length that lies inside. stream may be strided; it is writable.
        """
        ...


class SpanNumpyFormat:
    """Records and samples are dicts: the stream's columns, `span_lengths`, and `payloads`, one a span.

    stream_dtype is as for StreamNumpyFormat, or a plain type, whose column is then called "tokens". payload says what
    payloads are, as a format of documents: DocumentNumpyFormat("<i4") for integer arrays, DocumentJsonFormat() for JSON
    objects; bytes if left out. Its unpack() always gets shard 0. What was appended in one record may be read in windows
    that cut it anywhere.
    """

    def __init__(self, stream_dtype: DTypeLike, payload: DocumentFormat | None = None) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype(stream_dtype)
        self.payload: DocumentFormat = DocumentBytesFormat() if payload is None else payload
        if isinstance(payload, type) or not isinstance(self.payload, DocumentFormat):
            raise TypeError(
                f"payload must be a format of documents, such as DocumentNumpyFormat('<i4'), not {payload!r}"
            )
        if self.stream_dtype.names is None:
            self._names: tuple[str, ...] = ("tokens",)
            self._stream: StreamNumpyFormat | StreamArrayFormat = StreamArrayFormat(self.stream_dtype)
        else:
            self._names = self.stream_dtype.names
            self._stream = StreamNumpyFormat(self.stream_dtype)
            if taken := {"span_lengths", "payloads"} & set(self._names):
                raise ValueError(f"the stream's field {taken.pop()!r} has the name of what samples have beside it")

    def __repr__(self) -> str:
        disk = disk_dtype(self.stream_dtype)
        return f"SpanNumpyFormat({disk.str if disk.names is None else disk.descr!r}, payload={self.payload!r})"

    def pack_spans(self, data: Mapping[str, Any]) -> tuple[NDArray[Any], Sequence[Payload], Elements]:
        """data's columns as elements and its payloads as bytes; FieldError names what does not fit."""
        for name in ("span_lengths", "payloads", *self._names):
            if name not in data:
                raise FieldError(name, f"is missing; the record has {', '.join(map(repr, data)) or 'no fields'}")
        stream = self._stream.pack(data if isinstance(self._stream, StreamNumpyFormat) else data["tokens"])
        payloads = []
        for number, payload in enumerate(data["payloads"]):
            try:
                payloads.append(self.payload.pack(payload))
            except FieldError as error:
                raise FieldError("payloads", error.problem, f"payload {number}") from error
        return _span_lengths(data["span_lengths"]), payloads, stream

    def unpack_spans(
        self, stream: Elements, span_lengths: NDArray[np.int64], payloads: Sequence[memoryview]
    ) -> dict[str, Any]:
        """The columns as views, span_lengths, and the decoded payloads."""
        unpack = self.payload.unpack
        given: type = memoryview if reads_in_place(self.payload) else bytearray
        sample: dict[str, Any] = (
            {"tokens": stream} if self.stream_dtype.names is None else {name: stream[name] for name in self._names}
        )
        sample["span_lengths"] = span_lengths
        sample["payloads"] = [unpack(given(payload), 0) for payload in payloads]
        return sample


class Spans(NamedTuple):
    """A record that was found in order: what is written, and nothing left to check."""

    lengths: NDArray[np.int64]  # (num_spans,) elements of each, at least 1
    payloads: list[Payload]  # one a span, single bytes
    stream: Elements  # (num_elements,), little endian


def packed_spans(storage_format: AnnotatedFormat | SpanFormat, data: Any) -> Spans:
    """The record's spans, by pack_spans() where the format has it. FieldError for a promise that pack() broke."""
    disk = disk_dtype(storage_format.stream_dtype)
    if stands_for(storage_format, "pack_spans", "pack"):
        found = cast(SpanFormat, storage_format).pack_spans(data)
        try:
            lengths, payloads, stream = found
            payloads = list(payloads)
        except (TypeError, ValueError):
            raise FieldError("record", "pack_spans() must return (span_lengths, payloads, stream)") from None
        return _checked(lengths, payloads, stored_elements(stream, disk))
    return _walked(cast(AnnotatedFormat, storage_format), data, disk)


def annotated_dtype(stream_dtype: np.dtype[Any]) -> np.dtype[Any]:
    """An element as it is on disk, payload number first; packed."""
    return np.dtype([("index", "<i4"), ("user", disk_dtype(stream_dtype))])


def annotated_schema(storage_format: AnnotatedFormat | SpanFormat) -> JsonType:
    """What a manifest says of both: {"elements": element type, "payloads": schema of documents}."""
    payload = getattr(storage_format, "payload", None)
    return {
        "elements": dtype_to_json(disk_dtype(storage_format.stream_dtype)),
        "payloads": document_schema(payload) if isinstance(payload, DocumentFormat) else None,
    }


def span_format(schema: JsonType, where: str) -> SpanNumpyFormat:
    """The format that reads what this schema describes; ManifestError when it makes no sense."""
    match schema:
        case {"elements": elements, "payloads": payloads, **rest} if not rest:
            try:
                return SpanNumpyFormat(dtype_from_json(elements, where), document_format(payloads, where))
            except ValueError as error:
                raise ManifestError(where, f"{schema!r} describes no stream with metadata ({error})") from None
    raise ManifestError(where, f"{schema!r} describes no stream with metadata")


def _checked(lengths: Any, payloads: Sequence[Any], stream: Elements) -> Spans:
    lengths = _span_lengths(lengths)
    if len(lengths) != len(payloads):
        raise FieldError("payloads", f"there are {len(payloads)} for {len(lengths)} spans")
    if len(lengths) and int(lengths.min()) < 1:
        place = int(lengths.argmin())
        raise FieldError(
            "span_lengths", f"span {place} has {lengths[place]} elements, but nothing can point at it then"
        )
    if (total := sum(lengths.tolist())) != len(stream):  # Python's integers do not wrap
        raise FieldError("span_lengths", f"they add up to {total}, but the stream has {len(stream)} elements")
    return Spans(lengths.astype(np.int64), [payload_bytes(payload, "payloads") for payload in payloads], stream)


def _span_lengths(given: Any) -> NDArray[Any]:
    try:
        lengths = np.asarray(given)
    except ValueError as error:
        raise FieldError("span_lengths", f"is not rectangular ({error})") from None
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise FieldError("span_lengths", f"must be a list of integers, not {lengths.dtype} of shape {lengths.shape}")
    return lengths


def _walked(storage_format: AnnotatedFormat, data: Any, disk: np.dtype[Any]) -> Spans:
    """GuideLoom's way: one step an element."""
    size = storage_format.size(data)
    starts: list[int] = []
    payloads: list[Payload] = []
    seen: set[Any] = set()
    unset = key = object()
    count = 0
    pairs = storage_format.pack(data)
    if not isinstance(pairs, Generator):
        raise FieldError("record", f"pack() must be a generator, not {type(pairs).__name__}")
    while True:
        try:
            pair = next(pairs)
        except StopIteration as end:
            returned = end.value
            break
        if count == size:
            raise FieldError("record", f"pack() yields more pairs than the {size} that size() promised")
        new, payload = _pair(pair, count)
        if key is unset or new != key:
            _refuse_key(new, seen, payload, count)
            seen.add(new)
            key = new
            starts.append(count)
            # Copied, since pack() may fill the same buffer again before its next yield, as it may for GuideLoom.
            payloads.append(bytes(payload_bytes(payload, "record")))
        count += 1
    if count != size:
        raise FieldError("record", f"pack() yielded {count} pairs, but size() promised {size}")
    if returned is None:
        raise FieldError("record", "pack() returned nothing; it must `return` the elements after its last `yield`")
    stream = stored_elements(returned, disk)
    if len(stream) != size:
        raise FieldError("record", f"pack() returned {len(stream)} elements, but size() promised {size}")
    edges = np.array([*starts, size], np.int64)
    return Spans(edges[1:] - edges[:-1], payloads, stream)


def _pair(given: Any, count: int) -> tuple[Any, Any]:
    try:
        key, payload = given
    except (TypeError, ValueError):
        raise FieldError("record", f"pack() yielded {given!r} at element {count}, not (key, payload)") from None
    return key, payload


def _refuse_key(key: Any, seen: set[Any], payload: Payload | None, count: int) -> None:
    try:
        came_back = key in seen
    except TypeError:
        raise FieldError("record", f"key {key!r} at element {count} cannot be hashed") from None
    if came_back:
        raise FieldError("record", f"key {key!r} came back at element {count} after another one")
    if payload is None:
        raise FieldError("record", f"key {key!r} begins at element {count} without a payload")
