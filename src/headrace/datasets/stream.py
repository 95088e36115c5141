"""Token streams: elements appended to shards, read as windows of any length.

StreamStorage    a directory and a format; makes writers, readers and datasets
StreamWriter     append(shard, record); commits its shards when it closes
StreamReader     read(global_index, global_length) over all shards, wrapping at the end
StreamDataset    window i of a fixed length: map-style, a batch is one gather
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.asynchronous import AsyncReader
from headrace.datasets.opening import Opened, open_directory
from headrace.datasets.read_interfaces import ReadInterface
from headrace.datasets.shard_files import RowGather, ShardFiles
from headrace.datasets.storage import Storage
from headrace.datasets.stream_writer import StreamWriter
from headrace.errors import ClosedError, CorruptShardError, SchemaMismatchError
from headrace.formats.stream import StreamArrayFormat, StreamFormat, StreamNumpyFormat, disk_dtype, unpacks_rows
from headrace.manifest import Manifest, dtype_from_json, dtype_to_json
from headrace.store import Store

__all__ = ["StreamDataset", "StreamReader", "StreamStorage", "WindowBatch"]

KIND = "stream"
SUFFIX = "in_band.bin"


class StreamStorage(Storage[StreamFormat]):
    """A directory of token streams. Constructing it reads and writes nothing.

    storage_dir is a path or a Store. Without a storage_format the directory's own record of its element type decides,
    which needs a directory that Headrace wrote. read_interface may be another Store to read through, or one of MmapIO,
    PosixPreadIO and SeekIO.
    """

    kind = KIND
    suffixes = frozenset([SUFFIX])

    def __init__(
        self,
        storage_dir: str | Path | Store,
        storage_format: StreamFormat | None = None,
        read_interface: Store | ReadInterface | None = None,
    ) -> None:
        super().__init__(storage_dir, storage_format, read_interface)

    def sync_writer(
        self, *, overwrite: bool = False, force: bool = False, tasks: Mapping[int, str] | None = None
    ) -> StreamWriter:
        """A writer; use it as a context manager.

        overwrite=True withdraws a published dataset; force=True takes a shard from a writer that is stuck for good.
        tasks names the preparation task of each shard, recorded in its receipt.
        """
        if self.storage_format is None:
            raise ValueError("writing needs a storage_format, for example StreamNumpyFormat([('tokens', '<u2')])")
        return StreamWriter(
            self.store, self.storage_format, self.publication(), overwrite=overwrite, force=force, tasks=tasks
        )

    def sync_reader(self) -> "StreamReader":
        """A reader of this directory; use it as a context manager."""
        return StreamReader(self)

    def async_reader(self) -> AsyncReader["StreamReader"]:
        """The same reader with awaitable methods."""
        return AsyncReader(self.sync_reader())

    def dataset(self, sequence_length: int, stride: int | None = None, extra: int = 0) -> "StreamDataset":
        """StreamDataset(self, sequence_length, stride, extra)."""
        return StreamDataset(self, sequence_length, stride, extra)

    def settings_digest(self) -> str:
        """What of this storage decides the bytes it writes: kind and element type."""
        if self.storage_format is None:
            raise ValueError("a storage without a format writes nothing")
        return f"{KIND} {dtype_to_json(disk_dtype(self.storage_format.stream_dtype))}"

    def open_stream(self) -> tuple[Opened, StreamFormat, NDArray[np.int64]]:
        """The opened directory, the format to read it with, and each shard's length in elements."""
        opened = open_directory(self.reading_store, KIND, self.suffixes)
        where = self.reading_store.location
        stored = dtype_from_json(opened.manifest.dtype, where) if opened.by_headrace else None
        storage_format = self.storage_format
        if storage_format is None:
            if stored is None:
                raise ValueError(f"{where} records no element type; pass the storage_format it was written with")
            storage_format = StreamArrayFormat(stored) if stored.names is None else StreamNumpyFormat(stored)
        disk = disk_dtype(storage_format.stream_dtype)
        if stored is not None and stored != disk:
            raise SchemaMismatchError(where, "elements of type", dtype_to_json(stored), dtype_to_json(disk))
        return opened, storage_format, _lengths(opened.manifest, disk.itemsize, where)


