"""Documents: payloads of any length back to back, and where each begins (GuideLoom's layout).

    NNNNNNN.out_of_band.bin      payload 0 | payload 1 | ... | payload n-1
    NNNNNNN.out_of_band.index    n + 1 int64, little endian: 0, end of payload 0, end of payload 1, ...

A format turns a record into one payload (`pack`) and a payload into a sample (`unpack`). What is read equals what was
appended; what would come back different is refused.
"""

import pickle  # noqa: TID251 - reading needs the caller's allow_pickle=True
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import FieldError, UnsafeDataError
from headrace.formats.stream import StreamArrayFormat, disk_dtype, stands_for, zero_padded
from headrace.manifest import JsonType, dtype_from_json, dtype_to_json

__all__ = [
    "DocumentBytesFormat",
    "DocumentFormat",
    "DocumentJsonFormat",
    "DocumentNumpyFormat",
    "DocumentPickleFormat",
    "Payload",
    "counts_elements",
    "document_format",
    "document_schema",
    "item_bytes",
    "payload_bytes",
    "reads_in_place",
]

Payload = bytes | bytearray | memoryview


@runtime_checkable
class DocumentFormat(Protocol):
    """How records become payloads and payloads become samples; any object with these two methods will do.

    A format may also have `dtype`, a NumPy type of which every payload is a whole number of elements (`lengths` then
    counts elements), or `encoding`, a name. Either is recorded, so that another format is refused when the dataset is
    opened. `reads_in_place = True` in the class that defines unpack() says that samples keep nothing of encoded_data,
    which may then be a memoryview of the file's own memory, read-only.
    """

    def pack(self, data: Any) -> Payload:
        """The record as bytes: any contiguous buffer, whatever its item size."""
        ...

    def unpack(self, encoded_data: bytearray | memoryview, shard: int) -> Any:
        """The sample. encoded_data holds exactly the payload's bytes: a bytearray of its own, but see above."""
        ...


class DocumentBytesFormat:
    """Documents are bytes, as they are. It also reads any other dataset of documents, undecoded."""

    encoding = "bytes"
    reads_in_place = True

    def __repr__(self) -> str:
        return "DocumentBytesFormat()"

    def pack(self, data: Payload) -> Payload:
        """The record itself: bytes, bytearray, or a contiguous memoryview."""
        return data

    def unpack(self, encoded_data: Payload, shard: int) -> bytes:
        """The payload."""
        return bytes(encoded_data)


class DocumentJsonFormat:
    """Documents are JSON: None, booleans, numbers, strings, lists, and dicts with string keys.

    What JSON would change is refused: tuples, keys that are no strings, NaN, bytes, dates.
    """

    encoding = "json"
    reads_in_place = True

    def __repr__(self) -> str:
        return "DocumentJsonFormat()"

    def pack(self, data: Any) -> bytes:
        """The record as compact UTF-8 JSON; FieldError when it would not come back the same."""
        try:
            encoded = msgspec.json.encode(data)
            same = msgspec.json.decode(encoded) == data
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FieldError("document", f"is not JSON ({error})") from None
        if same is not True:  # arrays compare to arrays
            raise FieldError(
                "document",
                "would come back different from JSON; use lists for tuples, strings for keys, null for NaN, and text "
                "for bytes and dates",
            )
        return encoded

    def unpack(self, encoded_data: Payload, shard: int) -> Any:
        """The decoded document; ValueError for a payload that is no JSON."""
        try:
            return msgspec.json.decode(encoded_data)
        except RecursionError:
            raise ValueError("is JSON nested too deeply") from None


