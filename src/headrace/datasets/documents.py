"""Documents: records of any length, read one by one or many at once.

DocumentStorage  a directory and a format; makes writers, readers and datasets
DocumentWriter   append(shard, record); commits its shards when it closes
DocumentReader   read(i) and read_many(numbers) over all shards
DocumentDataset  document i: map-style, with the length of each
"""

import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.attempts import OpenFiles, ShardAttempt
from headrace.datasets.handles import ShardDataset, ShardReader
from headrace.datasets.item_numbers import item_numbers
from headrace.datasets.opening import UNKNOWN_LENGTH, Opened, open_directory
from headrace.datasets.payloads import DATA, INDEX, PayloadOutput, Payloads, index_problem, payload_count
from headrace.datasets.shard_files import FileSets
from headrace.datasets.storage import Storage
from headrace.datasets.writer import ShardOutput, Writer
from headrace.errors import CorruptShardError, FieldError, SchemaMismatchError
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentFormat,
    DocumentNumpyFormat,
    Payload,
    counts_elements,
    document_format,
    document_schema,
    item_bytes,
    payload_bytes,
    reads_in_place,
)
from headrace.manifest import JsonType, ShardRecord

__all__ = ["DocumentDataset", "DocumentReader", "DocumentStorage", "DocumentWriter"]

KIND = "documents"

Int64s = NDArray[np.int64]


class DocumentStorage(Storage[DocumentFormat, "DocumentWriter", "DocumentReader"]):
    """A directory of documents. Constructing it reads and writes nothing.

    storage_dir is a path or a Store. Without a storage_format the directory's own record decides; where nothing is
    recorded documents are bytes. read_interface may be another Store to read through, or one of MmapIO, PosixPreadIO
    and SeekIO.
    """

    kind = KIND
    suffixes = frozenset([DATA, INDEX])
    counted = "documents"
    example = "DocumentJsonFormat()"

    def sync_reader(self) -> "DocumentReader":
        """A reader of this directory; use it as a context manager."""
        return DocumentReader(self)

    @staticmethod
    def takes(storage_format: object) -> bool:
        """Whether it packs or unpacks, and has no element type of a stream."""
        has_any = hasattr(storage_format, "pack") or hasattr(storage_format, "unpack")
        return has_any and getattr(storage_format, "stream_dtype", None) is None

    def schema(self, storage_format: DocumentFormat) -> JsonType:
        """The payloads' schema: an element type, an encoding, or null for a format of one's own."""
        return document_schema(storage_format)

    def _writer_type(self) -> type["DocumentWriter"]:
        return DocumentWriter

    def dataset(self) -> "DocumentDataset":
        """DocumentDataset(self)."""
        return DocumentDataset(self)

    def open_shards(self) -> "_OpenDocuments":
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
        return _OpenDocuments(self, opened, storage_format)

    def shard_length(self, opened: Opened, shard: ShardRecord) -> int:
        """Documents in the shard."""
        return payload_count(shard) if shard.length == UNKNOWN_LENGTH else shard.length

    def shard_problems(self, opened: Opened, shard: ShardRecord) -> Iterator[tuple[str, str]]:
        """The index, where it does not fit the payloads or the number of documents."""
        yield from index_problem(self.reading_store, shard)
        index = shard.file(INDEX)
        if shard.length != UNKNOWN_LENGTH and index.bytes != 8 * shard.length + 8:
            yield index.name, f"has {index.bytes} bytes for {shard.length} documents; it needs {8 * shard.length + 8}"


class DocumentWriter(Writer[DocumentFormat, "_Output"]):
    """`append(shard, record)`: the payload that the format makes of each record, shard by shard."""

    __doc__ = Writer.__doc__
    kind = KIND
    counted = "documents"

    def _packed(self, data: Any) -> Payload:
        payload = payload_bytes(self._format.pack(data))
        if len(payload) % (size := item_bytes(self._format)):
            raise FieldError(
                "document", f"pack() returned {len(payload)} bytes, no whole number of {size}-byte elements"
            )
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


