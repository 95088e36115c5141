"""Documents: records of any length, read one by one or many at once.

DocumentStorage  a directory and a format; makes writers, readers and datasets
DocumentWriter   append(shard, record); commits its shards when it closes
DocumentReader   read(i) and read_many(numbers) over all shards
DocumentDataset  document i: map-style, with the length of each
"""

import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.asynchronous import AsyncReader
from headrace.datasets.attempts import OpenFiles, ShardAttempt
from headrace.datasets.item_numbers import item_numbers
from headrace.datasets.opening import UNKNOWN_LENGTH, Opened, open_directory
from headrace.datasets.payloads import DATA, INDEX, PayloadOutput, Payloads, index_problem
from headrace.datasets.read_interfaces import ReadInterface
from headrace.datasets.storage import Storage
from headrace.datasets.writer import ShardOutput, Writer
from headrace.errors import ClosedError, CorruptShardError, FieldError, SchemaMismatchError
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentFormat,
    Payload,
    document_format,
    document_schema,
    item_bytes,
    payload_bytes,
)
from headrace.manifest import ShardRecord
from headrace.store import Store

__all__ = ["DocumentDataset", "DocumentReader", "DocumentStorage", "DocumentWriter"]

KIND = "documents"


class DocumentStorage(Storage[DocumentFormat]):
    """A directory of documents. Constructing it reads and writes nothing.

    storage_dir is a path or a Store. Without a storage_format the directory's own record decides; where nothing is
    recorded documents are bytes. read_interface may be another Store to read through, or one of MmapIO, PosixPreadIO
    and SeekIO.
    """

    kind = KIND
    suffixes = frozenset([DATA, INDEX])
    counted = "documents"

    def __init__(
        self,
        storage_dir: str | Path | Store,
        storage_format: DocumentFormat | None = None,
        read_interface: Store | ReadInterface | None = None,
    ) -> None:
        super().__init__(storage_dir, storage_format, read_interface)

    def sync_writer(
        self, *, overwrite: bool = False, force: bool = False, tasks: Mapping[int, str] | None = None
    ) -> "DocumentWriter":
        """A writer; use it as a context manager.

        overwrite=True withdraws a published dataset; force=True takes a shard from a writer that is stuck for good.
        tasks names the preparation task of each shard, recorded in its receipt.
        """
        if self.storage_format is None:
            raise ValueError("writing needs a storage_format, for example DocumentJsonFormat()")
        return DocumentWriter(self, self.storage_format, overwrite=overwrite, force=force, tasks=tasks)

    def sync_reader(self) -> "DocumentReader":
        """A reader of this directory; use it as a context manager."""
        return DocumentReader(self)

    def async_reader(self) -> AsyncReader["DocumentReader"]:
        """The same reader with awaitable methods."""
        return AsyncReader(self.sync_reader())

    def dataset(self) -> "DocumentDataset":
        """DocumentDataset(self)."""
        return DocumentDataset(self)

    def settings_digest(self) -> str:
        """What of this storage decides the bytes it writes: kind and format."""
        if self.storage_format is None:
            raise ValueError("a storage without a format writes nothing")
        schema = document_schema(self.storage_format)
        own = type(self.storage_format)
        return f"{KIND} {schema if schema is not None else f'{own.__module__}.{own.__qualname__}'}"

    def open_documents(self) -> "_Open":
        """The directory opened for reading: its lengths, format and files."""
        opened = open_directory(self.reading_store, KIND, self.suffixes)
        where = self.reading_store.location
        stored = opened.manifest.dtype
        storage_format = self.storage_format
        if storage_format is None:
            storage_format = document_format(stored, where)
        elif stored is not None and not isinstance(storage_format, DocumentBytesFormat):
            asked = document_schema(storage_format)
            if asked is not None and asked != stored:
                raise SchemaMismatchError(where, "documents of", stored, asked)
        return _Open(self, opened, storage_format)

    def shard_problems(self, shard: ShardRecord) -> list[tuple[str, str]]:
        """The index, where it does not fit the payloads."""
        return list(index_problem(self.reading_store, shard))


