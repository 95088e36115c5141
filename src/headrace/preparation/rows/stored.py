"""Rows of datasets that Headrace reads: samples, documents, streams, streams with metadata.

samples     a row a sample; images stay the bytes that they are
documents   a row a document: the members of JSON objects, the fields of structured arrays, else `document`
stream      a row each sequence_length elements, the last one shorter; its fields, `tokens` where they have no name
annotated   a row a span: the fields of its elements, and `payload`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import DocumentStorage, StreamWithMetaStorage
from headrace.datasets.documents import DocumentDataset
from headrace.datasets.kinds import holds_samples, open_storage
from headrace.datasets.ledger import MANIFEST, PRIVATE, shard_and_suffix
from headrace.datasets.samples.dataset import SampleDataset
from headrace.errors import InputError
from headrace.formats.documents import DocumentFormat, DocumentNumpyFormat, DocumentPickleFormat, document_format
from headrace.preparation.rows.columns import SAMPLED_ROWS, Columns, columns_of_rows
from headrace.preparation.rows.splits import Observer, Row, RowSource
from headrace.preparation.rows.streams import CHANGED, PICKLED, element_columns, span_source, window_source
from headrace.preparation.rows.tables import batch_rows
from headrace.store import LocalStore

__all__ = ["is_dataset", "stored_source"]

_DOCUMENT = "document"
_RAW = ("pil", "png", "jpeg", "jpeg_array", "jpegarray", "list[pil]", "list[png]", "list[jpeg]")


def is_dataset(path: Path) -> bool:
    """Whether the directory holds a dataset, finished or not, or shards that another program wrote."""
    if any((path / name).exists() for name in (MANIFEST, PRIVATE)) or holds_samples(LocalStore(path)):
        return True
    return any(shard_and_suffix(entry.name) for entry in path.iterdir())


def stored_source(path: Path, sequence_length: int | None) -> RowSource:
    """The rows of the dataset at path. InputError for pickles, and for elements whose type is not recorded."""
    if holds_samples(LocalStore(path)):
        return _sample_source(path)
    storage = open_storage(path)
    match storage:
        case DocumentStorage():
            return _document_source(path, storage)
        case StreamWithMetaStorage():
            return span_source(path, storage)
        case _:
            return window_source(path, storage, sequence_length)


class _RawEncoding:
    """Values as they are stored: what is neither looked at nor encoded again comes out the same."""

    size = None

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: Any) -> bytes:
        """Nothing is written with it."""
        raise NotImplementedError

    def decode(self, data: memoryview) -> bytes:
        """The stored bytes."""
        return bytes(data)


@dataclass(frozen=True)
class SampleSource:
    """A dataset of samples. Places are samples."""

    name: str  # its path
    fingerprint: str
    length: int
    size_bytes: int
    can_be_cut = has_schema = True

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The places themselves."""
        return list(places)

    def columns(self) -> Columns:
        """Of the first shard, as the index has them."""
        with _unread(self.name) as dataset:
            # Shards of text call float what MDS calls float64.
            return {name: "float64" if kind == "float" else kind for name, kind in dataset.columns.items()}

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(number, sample) of the samples start to stop. UnsafeDataError for a wanted column of pickles."""
        with SampleDataset(self.name, columns=names, encodings=[_RawEncoding(name) for name in _RAW]) as dataset:
            if dataset.fingerprint != self.fingerprint:
                raise InputError(self.name, CHANGED)
            yield from _items(self, dataset, start, stop, observer)

    def where(self, place: int) -> str:
        """The directory and the sample's number."""
        return f"{self.name}, sample {place}"


def _sample_source(path: Path) -> SampleSource:
    with _unread(str(path)) as dataset:
        return SampleSource(str(path), dataset.fingerprint, len(dataset), int(dataset.describe()["total_bytes"]))


def _unread(path: str) -> SampleDataset:
    """The dataset for a look at its index alone, which pickles do not hinder."""
    return SampleDataset(path, encodings=[_RawEncoding("pkl")])


@dataclass(frozen=True)
class DocumentSource:
    """A dataset of documents. Places are documents."""

    name: str  # its path
    fingerprint: str
    length: int
    size_bytes: int
    fields: bool  # whether documents are JSON objects, and rows their members
    can_be_cut = True

    @property
    def has_schema(self) -> bool:
        """Whether documents are no JSON objects."""
        return not self.fields

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The places themselves."""
        return list(places)

    def columns(self) -> Columns:
        """By the recorded type; of JSON by the first 100 documents."""
        storage = DocumentStorage(self.name)
        storage_format = document_format(storage.open().manifest.dtype, self.name)
        match storage_format:
            case DocumentNumpyFormat(dtype=dtype):
                return element_columns(dtype, _DOCUMENT)
            case _ if _encoding(storage_format) == "json":
                return columns_of_rows(row for _, row in islice(self.rows(0, self.length, None, None), SAMPLED_ROWS))
        return {_DOCUMENT: "bytes"}

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(number, row) of the documents start to stop."""
        with DocumentStorage(self.name).dataset() as dataset:
            if dataset.fingerprint != self.fingerprint:
                raise InputError(self.name, CHANGED)
            for place, document in _items(self, dataset, start, stop, observer):
                yield place, self._row(place, document)

    def _row(self, place: int, document: Any) -> Row:
        if isinstance(document, dict) is not self.fields:
            expected = "a JSON object" if self.fields else "none"
            raise InputError(
                self.where(place), f"the first document is {expected}, but not this one; rows need one kind"
            )
        if isinstance(document, dict):
            return document
        return _fields(document, _DOCUMENT) if isinstance(document, np.ndarray) else {_DOCUMENT: document}

    def where(self, place: int) -> str:
        """The directory and the document's number."""
        return f"{self.name}, document {place}"


def _document_source(path: Path, storage: DocumentStorage) -> DocumentSource:
    manifest = storage.open().manifest
    if isinstance(document_format(manifest.dtype, str(path)), DocumentPickleFormat):
        raise InputError(str(path), f"its documents {PICKLED}")
    with storage.dataset() as dataset:
        fields = len(dataset) > 0 and isinstance(dataset[0], dict)
        return DocumentSource(str(path), dataset.fingerprint, len(dataset), manifest.total_bytes, fields)


def _items(
    source: SampleSource | DocumentSource,
    dataset: SampleDataset | DocumentDataset,
    start: int,
    stop: int,
    observer: Observer | None,
) -> Iterator[tuple[int, Any]]:
    """(number, item) from start to stop, batch by batch."""
    step = batch_rows(source.length, source.size_bytes)
    for begin in range(start, stop, step):
        end = min(begin + step, stop)
        yield from enumerate(dataset.__getitems__(np.arange(begin, end)), begin)
        if observer is not None:
            observer(source.size_bytes * (end - begin) // source.length)


def _fields(elements: NDArray[Any], plain: str) -> Row:
    names = elements.dtype.names
    return {plain: elements} if names is None else {name: elements[name] for name in names}


def _encoding(storage_format: DocumentFormat) -> str | None:
    return getattr(storage_format, "encoding", None)
