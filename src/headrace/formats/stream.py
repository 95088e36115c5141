"""Token streams: a shard is elements back to back, little endian, with no header (GuideLoom's layout).

    NNNNNNN.in_band.bin    element 0 | element 1 | ... | element n-1      n = file size / itemsize

A format turns a record into elements (`pack`) and a window of elements into a sample (`unpack`). Values are stored by
value: one that does not fit its field is refused with its position, never cast.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import FieldError

__all__ = [
    "StreamArrayFormat",
    "StreamFormat",
    "StreamNumpyFormat",
    "disk_dtype",
    "has_padding",
    "stands_for",
    "stored_elements",
    "zero_padded",
]

Elements = NDArray[Any]


@runtime_checkable
class StreamFormat(Protocol):
    """How records become elements and windows become samples; any object with these three members will do.

    A format may add `unpack_rows(rows) -> dict of arrays | array`, the same for a (batch, sequence_length) array at
    once; batches are then delivered without a Python step a sample.
    """

    stream_dtype: np.dtype[Any]

    def pack(self, data: Any) -> Elements:
        """The record's elements: one 1-D array of stream_dtype, in either byte order."""
        ...

    def unpack(self, stream: Elements, shard_lengths: NDArray[np.int64], shards: NDArray[np.int64]) -> Any:
        """The sample of one window.

        stream holds the window's elements, writable and its own. shard_lengths[k] of them came from shard shards[k];
        both have one entry for each piece of a shard that the window runs through, in order.
        """
        ...


class StreamNumpyFormat:
    """Records and samples are dicts of equally long columns, one for each field of a structured dtype.

    `pack({"tokens": [1, 2, 3]})` takes arrays, lists or CPU tensors; keys that are no field are ignored. Integers
    must fit their field, floats are refused in integer fields, columns must have the same length: FieldError names
    field, value and position. `unpack` gives a dict of views, one a field.
    """

    def __init__(self, stream_dtype: DTypeLike, data_type: type | None = None) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype(stream_dtype)
        self.data_type = data_type  # only documents the sample's type, as in GuideLoom
        if self.stream_dtype.names is None:
            raise ValueError(
                f"StreamNumpyFormat needs a structured dtype such as [('tokens', '{self.stream_dtype.str}')], "
                f"not {self.stream_dtype}; for plain elements use StreamArrayFormat"
            )
        self._disk = disk_dtype(self.stream_dtype)
        self._names = self.stream_dtype.names

    def __repr__(self) -> str:
        return f"StreamNumpyFormat({self._disk.descr})"

    def pack(self, data: Mapping[str, Any]) -> Elements:
        """One structured element for each row of the columns."""
        columns = {name: _column(data, name, self._disk[name]) for name in self._names}
        first = self._names[0]
        length = len(columns[first])
        for name, column in columns.items():
            if len(column) != length:
                raise FieldError(name, f"has {len(column)} rows, but field {first!r} has {length}; columns must match")
        if len(columns) == 1 and columns[first].dtype.itemsize == self._disk.itemsize and columns[first].ndim == 1:
            return np.ascontiguousarray(columns[first]).view(self._disk)
        elements = np.zeros(length, self._disk)  # zeros, since padding bytes must be the same in every run
        for name, column in columns.items():
            elements[name] = column
        return elements

    def unpack(self, stream: Elements, shard_lengths: NDArray[np.int64], shards: NDArray[np.int64]) -> dict[str, Any]:
        """A dict of views into the window, one a field, each of shape (window length, ...)."""
        return self.unpack_rows(stream)

    def unpack_rows(self, rows: Elements) -> dict[str, Any]:
        """A dict of views, one a field, each of shape rows.shape + (...)."""
        return {name: rows[name] for name in self._names}


class StreamArrayFormat:
    """Records and samples are 1-D arrays of one plain element type, such as uint16 token ids."""

    def __init__(self, stream_dtype: DTypeLike) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype(stream_dtype)
        self._disk = disk_dtype(self.stream_dtype)

    def __repr__(self) -> str:
        return f"StreamArrayFormat({self._disk.str!r})"

    def pack(self, data: Any) -> Elements:
        """The record by value, in the stored type; FieldError when a value does not fit it."""
        try:
            elements = np.asarray(data)
        except ValueError as error:
            raise FieldError("elements", f"is not rectangular ({error})") from None
        return _converted("elements", elements, self._disk)

    def unpack(self, stream: Elements, shard_lengths: NDArray[np.int64], shards: NDArray[np.int64]) -> Elements:
        """The window itself."""
        return stream

    def unpack_rows(self, rows: Elements) -> Elements:
        """The windows themselves."""
        return rows


def stands_for(storage_format: object, fast: str, plain: str) -> bool:
    """Whether the format's member `fast` may stand for its method `plain`.

    Not where it has none, and not where a subclass has its own `plain` and only inherits `fast`, which knows nothing of
    it.
    """
    if not getattr(storage_format, fast, None):
        return False
    for kind in type(storage_format).__mro__:
        if fast in vars(kind):
            return True
        if plain in vars(kind):
            return False
    return True  # the object's own


