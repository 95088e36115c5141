"""One module a kind of dataset: its storage, writer, reader and map-style dataset; and the commits that they share.

storage.py  stream.py  stream_writer.py     what users hold
ledger.py  opening.py  publication.py       which directory is a dataset, and how it becomes one
attempts.py                                 one shard's way to its receipt
shard_files.py  verification.py             reading bytes back, fast; and suspiciously
"""

from headrace.datasets.asynchronous import AsyncReader
from headrace.datasets.read_interfaces import MmapIO, PosixPreadIO, SeekIO
from headrace.datasets.stream import StreamDataset, StreamReader, StreamStorage, WindowBatch
from headrace.datasets.stream_writer import StreamWriter
from headrace.datasets.verification import Damage

__all__ = [
    "AsyncReader",
    "Damage",
    "MmapIO",
    "PosixPreadIO",
    "SeekIO",
    "StreamDataset",
    "StreamReader",
    "StreamStorage",
    "StreamWriter",
    "WindowBatch",
]
