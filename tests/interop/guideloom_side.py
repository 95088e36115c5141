"""Runs in GuideLoom's own interpreter: writes datasets with it, or reads them, and tells what it saw as JSON.

python -m interop.guideloom_side streams|documents|annotated write DIR
python -m interop.guideloom_side streams|documents|annotated read DIR...        prints a list, one entry a DIR
"""

import json
import pathlib
import sys
from contextlib import ExitStack

import numpy as np
from guideloom import (
    DocumentDataset,
    DocumentPickleFormat,
    DocumentStorage,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
)
from guideloom.io import MmapIO, PosixPreadIO, SeekIO

from interop import annotated_cases, cases, document_cases


class Streams:
    CASES = cases.CASES

    def storage(self, directory, name, io=None):
        return StreamStorage(directory, StreamNumpyFormat(np.dtype(cases.CASES[name])), io)

    def records(self, name):
        return cases.records(name)

    def seen(self, storage):
        with storage.sync_reader() as reader, StreamDataset(storage, cases.WINDOW).sync_reader() as windows:
            return cases.seen_by(reader, windows)


class Documents:
    CASES = document_cases.CASES

    def storage(self, directory, name, io=None):
        chosen = DocumentPickleFormat() if name == "pickle" else document_cases.DocumentFormat(name)
        return DocumentStorage(directory, chosen, io)

    def records(self, name):
        return document_cases.records(name)

    def seen(self, storage):
        with storage.sync_reader() as reader, DocumentDataset(storage).sync_reader() as dataset:
            found = document_cases.seen_by(reader, dataset)
        storage.storage_format = document_cases.ShardFormat()
        with storage.sync_reader() as reader:
            return {**found, "payloads": [reader.read(number) for number in range(reader.total_length)]}


class Annotated:
    CASES = annotated_cases.CASES

    def storage(self, directory, name, io=None):
        return StreamWithMetaStorage(directory, annotated_cases.AnnotatedFormat(name), io)

    def records(self, name):
        return annotated_cases.records(name)

    def seen(self, storage):
        with ExitStack() as stack:
            windows = [StreamDataset(storage, length).sync_reader() for length in annotated_cases.WINDOWS]
            datasets = [stack.enter_context(dataset) for dataset in windows]
            return annotated_cases.seen_by(stack.enter_context(storage.sync_reader()), datasets)


def write(kind, root):
    for name in kind.CASES:
        with kind.storage(root / name, name).sync_writer() as writer:
            for shard, record in kind.records(name):
                writer.append(shard, record)


def read(kind, root):
    """What it saw in each case: the same through each of its read interfaces."""
    seen = {}
    for name in kind.CASES:
        for io in (SeekIO(), PosixPreadIO(), MmapIO()):
            found = kind.seen(kind.storage(root / name, name, io))
            if seen.setdefault(name, found) != found:
                raise SystemExit(f"{name}: {type(io).__name__} reads otherwise than SeekIO")
    return seen


if __name__ == "__main__":
    chosen = {"streams": Streams(), "documents": Documents(), "annotated": Annotated()}[sys.argv[1]]
    roots = [pathlib.Path(root) for root in sys.argv[3:]]
    match sys.argv[2]:
        case "write":
            write(chosen, *roots)
        case "read":
            print(json.dumps([read(chosen, root) for root in roots]))