class DocumentWriter(Writer["_Output"]):
    """`append(shard, record)`: the payload that the format makes of each record, shard by shard."""

    __doc__ = Writer.__doc__
    kind = KIND
    counted = "documents"

    def __init__(
        self,
        storage: DocumentStorage,
        storage_format: DocumentFormat,
        *,
        overwrite: bool,
        force: bool,
        tasks: Mapping[int, str] | None,
    ) -> None:
        self._format = storage_format
        self._item_bytes = item_bytes(storage_format)
        schema = document_schema(storage_format)
        super().__init__(storage.store, schema, storage.publication(), overwrite=overwrite, force=force, tasks=tasks)

    def _packed(self, data: Any) -> Payload:
        payload = payload_bytes(self._format.pack(data))
        if len(payload) % self._item_bytes:
            problem = (
                f"pack() returned {len(payload)} bytes, which are no whole number of {self._item_bytes}-byte elements"
            )
            raise FieldError("document", problem)
        return payload

    def _output(self, attempt: ShardAttempt, open_files: OpenFiles) -> "_Output":
        return _Output(attempt, open_files)


class _Output(ShardOutput):
    def __init__(self, attempt: ShardAttempt, open_files: OpenFiles) -> None:
        super().__init__(attempt, open_files)
        self._payloads = PayloadOutput(self._file(DATA), self._file(INDEX))

    def append(self, packed: Payload) -> None:
        self._payloads.append(packed)
        self.length += 1

    def finish(self) -> None:
        self._payloads.finish()


