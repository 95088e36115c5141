"""One module a kind of dataset: its storage, writer, reader and map-style dataset; and the commits that they share.

stream.py  documents.py  annotated.py       what users hold: storages, and each kind's writing and reading
samples/                                    samples with columns, in Streaming's formats
storage.py  writer.py  windows.py           what those have in common
kinds.py  neighbours.py                     which of them a directory holds, and which do not lie side by side
ledger.py  opening.py  publication.py       which directory is a dataset, and how it becomes one
attempts.py  upload_attempts.py  spool.py   one shard's way to its receipt, by renames or by uploads
sources.py  round_trips.py                  where files are read, whole or by ranges, and what tells that they changed
shard_files.py  row_gather.py  payloads.py  reading bytes back, fast
verification.py                             and suspiciously
copying/                                    and at another place
"""

from headrace.datasets.annotated import AnnotatedWriter, SpanBatch, StreamWithMetaStorage
from headrace.datasets.asynchronous import AsyncReader
from headrace.datasets.copying import CopyReport, copy_dataset
from headrace.datasets.documents import DocumentDataset, DocumentReader, DocumentStorage, DocumentWriter
from headrace.datasets.kinds import open_storage
from headrace.datasets.read_interfaces import MmapIO, PosixPreadIO, SeekIO
from headrace.datasets.samples import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    SampleDataset,
    SampleStorage,
    TSVWriter,
    XSVWriter,
    merge_index,
)
from headrace.datasets.stream import StreamStorage, StreamWriter, WindowBatch
from headrace.datasets.verification import Damage
from headrace.datasets.windows import StreamDataset, StreamReader

__all__ = [
    "AnnotatedWriter",
    "AsyncReader",
    "CSVWriter",
    "CopyReport",
    "Damage",
    "DocumentDataset",
    "DocumentReader",
    "DocumentStorage",
    "DocumentWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "MmapIO",
    "PosixPreadIO",
    "SampleDataset",
    "SampleStorage",
    "SeekIO",
    "SpanBatch",
    "StreamDataset",
    "StreamReader",
    "StreamStorage",
    "StreamWithMetaStorage",
    "StreamWriter",
    "TSVWriter",
    "WindowBatch",
    "XSVWriter",
    "copy_dataset",
    "merge_index",
    "open_storage",
]