class DocumentNumpyFormat:
    """Documents are 1-D arrays of one element type, such as the uint16 token ids of a text.

    Integers must fit the type and floats are refused for integers: FieldError names value and position. Samples are
    writable arrays of their own.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype: np.dtype[Any] = disk_dtype(np.dtype(dtype))
        self._elements = StreamArrayFormat(self.dtype)

    def __repr__(self) -> str:
        return f"DocumentNumpyFormat({self.dtype.str if self.dtype.names is None else self.dtype.descr!r})"

    def pack(self, data: Any) -> memoryview:
        """The elements by value, in the stored type."""
        try:
            elements = self._elements.pack(data)
        except FieldError as error:
            raise FieldError("document", error.problem) from error
        if elements.ndim != 1:
            raise FieldError("document", f"has shape {elements.shape}; a document is an array of one dimension")
        return zero_padded(np.ascontiguousarray(elements)).view(np.uint8).data

    def unpack(self, encoded_data: Payload, shard: int) -> NDArray[Any]:
        """The elements, sharing memory with encoded_data."""
        return np.frombuffer(encoded_data, self.dtype)


class DocumentPickleFormat:
    """Documents are pickled objects. Reading them can run any code that their writer put in, so it is refused unless
    allow_pickle=True says that you trust him.

    Files are GuideLoom's, byte for byte, under the same Python: both use its default protocol.
    """

    encoding = "pickle"
    reads_in_place = True

    def __init__(self, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle

    def __repr__(self) -> str:
        return f"DocumentPickleFormat(allow_pickle={self.allow_pickle})"

    def pack(self, data: Any) -> bytes:
        """The pickled record; FieldError for what cannot be pickled."""
        try:
            return pickle.dumps(data)
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            raise FieldError("document", f"cannot be pickled ({error})") from error

    def unpack(self, encoded_data: Payload, shard: int) -> Any:
        """The object; UnsafeDataError without allow_pickle=True."""
        if not self.allow_pickle:
            raise UnsafeDataError(
                "these documents are pickles",
                "DocumentPickleFormat(allow_pickle=True)",
                "read the bytes with DocumentBytesFormat()",
            )
        return pickle.loads(encoded_data)  # noqa: S301 - the caller opted in


def document_schema(storage_format: DocumentFormat) -> JsonType:
    """What a manifest says of payloads: an element type, {"encoding": name}, or null for a format of one's own.

    ValueError for a dtype that payloads of arrays cannot have.
    """
    dtype = _element_type(storage_format)
    if dtype is not None:
        if (disk := disk_dtype(dtype)) != dtype:
            # Its payloads come from its own pack(), which nobody swaps: recorded as "<", they would be read wrong.
            raise ValueError(
                f"{type(storage_format).__name__}.dtype is {dtype.str}, but payloads of arrays are little endian; "
                f"declare {disk.str} and pack that"
            )
        return dtype_to_json(disk)
    encoding = getattr(storage_format, "encoding", None)
    return {"encoding": encoding} if isinstance(encoding, str) else None


def document_format(schema: JsonType, where: str) -> DocumentFormat:
    """The format that reads payloads of this schema: bytes where nothing is known of them.

    ManifestError for a schema that makes no sense. Pickles get a format that refuses to read them.
    """
    match schema:
        case None:
            return DocumentBytesFormat()
        case {"encoding": "json", **rest} if not rest:
            return DocumentJsonFormat()
        case {"encoding": "pickle", **rest} if not rest:
            return DocumentPickleFormat()
        case {"encoding": str(), **rest} if not rest:
            return DocumentBytesFormat()
    return DocumentNumpyFormat(dtype_from_json(schema, where))


def item_bytes(storage_format: DocumentFormat) -> int:
    """What lengths count: the size of an element where the format has a dtype, else single bytes."""
    dtype = _element_type(storage_format)
    return 1 if dtype is None else dtype.itemsize


def counts_elements(storage_format: DocumentFormat) -> bool:
    """Whether lengths count elements, and not bytes."""
    return _element_type(storage_format) is not None


def reads_in_place(storage_format: DocumentFormat) -> bool:
    """Whether its unpack() says of itself that samples keep nothing of what it gets."""
    return stands_for(storage_format, "reads_in_place", "unpack")


def _element_type(storage_format: DocumentFormat) -> np.dtype[Any] | None:
    dtype = getattr(storage_format, "dtype", None)
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        return np.dtype(dtype)
    return dtype if isinstance(dtype, np.dtype) else None


def payload_bytes(payload: Any, what: str = "document") -> Payload:
    """What pack() returned, as single bytes; FieldError for what is no contiguous buffer."""
    if isinstance(payload, bytes | bytearray):
        return payload
    if not isinstance(payload, memoryview):
        raise FieldError(what, f"pack() returned {type(payload).__name__}, not bytes, bytearray or a memoryview")
    if not payload.c_contiguous:
        raise FieldError(what, "pack() returned a memoryview that is not contiguous; copy it with .tobytes()")
    if payload.nbytes == 0:
        return b""
    return payload if payload.format == "B" and payload.ndim == 1 else payload.cast("B")