class StreamReader:
    """The elements of all shards, one after another. Opens at open() or in a `with` block.

    Lengths are fixed when it opens. Safe to use from several threads.
    """

    def __init__(self, storage: StreamStorage) -> None:
        self._storage = storage
        self._opened: _Open | None = None

    def open(self) -> None:
        """Read the manifest (or receipts, or sizes). NoDatasetError, UnfinishedDatasetError and others say why not."""
        self._opened = _Open(self._storage)

    def close(self) -> None:
        """Release the maps. Twice is harmless; open() opens it again."""
        self._opened = None
        self._storage.reading_store.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_shards(self) -> int:
        """How many shards there are, empty ones included."""
        return len(self._required.lengths)

    @property
    def total_length(self) -> int:
        """Elements in all shards."""
        return self._required.total_length

    def length(self, shard: int) -> int:
        """Elements in one shard; IndexError for a number outside 0..num_shards-1."""
        lengths = self._required.lengths
        if not 0 <= shard < len(lengths):
            raise IndexError(f"shard {shard} is outside a dataset of {len(lengths)} shards")
        return int(lengths[shard])

    def read(self, global_index: int, global_length: int) -> Any:
        """The sample made of global_length elements from global_index on.

        Runs on over shard ends, and from the last element to the first, as often as needed. Length 0 gives an empty
        sample. IndexError for an index outside the stream or a negative length.
        """
        opened = self._required
        index, length = operator.index(global_index), operator.index(global_length)
        if not 0 <= index < opened.total_length:
            raise IndexError(f"element {index} is outside a stream of {opened.total_length} elements")
        if length < 0:
            raise IndexError(f"a window cannot have {length} elements")
        data, lengths, shards = opened.elements.elements(index, length)
        return opened.storage_format.unpack(data.view(opened.dtype), lengths, shards)

    @property
    def _required(self) -> "_Open":
        if self._opened is None:
            raise ClosedError("this stream reader is not open; use it in a `with` block or call open()")
        return self._opened