class DocumentReader:
    """The documents of all shards, one after another. Opens at open() or in a `with` block.

    Lengths are fixed when it opens. Safe to use from several threads.
    """

    def __init__(self, storage: DocumentStorage) -> None:
        self._storage = storage
        self._opened: _Open | None = None

    def open(self) -> None:
        """Read the manifest (or receipts, or sizes). NoDatasetError, UnfinishedDatasetError and others say why not."""
        self._opened = self._storage.open_documents()

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
        return len(self._required.counts)

    @property
    def total_length(self) -> int:
        """Documents in all shards."""
        return self._required.total_length

    def length(self, shard: int) -> int:
        """Documents in one shard; IndexError for a number outside 0..num_shards-1."""
        counts = self._required.counts
        if not 0 <= shard < len(counts):
            raise IndexError(f"shard {shard} is outside a dataset of {len(counts)} shards")
        return int(counts[shard])

    def read(self, global_index: int) -> Any:
        """Document global_index; IndexError outside 0..total_length-1."""
        return self._required.document(operator.index(global_index))

    def read_many(self, global_indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """These documents, in request order, repeats allowed; IndexError for one outside 0..total_length-1."""
        opened = self._required
        numbers = item_numbers(global_indices, "document")
        opened.refuse_outside(numbers, global_indices)
        return opened.documents(numbers)

    @property
    def _required(self) -> "_Open":
        if self._opened is None:
            raise ClosedError("this document reader is not open; use it in a `with` block or call open()")
        return self._opened


class DocumentDataset:
    """The documents of all shards, one after another: map-style. Opens at first use; pickles as its configuration."""

    def __init__(self, storage: DocumentStorage) -> None:
        self.storage = storage
        self._opened: _Open | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __repr__(self) -> str:
        return f"DocumentDataset({self.storage!r})"

    def open(self) -> None:
        """Open the directory now rather than at first use."""
        _ = self._required

    def close(self) -> None:
        """Release the maps. It opens again at the next use, and then sees what is there by then."""
        self._opened = None
        self.storage.reading_store.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sync_reader(self) -> "DocumentDataset":
        """The same dataset with handles of its own; use it as a context manager."""
        return DocumentDataset(self.storage)

    def async_reader(self) -> AsyncReader["DocumentDataset"]:
        """The same with awaitable items."""
        return AsyncReader(self.sync_reader())

    def __len__(self) -> int:
        return self._required.total_length

    def __getitem__(self, index: int | slice) -> Any:
        """Document index, negative from the end; a slice gives a list of documents. IndexError outside."""
        if isinstance(index, slice):
            return self.__getitems__(np.arange(*index.indices(len(self)), dtype=np.int64))
        opened = self._opened or self._required
        number = operator.index(index)
        return opened.document(number + opened.total_length if -opened.total_length <= number < 0 else number)

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """The documents of a batch, in request order, repeats allowed; neighbours are one read in whatever order."""
        opened = self._required
        numbers = item_numbers(items, "document")
        if np.count_nonzero(opened.outside(numbers)):  # faster than any()
            numbers = np.where(
                numbers < 0, np.maximum(numbers, -opened.total_length - 1) + opened.total_length, numbers
            )
            opened.refuse_outside(numbers, items)
        return opened.documents(numbers)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each document, shape (len,): bytes, or elements where the format has a dtype.

        Read from the indexes alone, once; CorruptShardError when they make no sense.
        """
        return self._required.lengths()

    @property
    def shard_lengths(self) -> NDArray[np.int64]:
        """Documents of each shard, shape (num_shards,)."""
        return self._required.counts

    @property
    def fingerprint(self) -> str:
        """The manifest's fingerprint; for files that Headrace did not write, a digest of their sizes."""
        return self._required.fingerprint

    @property
    def settings(self) -> dict[str, int | str]:
        """What decides document i: the data."""
        return {"data": self.fingerprint}

    def describe(self) -> dict[str, Any]:
        """What the directory holds and how far it can be trusted."""
        return {**self.storage.describe(), "num_samples": len(self)}

    @property
    def _required(self) -> "_Open":
        if self._opened is None:
            self._opened = self.storage.open_documents()
        return self._opened


class _Open:
    """An opened directory: counts, format, payloads."""

    def __init__(self, storage: DocumentStorage, opened: Opened, storage_format: DocumentFormat) -> None:
        self._format = storage_format
        self._where = storage.reading_store.location
        self._payloads = Payloads(storage.reading_store, opened, share=2)
        self.counts = self._payloads.counts
        for number, shard in enumerate(opened.manifest.shards):
            index = shard.file(INDEX)
            shard.file(DATA)
            if shard.length not in (UNKNOWN_LENGTH, self.counts[number]):
                problem = f"{index.name} has {index.bytes} bytes for {shard.length} documents"
                raise CorruptShardError(self._where, number, f"{problem}; it needs {8 * shard.length + 8}")
        self._ends = np.cumsum(self.counts)
        self._starts = self._ends - self.counts
        self._end_list = self._ends.tolist()  # bisect is faster than NumPy for one number
        self.total_length = int(self.counts.sum())
        self.fingerprint = storage.fingerprint_of(opened)
        self._item_bytes = item_bytes(storage_format)
        self._in_place = bool(getattr(storage_format, "reads_in_place", False))
        self._lengths: NDArray[np.int64] | None = None

    def outside(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of them are no document's number; negative ones are none."""
        return numbers.view(np.uint64) >= self.total_length

    def refuse_outside(self, numbers: NDArray[np.int64], asked: Sequence[int] | NDArray[np.int64]) -> None:
        """IndexError where a number is no document's, as it was asked for."""
        outside = self.outside(numbers)
        if outside.any():
            number = asked[int(outside.argmax())]
            raise IndexError(f"document {number} is outside a dataset of {self.total_length} documents")

    def document(self, number: int) -> Any:
        """The sample of one document; IndexError for a number outside 0..total_length-1."""
        if not 0 <= number < self.total_length:
            raise IndexError(f"document {number} is outside a dataset of {self.total_length} documents")
        shard = bisect_right(self._end_list, number)
        data = self._payloads.one_in_place(shard, number - int(self._starts[shard]))
        try:
            return self._format.unpack(data if self._in_place else memoryview(bytearray(data)), shard)
        except Exception as error:
            error.add_note(f"while reading document {number} of {self._where}")
            raise

    def documents(self, numbers: NDArray[np.int64]) -> list[Any]:
        """The samples of these documents, all inside."""
        shards = self._ends.searchsorted(numbers, "right")
        read = self._payloads.in_place if self._in_place else self._payloads.read
        unpack = self._format.unpack
        documents: list[Any] = []
        add = documents.append
        try:
            for data, shard in zip(read(shards, numbers - self._starts[shards]), shards.tolist(), strict=True):
                add(unpack(data, shard))
        except Exception as error:
            if len(documents) < len(numbers):
                error.add_note(f"while reading document {numbers[len(documents)]} of {self._where}")
            raise
        return documents

    def lengths(self) -> NDArray[np.int64]:
        if self._lengths is None:
            self._lengths = self._payloads.lengths(self._item_bytes)
        return self._lengths
