"""Runs in GuideLoom's own interpreter: reads windows with metadata, or writes spans, as each request on standard input
says, and answers with seconds.

    python guideloom_annotated.py

A request is a line of JSON. Reading (seconds a window): directory, io (a class of guideloom.io), dtype, and windows, a
file of their numbers; with digest=true the answer is instead a digest of the samples. Writing (seconds a token): a
fresh directory, source, a file with the arrays tokens, one row a record, lengths and payloads, the same for each
record, and records, how many of them.
"""

import hashlib
import json
import pathlib
import sys
import time
from collections.abc import Generator
from itertools import repeat
from typing import Any

import guideloom.io
import numpy as np
from guideloom import StreamDataset, StreamWithMetaStorage

WINDOW = 2048


class Windows:
    """Records are (tokens, span lengths, payloads); samples what unpack() is given."""

    def __init__(self, stream_dtype: str) -> None:
        self.stream_dtype = np.dtype(stream_dtype)

    def size(self, data: Any) -> int:
        return len(data[0])

    def pack(self, data: tuple[np.ndarray, list[int], list[bytes]]) -> Generator[tuple[int, bytes], None, np.ndarray]:
        tokens, lengths, payloads = data
        for key, (length, payload) in enumerate(zip(lengths, payloads, strict=True)):
            yield from repeat((key, payload), length)  # no faster way to yield was found
        return tokens

    def unpack(self, stream_data: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        return stream_data, document_shard, document_index, document_data


def digest_of(samples: Any) -> str:
    digest = hashlib.sha256()
    for stream, shards, index, payloads in samples:
        for part in (stream, shards.astype("<i8"), index.astype("<i4"), *payloads):
            digest.update(bytes(part) if isinstance(part, bytearray | memoryview) else part.tobytes())
    return digest.hexdigest()


class Reading:
    """Readers stay open from request to request."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], Any] = {}

    def answer(self, directory: str, io: str, dtype: str, windows: str, digest: bool = False) -> Any:
        key = directory, io, dtype
        if key not in self._open:
            storage = StreamWithMetaStorage(pathlib.Path(directory), Windows(dtype), getattr(guideloom.io, io)())
            self._open[key] = StreamDataset(storage, WINDOW).sync_reader()
            self._open[key].open()
        dataset = self._open[key]
        numbers = np.load(windows).reshape(-1).tolist()  # it takes Python's integers
        if digest:
            return digest_of(dataset[number] for number in numbers)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for number in numbers:
            dataset[number]
        taken = time.perf_counter() - begin, time.process_time() - begin_cpu
        return [one / len(numbers) for one in taken]


def write(directory: str, source: str, records: int) -> list[float]:
    loaded = np.load(source)
    tokens = loaded["tokens"][:records]
    lengths, payloads = loaded["lengths"].tolist(), [payload.tobytes() for payload in loaded["payloads"]]
    storage = StreamWithMetaStorage(pathlib.Path(directory), Windows(tokens.dtype.str))
    begin, begin_cpu = time.perf_counter(), time.process_time()
    with storage.sync_writer() as writer:
        for record in tokens:
            writer.append(0, (record, lengths, payloads))
    taken = time.perf_counter() - begin, time.process_time() - begin_cpu
    return [one / tokens.size for one in taken]


def main() -> None:
    reading = Reading()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(write(**request) if "source" in request else reading.answer(**request)), flush=True)


if __name__ == "__main__":
    main()