class DocumentReader(ShardReader["_OpenDocuments"]):
    """The documents of all shards, one after another. Opens at open() or in a `with` block.

    Lengths are fixed when it opens. Safe to use from several threads.
    """

    def read(self, global_index: int) -> Any:
        """Document global_index; IndexError outside 0..total_length-1."""
        return self._required.document(operator.index(global_index))

    def read_many(self, global_indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """These documents, in request order, repeats allowed; IndexError for one outside 0..total_length-1."""
        opened = self._required
        numbers = item_numbers(global_indices, "document")
        opened.refuse_outside(numbers, global_indices)
        return opened.documents(numbers)


class DocumentDataset(ShardDataset["_OpenDocuments"]):
    """The documents of all shards, one after another: map-style. Opens at first use; pickles as its configuration."""

    def __init__(self, storage: DocumentStorage) -> None:
        if not isinstance(storage, DocumentStorage):
            raise TypeError(f"DocumentDataset needs a DocumentStorage, not a {type(storage).__name__}")
        super().__init__(storage)

    def __repr__(self) -> str:
        return f"DocumentDataset({self.storage!r})"

    def sync_reader(self) -> Self:
        """The same dataset with handles of its own; use it as a context manager."""
        return type(self)(cast(DocumentStorage, self.storage))

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
    def reads_slices(self) -> bool:
        """Whether read_slices() can be used: documents are arrays, as DocumentNumpyFormat reads them."""
        return self._required.is_sliced

    def read_slices(self, items: Int64s, starts: Int64s, stops: Int64s) -> list[NDArray[Any]]:
        """Elements starts[k] to stops[k] (exclusive) of document items[k], for each k; no other element is read.

        They end where the document does, as a slice of it would. IndexError for an item outside 0..len-1 or a negative
        start or stop; TypeError where documents are no arrays.
        """
        opened = self._required
        if not opened.is_sliced:
            raise TypeError(f"documents of {opened.where} are no arrays that parts can be read of")
        opened.refuse_outside(items, items)
        if len(items) and min(int(starts.min()), int(stops.min())) < 0:
            raise IndexError("slices of documents begin and end at 0 or later")
        return opened.slices(items, starts, np.maximum(starts, stops))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each document, shape (len,), read-only: bytes, or elements where the format has a dtype.

        Read from the indexes alone, once; CorruptShardError when they make no sense.
        """
        return self._required.document_lengths()

    @property
    def length_unit(self) -> str:
        """What lengths count: "elements" where the format has a dtype, else "bytes" as they are stored."""
        return "elements" if self._required.counts_elements else "bytes"

    def lengths_at(self, items: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of these documents, of shape (len(items),): reads no more than their places in the index.

        IndexError for a number outside 0..len-1.
        """
        opened = self._required
        numbers = item_numbers(items, "document")
        opened.refuse_outside(numbers, items)
        return opened.lengths_at(numbers)

    @property
    def mean_length(self) -> Fraction:
        """The exact mean of lengths, by the sizes of the files; 0 without documents."""
        return self._required.mean_length()


class _OpenDocuments:
    """An opened directory: counts, format, payloads."""

    def __init__(self, storage: DocumentStorage, opened: Opened, storage_format: DocumentFormat) -> None:
        self._format = storage_format
        self.where = storage.reading_store.location
        source = storage.source(opened)
        self._payloads = Payloads(source, opened, share=2)
        self.files = FileSets(source, *self._payloads.files)
        self.lengths = self._payloads.counts
        for number, shard in enumerate(opened.manifest.shards):
            index = shard.file(INDEX)
            shard.file(DATA)
            if shard.length not in (UNKNOWN_LENGTH, self.lengths[number]):
                problem = f"{index.name} has {index.bytes} bytes for {shard.length} documents"
                raise CorruptShardError(self.where, number, f"{problem}; it needs {8 * shard.length + 8}")
        self._ends = np.cumsum(self.lengths)
        self._starts = self._ends - self.lengths
        self._end_list = self._ends.tolist()  # bisect is faster than NumPy for one number
        self.total_length = int(self.lengths.sum())
        self.fingerprint = storage.fingerprint_of(opened)
        self._item_bytes = item_bytes(storage_format)
        self.counts_elements = counts_elements(storage_format)
        self._in_place = reads_in_place(storage_format)
        self.is_sliced = (
            isinstance(storage_format, DocumentNumpyFormat)
            and type(storage_format).unpack is DocumentNumpyFormat.unpack
        )
        self._document_lengths: NDArray[np.int64] | None = None

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
            return self._format.unpack(data if self._in_place else bytearray(data), shard)
        except Exception as error:
            error.add_note(f"while reading document {number} of {self.where}")
            raise

    def documents(self, numbers: NDArray[np.int64]) -> list[Any]:
        """The samples of these documents, all inside."""
        shards = self._ends.searchsorted(numbers, "right")
        encoded: Iterable[memoryview | bytearray]
        encoded = self._payloads.in_place(shards, numbers - self._starts[shards])
        if not self._in_place:
            encoded = map(bytearray, encoded)
        unpack = self._format.unpack
        documents: list[Any] = []
        add = documents.append
        for data, shard in zip(encoded, shards.tolist(), strict=True):
            try:
                add(unpack(data, shard))
            except Exception as error:
                error.add_note(f"while reading document {numbers[len(documents)]} of {self.where}")
                raise
        return documents

    def lengths_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of these documents, all inside."""
        shards = self._ends.searchsorted(numbers, "right")
        return self._payloads.lengths_at(shards, numbers - self._starts[shards], self._item_bytes)

    def mean_length(self) -> Fraction:
        elements = Fraction(self._payloads.total_bytes, self._item_bytes)
        return elements / self.total_length if self.total_length else Fraction(0)

    def slices(self, numbers: Int64s, starts: Int64s, stops: Int64s) -> list[NDArray[Any]]:
        """These elements of these documents, all inside."""
        shards = self._ends.searchsorted(numbers, "right")
        size = self._item_bytes
        parts = self._payloads.parts_in_place(shards, numbers - self._starts[shards], starts * size, stops * size)
        return [self._format.unpack(bytearray(part), shard) for part, shard in zip(parts, shards.tolist(), strict=True)]

    def document_lengths(self) -> NDArray[np.int64]:
        if self._document_lengths is None:
            self._document_lengths = self._payloads.lengths(self._item_bytes)
            self._document_lengths.flags.writeable = False
        return self._document_lengths