class WindowBatch(Sequence[Any]):
    """A batch of windows over one array: a sequence of samples that are views, and `stacked()` for all at once."""

    __slots__ = ("_dtype", "_format", "_raw")

    def __init__(self, raw: NDArray[np.void], dtype: np.dtype[Any], storage_format: Any) -> None:
        self._raw = raw  # (batch,) windows of bytes
        self._dtype = dtype
        self._format = storage_format

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "WindowBatch": ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return WindowBatch(self._raw[index], self._dtype, self._format)
        return self._format.unpack_rows(self._rows()[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._format.unpack_rows, self._rows())

    def stacked(self) -> Any:
        """The samples as one: a dict of (batch, window, ...) arrays, or one array; as stored, sharing memory."""
        return self._format.unpack_rows(self._rows())

    def _rows(self) -> NDArray[Any]:
        raw, dtype = self._raw, self._dtype
        return np.ndarray((len(raw), raw.dtype.itemsize // dtype.itemsize), dtype, raw)  # a view, in one call


class StreamDataset:
    """Windows of sequence_length + extra elements, one every stride elements (default: sequence_length).

    Item i begins at element i * stride; what does not fill a window at the end is not served. extra=1 lets windows
    overlap by one element, for next-token targets. Opens at first use; pickles as its configuration.
    """

    def __init__(self, storage: StreamStorage, sequence_length: int, stride: int | None = None, extra: int = 0) -> None:
        self.storage = storage
        self.sequence_length = _checked("sequence_length", sequence_length, 1)
        self.stride = self.sequence_length if stride is None else _checked("stride", stride, 1)
        self.extra = _checked("extra", extra, 0)
        self._opened: _Open | None = None
        self._rows: RowGather | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_rows": None}

    def __repr__(self) -> str:
        return (
            f"StreamDataset({self.storage!r}, sequence_length={self.sequence_length}, stride={self.stride}, "
            f"extra={self.extra})"
        )

    def open(self) -> None:
        """Open the directory now rather than at first use."""
        self._gather()

    def close(self) -> None:
        """Release the maps. It opens again at the next use, and then sees what is there by then."""
        self._opened = self._rows = None
        self.storage.reading_store.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sync_reader(self) -> "StreamDataset":
        """The same dataset with handles of its own; use it as a context manager."""
        return StreamDataset(self.storage, self.sequence_length, self.stride, self.extra)

    def async_reader(self) -> AsyncReader["StreamDataset"]:
        """The same with awaitable items."""
        return AsyncReader(self.sync_reader())

    def __len__(self) -> int:
        return self._gather().num_rows

    def __getitem__(self, index: int | slice) -> Any:
        """Sample index, negative from the end; a slice gives a sequence of samples. IndexError outside."""
        if isinstance(index, slice):
            return self.__getitems__(np.arange(*index.indices(len(self)), dtype=np.int64))
        number = operator.index(index)
        if not -(1 << 63) <= number < 1 << 63:
            raise IndexError(f"window {number} is outside a dataset of {len(self)} windows")
        return self.__getitems__(np.array([number], np.int64))[0]

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples of a batch, in request order, repeats allowed; one gather however many shards they are in."""
        gather = self._rows or self._gather()
        opened = self._opened
        assert opened is not None  # _gather opened it
        numbers = np.asarray(items)
        if numbers.dtype != np.int64 or numbers.ndim != 1:
            numbers = _integers(numbers)
        if opened.unpack_rows:
            return WindowBatch(gather.rows(numbers), opened.dtype, opened.storage_format)
        return [self._unpacked(int(number), gather, opened) for number in numbers]

    @property
    def fingerprint(self) -> str:
        """The manifest's fingerprint; for files that Headrace did not write, a digest of their sizes."""
        return self._required.fingerprint

    @property
    def settings(self) -> dict[str, int | str]:
        """What decides sample i: data and windows."""
        return {
            "data": self.fingerprint,
            "sequence_length": self.sequence_length,
            "stride": self.stride,
            "extra": self.extra,
        }

    @property
    def shard_lengths(self) -> NDArray[np.int64]:
        """Elements of each shard, shape (num_shards,)."""
        return self._required.lengths

    def describe(self) -> dict[str, Any]:
        """What the directory holds and how far it can be trusted, plus this dataset's windows."""
        return {**self.storage.describe(), "sequence_length": self.sequence_length, "num_samples": len(self)}

    def _unpacked(self, item: int, gather: RowGather, opened: "_Open") -> Any:
        if not -gather.num_rows <= item < gather.num_rows:
            raise IndexError(f"window {item} is outside a dataset of {gather.num_rows} windows")
        start = (item % gather.num_rows) * self.stride
        data, lengths, shards = gather.elements(start, self.sequence_length + self.extra)
        return opened.storage_format.unpack(data.view(opened.dtype), lengths, shards)

    @property
    def _required(self) -> "_Open":
        if self._opened is None:
            self._opened = _Open(self.storage)
        return self._opened

    def _gather(self) -> RowGather:
        if self._rows is None:
            self._rows = self._required.gather(self.stride, self.sequence_length + self.extra)
        return self._rows


class _Open:
    """An opened directory: lengths, format, files."""

    def __init__(self, storage: StreamStorage) -> None:
        opened, self.storage_format, self.lengths = storage.open_stream()
        self.dtype = disk_dtype(self.storage_format.stream_dtype)
        self.unpack_rows = unpacks_rows(self.storage_format)
        self.total_length = int(self.lengths.sum())
        self.fingerprint = storage.fingerprint_of(opened)
        records = [shard.files[0] for shard in opened.manifest.shards]
        sizes = np.array([record.bytes for record in records], np.int64)
        self._files = ShardFiles(storage.reading_store, [record.name for record in records], sizes, opened.evidence)
        self.elements = self.gather(1, 1)

    def gather(self, stride: int, row_elements: int) -> RowGather:
        return RowGather(self._files, self.lengths, self.dtype.itemsize, stride=stride, row_elements=row_elements)


def _lengths(manifest: Manifest, itemsize: int, where: str) -> NDArray[np.int64]:
    """The elements of each shard, shape (num_shards,); CorruptShardError where size and length disagree."""
    lengths = np.empty(manifest.num_shards, np.int64)
    for number, shard in enumerate(manifest.shards):
        size, length = shard.files[0].bytes, shard.length
        lengths[number] = size // itemsize
        if size % itemsize or length not in (-1, lengths[number]):
            claimed = "" if length < 0 else f" for {length} elements"
            problem = f"{shard.files[0].name} has {size} bytes{claimed}, and an element has {itemsize}"
            raise CorruptShardError(where, number, problem)
    return lengths


def _integers(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """numbers as int64, by value; TypeError for what is no integer."""
    if (numbers.size and numbers.dtype.kind not in "iu") or numbers.ndim != 1:
        raise TypeError(f"window numbers must be a list of integers, not {numbers.dtype} of shape {numbers.shape}")
    if numbers.dtype == np.uint64:
        numbers = np.minimum(numbers, np.uint64(np.iinfo(np.int64).max))  # outside either way, but not negative
    return numbers.astype(np.int64)


def _checked(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return int(value)
