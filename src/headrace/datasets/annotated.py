"""Streams with metadata: elements in spans, each span with a payload, read as windows of any length.

StreamWithMetaStorage   a directory and a format; makes writers, readers and datasets
AnnotatedWriter         append(shard, record); commits its shards when it closes
SpanBatch               a batch of windows with their spans

windows.py has the reader and the dataset, which plain streams share.

Windows of a batch are gathered as those of a plain stream are. A span begins where the payload number differs from the
one before it, at each window's start, and where a window runs on into another shard:

    payload number   7 7 7 8 8 | 8 8 8 9 9 | 2 2 2 0 0      two windows, the second one over a shard's end
    span begins      *     *     *     *     (window)  *
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.attempts import OpenFiles, ShardAttempt
from headrace.datasets.opening import UNKNOWN_LENGTH, Opened, open_directory
from headrace.datasets.payloads import DATA, INDEX, PayloadOutput, Payloads, index_problem, payload_count
from headrace.datasets.row_gather import RowGather
from headrace.datasets.shard_files import FileSets, ShardFiles, ShardViews
from headrace.datasets.storage import Storage
from headrace.datasets.stream import SUFFIX, length_problem, stream_lengths
from headrace.datasets.windows import StreamDataset, StreamReader
from headrace.datasets.writer import ShardOutput, Writer
from headrace.errors import CorruptShardError, FieldError, SchemaMismatchError
from headrace.formats.annotated import (
    AnnotatedFormat,
    SpanFormat,
    SpanNumpyFormat,
    Spans,
    annotated_dtype,
    annotated_schema,
    packed_spans,
    span_format,
)
from headrace.formats.stream import has_padding, stands_for
from headrace.manifest import JsonType, ShardRecord

__all__ = ["AnnotatedWriter", "SpanBatch", "StreamWithMetaStorage"]

KIND = "annotated"
MAX_PAYLOADS = 1 << 31  # a shard; elements point at them with an int32
_CHUNK_ELEMENTS = 1 << 16
_FIRST = np.zeros(1, np.int64)

Int64s = NDArray[np.int64]


class StreamWithMetaStorage(Storage[AnnotatedFormat | SpanFormat, "AnnotatedWriter", StreamReader]):
    """A directory of streams with metadata. Constructing it reads and writes nothing.

    storage_dir is a path or a Store. Without a storage_format the directory's own record decides, which needs a
    directory that Headrace wrote; samples are then those of SpanNumpyFormat. read_interface may be another Store to
    read through, or one of MmapIO, PosixPreadIO and SeekIO.
    """

    kind = KIND
    suffixes = frozenset([SUFFIX, DATA, INDEX])
    optional = frozenset([DATA, INDEX])
    example = "SpanNumpyFormat([('tokens', '<u2')])"

    def sync_reader(self) -> StreamReader:
        """A reader of this directory; use it as a context manager."""
        return StreamReader(self)

    def dataset(self, sequence_length: int, stride: int | None = None, extra: int = 0) -> StreamDataset:
        """StreamDataset(self, sequence_length, stride, extra)."""
        return StreamDataset(self, sequence_length, stride, extra)

    @staticmethod
    def takes(storage_format: object) -> bool:
        """Whether it packs or unpacks spans, in one of the two protocols or a mixture."""
        has = {
            name for name in ("size", "pack", "unpack", "pack_spans", "unpack_spans") if hasattr(storage_format, name)
        }
        is_plain = "pack" in has and not has & {"size", "pack_spans"}  # the format of a plain stream
        return hasattr(storage_format, "stream_dtype") and bool(has) and not is_plain

    def schema(self, storage_format: AnnotatedFormat | SpanFormat) -> JsonType:
        """Element type, and schema of the payloads."""
        return annotated_schema(storage_format)

    def _writer_type(self) -> type["AnnotatedWriter"]:
        return AnnotatedWriter

    def open_shards(self) -> "_OpenAnnotated":
        """The directory opened for reading: its lengths, format and files."""
        opened = open_directory(self.reading_store, KIND, self.suffixes, self.optional)
        where = self.reading_store.location
        storage_format = self.storage_format
        if storage_format is None:
            if not opened.by_headrace:
                raise ValueError(f"{where} records no element type; pass the storage_format it was written with")
            storage_format = span_format(opened.manifest.dtype, where)
        elif opened.by_headrace:
            _check_schema(where, opened.manifest.dtype, annotated_schema(storage_format))
        return _OpenAnnotated(self, opened, storage_format)

    def shard_length(self, opened: Opened, shard: ShardRecord) -> int:
        """Elements in the shard."""
        if shard.length != UNKNOWN_LENGTH:
            return shard.length
        dtype = self._known_dtype(opened)
        return 0 if dtype is None else shard.file(SUFFIX).bytes // dtype.itemsize

    def shard_problems(self, opened: Opened, shard: ShardRecord) -> Iterator[tuple[str, str]]:
        """The index, where it does not fit the payloads; the elements, where they point at no payload."""
        file = shard.file(SUFFIX)
        dtype = self._known_dtype(opened)
        if found := list(index_problem(self.reading_store, shard)):
            yield from found
        if found or dtype is None:
            return
        if problem := length_problem(file, shard.length, dtype.itemsize):
            yield file.name, problem
            return
        count = payload_count(shard)
        for begin in range(0, file.bytes, _CHUNK_ELEMENTS * dtype.itemsize):
            num_bytes = min(_CHUNK_ELEMENTS * dtype.itemsize, file.bytes - begin)
            raw = self.reading_store.get_ranges(file.name, np.array([begin]), np.array([num_bytes]))[0]
            numbers = np.frombuffer(raw, dtype)["index"]
            if int(numbers.min()) < 0 or int(numbers.max()) >= count:
                yield file.name, f"points at payloads {numbers.min()} to {numbers.max()}, but there are {count}"
                return
        if count and (file.bytes == 0 or numbers[-1] != count - 1):
            yield file.name, f"ends before the last of the {count} payloads: it was cut"

    def _known_dtype(self, opened: Opened) -> np.dtype[Any] | None:
        if self.storage_format is not None:
            return annotated_dtype(self.storage_format.stream_dtype)
        where = self.reading_store.location
        return annotated_dtype(span_format(opened.manifest.dtype, where).stream_dtype) if opened.by_headrace else None


class AnnotatedWriter(Writer[AnnotatedFormat | SpanFormat, "_Output"]):
    """`append(shard, record)`: the elements and payloads that the format makes of each record, shard by shard."""

    __doc__ = Writer.__doc__
    kind = KIND

    def _packed(self, data: Any) -> Spans:
        return packed_spans(self._format, data)

    def _check_room(self, packed: Spans, output: "_Output | None") -> None:
        known = 0 if output is None else output.num_payloads
        if known + len(packed.payloads) > MAX_PAYLOADS:
            problem = (
                f"would be the shard's payloads {known} to {known + len(packed.payloads)}; it holds {MAX_PAYLOADS}"
            )
            raise FieldError("payloads", f"{problem}, so go on in another shard")

    def _output(self, attempt: ShardAttempt, open_files: OpenFiles) -> "_Output":
        return _Output(attempt, open_files, annotated_dtype(self._format.stream_dtype))


class _Output(ShardOutput):
    def __init__(self, attempt: ShardAttempt, open_files: OpenFiles, dtype: np.dtype[Any]) -> None:
        super().__init__(attempt, open_files)
        self._dtype = dtype
        self._elements = self._file(SUFFIX)
        self._memory = np.zeros if has_padding(dtype) else np.empty  # no file gets what lay in memory before
        self._payloads: PayloadOutput | None = None  # their files come with the first one, as GuideLoom's do

    @property
    def num_payloads(self) -> int:
        return 0 if self._payloads is None else self._payloads.count

    def append(self, packed: Spans) -> None:
        lengths, payloads, stream = packed
        if not payloads:
            return
        if self._payloads is None:
            self._payloads = PayloadOutput(self._file(DATA), self._file(INDEX))
        first = self._payloads.count
        self._payloads.extend(payloads)
        numbers = np.repeat(np.arange(first, first + len(payloads), dtype=np.int32), lengths)
        for begin in range(0, len(stream), _CHUNK_ELEMENTS):  # in pieces that stay in the processor's cache
            part = slice(begin, begin + _CHUNK_ELEMENTS)
            elements = self._memory(len(stream[part]), self._dtype)
            elements["index"] = numbers[part]
            elements["user"] = stream[part]
            self._elements.append(elements.view(np.uint8).data)
        self.length += len(stream)

    def finish(self) -> None:
        if self._payloads is not None:
            self._payloads.finish()


class SpanBatch(Sequence[Any]):
    """A batch of windows with their spans: a sequence of samples, made when they are asked for.

    elements      (batch, window) of the stream's element type, writable, a view that may be strided
    span_lengths  (num_spans,) elements of each span, of all windows in order; a window's add up to its length
    row_spans     (batch + 1,) window i has the spans row_spans[i] to row_spans[i + 1], exclusive
    shards        (num_spans,) the shard of each span
    payloads      a writable memoryview a span
    """

    __slots__ = (
        "_document_index",
        "_format",
        "_unpack_spans",
        "elements",
        "payloads",
        "row_spans",
        "shards",
        "span_lengths",
    )

    def __init__(
        self,
        elements: NDArray[Any],
        span_lengths: Int64s,
        row_spans: Int64s,
        shards: Int64s,
        payloads: list[memoryview],
        storage_format: Any,
    ) -> None:
        self.elements = elements
        self.span_lengths = span_lengths
        self.row_spans = row_spans
        self.shards = shards
        self.payloads = payloads
        self._format = storage_format
        self._unpack_spans = (
            storage_format.unpack_spans if stands_for(storage_format, "unpack_spans", "unpack") else None
        )
        self._document_index: NDArray[np.int32] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        spans = self.span_lengths, self.row_spans, self.shards, [bytes(payload) for payload in self.payloads]
        return _rebuilt, (self.elements, *spans, self._format)

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        begin, end = self.row_spans[row], self.row_spans[row + 1]
        stream, payloads = self.elements[row], self.payloads[begin:end]
        if self._unpack_spans is not None:
            return self._unpack_spans(stream, self.span_lengths[begin:end], payloads)
        return self._format.unpack(stream, self.shards[begin:end], self.document_index[row], payloads)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    @property
    def is_plain(self) -> bool:
        """Whether samples have the elements and spans of these arrays; who has an unpack_spans() of his own may not."""
        unpack = self._unpack_spans
        return unpack is None or getattr(unpack, "__func__", None) is SpanNumpyFormat.unpack_spans

    @property
    def nbytes(self) -> int:
        """The memory of all windows and payloads."""
        return self.elements.nbytes + sum(payload.nbytes for payload in self.payloads)

    @property
    def document_index(self) -> NDArray[np.int32]:
        """For each element, which span of its window it is in, from 0; shape (batch, window)."""
        if self._document_index is None:
            within = np.arange(len(self.span_lengths), dtype=np.int32)
            if len(self) > 1:
                within -= np.repeat(within[self.row_spans[:-1]], self.row_spans[1:] - self.row_spans[:-1])
            self._document_index = within.repeat(self.span_lengths).reshape(self.elements.shape)
        return self._document_index


class _OpenAnnotated:
    """An opened directory: lengths, format, files."""

    def __init__(
        self, storage: StreamWithMetaStorage, opened: Opened, storage_format: AnnotatedFormat | SpanFormat
    ) -> None:
        store = storage.reading_store
        self._format = storage_format
        self._dtype = annotated_dtype(storage_format.stream_dtype)
        self.lengths = stream_lengths(opened.manifest, self._dtype.itemsize, store.location)
        self.total_length = int(self.lengths.sum())
        self.fingerprint = storage.fingerprint_of(opened)
        self._ends = np.cumsum(self.lengths)
        source = storage.source(opened)
        self._payloads = Payloads(source, opened, share=3)
        if (bare := (self.lengths > 0) & (self._payloads.counts == 0)).any():
            shard = int(bare.argmax())
            raise CorruptShardError(store.location, shard, f"has {self.lengths[shard]} elements but no payload")
        records = [shard.file(SUFFIX) for shard in opened.manifest.shards]
        sizes = np.array([record.bytes for record in records], np.int64)
        files = ShardFiles(source, [record.name for record in records], sizes, share=3)
        self._views = ShardViews(files)
        self.files = FileSets(source, files, *self._payloads.files)
        self._elements = self.gather(1, 1)
        if not opened.by_headrace:
            self._check_last_payloads(store.location)

    def _check_last_payloads(self, where: str) -> None:
        """CorruptShardError where a shard's last element does not point at its last payload: its writer was killed."""
        files, itemsize = self._views.files, self._dtype.itemsize
        filled = np.flatnonzero(self.lengths).tolist()
        places = [np.array([int(files.sizes_bytes[shard]) - itemsize]) for shard in filled]
        ends = files.ranges_of([(shard, place, np.array([4])) for shard, place in zip(filled, places, strict=True)])
        last = np.full(len(self.lengths), -1)
        last[filled] = [int(np.frombuffer(raw, "<i4")[0]) for (raw,) in ends]
        if (cut := last != self._payloads.counts - 1).any():
            shard = int(cut.argmax())
            count = self._payloads.counts[shard]
            problem = f"{files.names[shard]} ends with payload {last[shard]}, but there are {count}: it was cut"
            raise CorruptShardError(where, shard, problem)

    def gather(self, stride: int, row_elements: int) -> RowGather:
        return RowGather(self._views, self.lengths, self._dtype.itemsize, stride=stride, row_elements=row_elements)

    def window(self, start: int, num_elements: int) -> Any:
        data, lengths, shards = self._elements.elements(start, num_elements)
        rows = data.view(self._dtype).reshape(1, num_elements)
        if len(lengths) > 1:
            begins = np.cumsum(lengths) - lengths
            return self._batch(rows, begins[lengths > 0], shards[lengths > 0])[0]
        return self._batch(rows, _FIRST[: len(lengths)], shards)[0]

    def windows(self, gather: RowGather, numbers: NDArray[np.int64]) -> Sequence[Any]:
        raw = gather.rows(numbers)
        length = gather.row_elements
        rows = np.ndarray((len(raw), length), self._dtype, raw)
        starts = numbers % max(1, gather.num_rows) * gather.stride
        begins, shards = np.arange(0, len(raw) * length, length), self._ends.searchsorted(starts, "right")
        crosses = starts + length > self._ends[shards]
        if crosses.any():
            begins, shards = self._pieces(begins, shards, starts, np.flatnonzero(crosses), length)
        return self._batch(rows, begins, shards)

    def _pieces(
        self, begins: Int64s, shards: Int64s, starts: Int64s, crossing: NDArray[np.intp], length: int
    ) -> tuple[Int64s, Int64s]:
        """begins and shards, with an entry more wherever one of the crossing windows enters another shard."""
        more_begins, more_shards = [begins], [shards]
        for row in crossing.tolist():
            inner = np.arange(shards[row] + 1, int(self._ends.searchsorted(starts[row] + length)) + 1)
            inner = inner[self.lengths[inner] > 0]
            more_begins.append(begins[row] + self._ends[inner] - self.lengths[inner] - starts[row])
            more_shards.append(inner)
        joined = np.concatenate(more_begins)
        order = np.argsort(joined)
        return joined[order], np.concatenate(more_shards)[order]

    def _batch(self, rows: NDArray[Any], begins: Int64s, shards: Int64s) -> SpanBatch:
        """rows has shape (batch, window); its elements from begins[k] on, counted through, lie in shards[k]."""
        num_rows, length = rows.shape
        index = np.ascontiguousarray(rows["index"]).reshape(-1)
        is_start = np.empty(len(index), np.bool_)
        np.not_equal(index[1:], index[:-1], out=is_start[1:])
        is_start[begins] = True
        (starts,) = is_start.nonzero()
        lengths = np.empty(len(starts), np.int64)
        np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
        lengths[-1:] = len(index) - starts[-1:]
        span_shards = shards[begins.searchsorted(starts, "right") - 1]
        return SpanBatch(
            rows["user"],
            lengths,
            starts.searchsorted(np.arange(num_rows + 1) * length),
            span_shards,
            self._payloads.read(span_shards, index[starts].astype(np.int64)),
            self._format,
        )


def _check_schema(where: str, stored: Any, asked: dict[str, Any]) -> None:
    span_format(stored, where)  # refuses what makes no sense
    if stored["elements"] != asked["elements"]:
        raise SchemaMismatchError(where, "elements of type", stored["elements"], asked["elements"])
    known = stored["payloads"], asked["payloads"]
    if None not in known and known[0] != known[1] and known[1] != {"encoding": "bytes"}:
        raise SchemaMismatchError(where, "payloads of", *known)


def _rebuilt(elements: Any, lengths: Any, row_spans: Any, shards: Any, payloads: list[bytes], how: Any) -> SpanBatch:
    return SpanBatch(elements, lengths, row_spans, shards, [memoryview(bytearray(data)) for data in payloads], how)
