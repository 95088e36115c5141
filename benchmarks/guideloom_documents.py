"""Runs in GuideLoom's own interpreter: reads batches of documents as each request on standard input says, and answers
with the seconds a document that took.

    python guideloom_documents.py BATCHES.npy

A request is a line of JSON: directory, io (a class of guideloom.io), way ("read": one call a document; "read_many": one
a batch), samples ("bytes", "arrays", "json"), and batches, how many. With digest=true the answer is instead a digest of
the samples' bytes.
"""

import hashlib
import json
import pathlib
import sys
import time
from typing import Any

import guideloom.io
import numpy as np
from guideloom import DocumentStorage


class Documents:
    """Payloads as bytes, uint16 arrays, or what their JSON says."""

    def __init__(self, samples: str) -> None:
        self.decode: Any = {"bytes": bytes, "arrays": lambda data: np.frombuffer(data, "<u2"), "json": json.loads}[
            samples
        ]

    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, encoded_data: Any, shard: int) -> Any:
        return self.decode(encoded_data)


class Json(Documents):
    """json.loads takes no memoryview."""

    def unpack(self, encoded_data: Any, shard: int) -> Any:
        return json.loads(bytes(encoded_data))


def main(batches: np.ndarray) -> None:
    readers: dict[tuple[str, str, str], Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["directory"], request["io"], request["samples"]
        if key not in readers:
            form = (Json if request["samples"] == "json" else Documents)(request["samples"])
            storage = DocumentStorage(pathlib.Path(request["directory"]), form, getattr(guideloom.io, request["io"])())
            readers[key] = storage.sync_reader()
            readers[key].open()
        reader, chosen = readers[key], batches[: request["batches"]]
        numbers = chosen.tolist()  # read() takes Python's integers
        if request.get("digest"):
            digest = hashlib.sha256()
            for batch, row in zip(chosen, numbers, strict=True):
                one_by_one = [reader.read(number) for number in row]
                assert one_by_one == reader.read_many(batch), "GuideLoom's two ways to read differ"
                digest.update(b"".join(one_by_one))
            print(json.dumps(digest.hexdigest()), flush=True)
            continue
        begin, begin_cpu = time.perf_counter(), time.process_time()
        if request["way"] == "read":
            for row in numbers:
                [reader.read(number) for number in row]
        else:
            for batch in chosen:
                reader.read_many(batch)
        taken = time.perf_counter() - begin, time.process_time() - begin_cpu
        print(json.dumps([one / chosen.size for one in taken]), flush=True)


if __name__ == "__main__":
    main(np.load(sys.argv[1]))