def disk_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """dtype as it is on disk: little endian throughout. ValueError for types that cannot be stored."""
    if dtype.hasobject:
        raise ValueError(f"element type {dtype} holds Python objects; only their addresses would be stored")
    if dtype.itemsize == 0:
        raise ValueError(f"element type {dtype} has no bytes")
    return dtype.newbyteorder("<")


def stored_elements(elements: Any, disk: np.dtype[Any]) -> Elements:
    """What pack() returned, as contiguous little-endian elements; ValueError when it is not what was declared."""
    if not isinstance(elements, np.ndarray):
        raise FieldError("record", f"pack() returned {type(elements).__name__}, not a NumPy array")
    if elements.ndim != 1:
        raise FieldError("record", f"pack() returned an array of shape {elements.shape}; it must have one dimension")
    if elements.dtype != disk:
        if elements.dtype != disk.newbyteorder(">"):
            raise FieldError("record", f"pack() returned elements of {elements.dtype}, but the stream stores {disk}")
        elements = elements.astype(disk)
    return zero_padded(np.ascontiguousarray(elements))


def zero_padded(elements: Elements) -> Elements:
    """The elements with zeros in their padding bytes, which hold whatever lay in memory before.

    Nothing of that may get into a file, and the same records must give the same bytes.
    """
    if not has_padding(elements.dtype):
        return elements
    clean = np.zeros(elements.shape, elements.dtype)
    _copy_fields(clean, elements)
    return clean


@lru_cache
def has_padding(dtype: np.dtype[Any]) -> bool:
    """Whether some bytes of an element belong to no field."""
    inner, shape = dtype.subdtype or (dtype, ())
    if shape:
        return has_padding(inner)
    if dtype.names is None:
        return False
    parts = [dtype[name] for name in dtype.names]
    return dtype.itemsize != sum(part.itemsize for part in parts) or any(map(has_padding, parts))


def _copy_fields(target: Elements, source: Elements) -> None:
    if target.dtype.names is None:
        target[...] = source
    for name in target.dtype.names or ():
        _copy_fields(target[name], source[name])


def _column(data: Mapping[str, Any], name: str, dtype: np.dtype[Any]) -> Elements:
    try:
        value = data[name]
    except KeyError:
        raise FieldError(name, f"is missing; the record has {', '.join(map(repr, data)) or 'no fields'}") from None
    try:
        column = np.asarray(value)
    except ValueError as error:
        raise FieldError(name, f"is not rectangular ({error})") from None
    base, shape = dtype.subdtype or (dtype, ())
    if column.ndim == 0 or column.shape[1:] != shape:
        expected = ", ".join(["n", *map(str, shape)])
        raise FieldError(name, f"has shape {column.shape}, expected ({expected}); nothing is broadcast")
    return _converted(name, column, base)


def _converted(field: str, column: Elements, dtype: np.dtype[Any]) -> Elements:
    """column in dtype, every value equal to what was given (floats: rounded to the stored precision)."""
    source = column.dtype
    if source == dtype:
        return column
    if column.size == 0 and source == np.float64:
        return column.astype(dtype)  # np.asarray([]) is float64; an empty list has no values that could change
    if source.kind in "iub" and dtype.kind in "iu":
        if not np.can_cast(source, dtype):
            _check_range(field, column, dtype)
        return column.astype(dtype)
    if source.kind == "f" and dtype.kind == "f":
        with np.errstate(over="ignore"):
            stored = column.astype(dtype)
        _refuse(field, column, np.isinf(stored) & ~np.isinf(column), dtype)
        return stored
    if source.kind in "iub" and dtype.kind in "fc":
        with np.errstate(over="ignore", invalid="ignore"):
            stored = column.astype(dtype)
            bad = stored.real.astype(source) != column
        if source.kind != "b":
            # One past the largest integer converts back to anything at all, depending on the processor.
            bad |= stored.real.astype(np.float64) >= 2.0 ** np.iinfo(source).bits / (2 if source.kind == "i" else 1)
        _refuse(field, column, bad, dtype)
        return stored
    if np.can_cast(source, dtype, "safe"):
        return column.astype(dtype)
    raise FieldError(
        field, f"has elements of {source}, which cannot be stored in {dtype} by value; convert them yourself"
    )


def _check_range(field: str, column: Elements, dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    if column.size and (int(column.min()) < limits.min or int(column.max()) > limits.max):
        # Out of range means beyond one of the limits that source itself can hold.
        source = np.iinfo(column.dtype)
        _refuse(field, column, (column < max(limits.min, source.min)) | (column > min(limits.max, source.max)), dtype)


def _refuse(field: str, column: Elements, bad: NDArray[np.bool_], dtype: np.dtype[Any]) -> None:
    if bad.any():
        place = np.unravel_index(int(bad.argmax()), bad.shape)
        where: int | Sequence[int] = int(place[0]) if len(place) == 1 else [int(k) for k in place]
        raise FieldError(
            field, f"value {column[place]!s} at position {where} does not fit {dtype} ({column.dtype} given)"
        )
