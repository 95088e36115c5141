"""Token streams: elements appended to shards, read as windows of any length.

StreamStorage    a directory and a format; makes writers, readers and datasets
StreamWriter     append(shard, record); commits its shards when it closes
WindowBatch      a batch of windows over one array

windows.py has the reader and the dataset, which streams with metadata share.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.attempts import OpenFiles, ShardAttempt
from headrace.datasets.opening import UNKNOWN_LENGTH, Opened, open_directory
from headrace.datasets.row_gather import RowGather
from headrace.datasets.shard_files import FileSets, ShardFiles, ShardViews
from headrace.datasets.storage import Storage
from headrace.datasets.windows import StreamDataset, StreamReader
from headrace.datasets.writer import ShardOutput, Writer
from headrace.errors import CorruptShardError, SchemaMismatchError
from headrace.formats.stream import (
    StreamArrayFormat,
    StreamFormat,
    StreamNumpyFormat,
    disk_dtype,
    stands_for,
    stored_elements,
)
from headrace.manifest import FileRecord, JsonType, Manifest, ShardRecord, dtype_from_json, dtype_to_json

__all__ = ["StreamStorage", "StreamWriter", "WindowBatch", "length_problem", "stream_lengths"]

KIND = "stream"
SUFFIX = "in_band.bin"


class StreamStorage(Storage[StreamFormat, "StreamWriter", StreamReader]):
    """A directory of token streams. Constructing it reads and writes nothing.

    storage_dir is a path or a Store. Without a storage_format the directory's own record of its element type decides,
    which needs a directory that Headrace wrote. read_interface may be another Store to read through, or one of MmapIO,
    PosixPreadIO and SeekIO.
    """

    kind = KIND
    suffixes = frozenset([SUFFIX])
    example = "StreamNumpyFormat([('tokens', '<u2')])"

    def sync_reader(self) -> StreamReader:
        """A reader of this directory; use it as a context manager."""
        return StreamReader(self)

    def dataset(self, sequence_length: int, stride: int | None = None, extra: int = 0) -> StreamDataset:
        """StreamDataset(self, sequence_length, stride, extra)."""
        return StreamDataset(self, sequence_length, stride, extra)

    @staticmethod
    def takes(storage_format: object) -> bool:
        """Whether it has an element type and packs or unpacks, and is no format with metadata."""
        has_any = hasattr(storage_format, "pack") or hasattr(storage_format, "unpack")
        return hasattr(storage_format, "stream_dtype") and has_any and not hasattr(storage_format, "size")

    def schema(self, storage_format: StreamFormat) -> JsonType:
        """The element type."""
        return dtype_to_json(disk_dtype(storage_format.stream_dtype))

    def _writer_type(self) -> type["StreamWriter"]:
        return StreamWriter

    def shard_length(self, opened: Opened, shard: ShardRecord) -> int:
        """Elements in the shard."""
        if shard.length != UNKNOWN_LENGTH:
            return shard.length
        itemsize = self._itemsize(opened)
        return shard.file(SUFFIX).bytes // itemsize if itemsize else 0

    def shard_problems(self, opened: Opened, shard: ShardRecord) -> Iterator[tuple[str, str]]:
        """The file, where its size is no whole number of elements, or another one than recorded."""
        itemsize = self._itemsize(opened)
        file = shard.file(SUFFIX)
        if itemsize and (problem := length_problem(file, shard.length, itemsize)):
            yield file.name, problem

    def _itemsize(self, opened: Opened) -> int | None:
        """Bytes of an element, where that is known."""
        if opened.by_headrace:
            return dtype_from_json(opened.manifest.dtype, self.reading_store.location).itemsize
        return None if self.storage_format is None else disk_dtype(self.storage_format.stream_dtype).itemsize

    def open_shards(self) -> "_OpenStream":
        """The directory opened for reading: its lengths, format and files."""
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
        return _OpenStream(self, opened, storage_format)


class StreamWriter(Writer[StreamFormat, "_Output"]):
    """`append(shard, record)`: the elements that the format makes of each record, shard by shard."""

    __doc__ = Writer.__doc__
    kind = KIND

    @cached_property
    def _disk(self) -> np.dtype[Any]:
        return disk_dtype(self._format.stream_dtype)

    def _packed(self, data: Any) -> NDArray[Any]:
        return stored_elements(self._format.pack(data), self._disk)

    def _output(self, attempt: ShardAttempt, open_files: OpenFiles) -> "_Output":
        return _Output(attempt, open_files)


class _Output(ShardOutput):
    def __init__(self, attempt: ShardAttempt, open_files: OpenFiles) -> None:
        super().__init__(attempt, open_files)
        self._elements = self._file(SUFFIX)

    def append(self, packed: NDArray[Any]) -> None:
        if len(packed):
            self._elements.append(packed.view(np.uint8).data)
            self.length += len(packed)


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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The samples stacked, for np.asarray(batch): NumPy would put them together one by one."""
        rows = self.stacked()
        return np.array(rows if isinstance(rows, np.ndarray) else list(self), dtype, copy=copy)

    @property
    def nbytes(self) -> int:
        """The memory of all windows."""
        return self._raw.nbytes

    def stacked(self) -> Any:
        """The samples as one: a dict of (batch, window, ...) arrays, or one array; as stored, sharing memory."""
        return self._format.unpack_rows(self._rows())

    def _rows(self) -> NDArray[Any]:
        raw, dtype = self._raw, self._dtype
        return np.ndarray((len(raw), raw.dtype.itemsize // dtype.itemsize), dtype, raw)  # a view, in one call


class _OpenStream:
    """An opened directory: lengths, format, files."""

    def __init__(self, storage: StreamStorage, opened: Opened, storage_format: StreamFormat) -> None:
        self._format: Any = storage_format
        self._dtype = disk_dtype(storage_format.stream_dtype)
        self._unpacks_rows = stands_for(storage_format, "unpack_rows", "unpack")
        self.lengths = stream_lengths(opened.manifest, self._dtype.itemsize, storage.reading_store.location)
        self.total_length = int(self.lengths.sum())
        self.fingerprint = storage.fingerprint_of(opened)
        records = [shard.file(SUFFIX) for shard in opened.manifest.shards]
        sizes = np.array([record.bytes for record in records], np.int64)
        source = storage.source(opened)
        files = ShardFiles(source, [record.name for record in records], sizes)
        self._views = ShardViews(files)
        self.files = FileSets(source, files)
        self._elements = self.gather(1, 1)

    def gather(self, stride: int, row_elements: int) -> RowGather:
        return RowGather(self._views, self.lengths, self._dtype.itemsize, stride=stride, row_elements=row_elements)

    def window(self, start: int, num_elements: int) -> Any:
        data, lengths, shards = self._elements.elements(start, num_elements)
        return self._format.unpack(data.view(self._dtype), lengths, shards)

    def windows(self, gather: RowGather, numbers: NDArray[np.int64]) -> Sequence[Any]:
        if self._unpacks_rows:
            return WindowBatch(gather.rows(numbers), self._dtype, self._format)
        return [self.window(gather.start(number), gather.row_elements) for number in numbers.tolist()]


def stream_lengths(manifest: Manifest, itemsize: int, where: str) -> NDArray[np.int64]:
    """The elements of each shard, shape (num_shards,); CorruptShardError where size and length disagree."""
    lengths = np.empty(manifest.num_shards, np.int64)
    for number, shard in enumerate(manifest.shards):
        file = shard.file(SUFFIX)
        lengths[number] = file.bytes // itemsize
        if problem := length_problem(file, shard.length, itemsize):
            raise CorruptShardError(where, number, f"{file.name} {problem}")
    return lengths


def length_problem(file: FileRecord, length: int, itemsize: int) -> str | None:
    """Why a file of this size does not hold so many elements; None when it does."""
    if file.bytes % itemsize == 0 and length in (UNKNOWN_LENGTH, file.bytes // itemsize):
        return None
    claimed = "" if length == UNKNOWN_LENGTH else f" for {length} elements"
    return f"has {file.bytes} bytes{claimed}, and an element has {itemsize}"
