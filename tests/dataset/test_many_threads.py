"""Hundreds of shards at a time: read by eight threads with `ulimit -n 256`, and written in little memory."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from dataset.payload_scenes import documents_at, spans_at, unsynced
from headrace.datasets import DocumentStorage
from headrace.datasets.attempts import BUFFER_BYTES, MAX_OPEN_FILES
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat, DocumentJsonFormat, DocumentNumpyFormat

NUM_SHARDS = 400
A_SHARD = 4  # documents, or windows of 8

THREADS = """
import resource, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from headrace import open_storage
from headrace.planning import Permutation

kind, folder, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
storage = open_storage(folder)
dataset = storage.dataset(8) if kind == "spans" else storage.dataset()
count = len(dataset)
assert count == 1600, count

def is_right(number, sample):
    shard, place = divmod(number, 4)
    if kind == "bytes":
        return sample == b"%d " % number * (place + 1)
    if kind == "arrays":
        return sample.tolist() == [number] * (place + 1)
    return sample["tokens"].tolist() == list(range(8 * number, 8 * number + 8)) and sample["payloads"] == [
        [shard, place, 0],
        [shard, place, 1],
    ]

together = threading.Barrier(8)
found = []

def read(thread):
    try:
        together.wait()
        order = Permutation(count, thread)(np.arange(count)).tolist()
        for begin in range(0, count, batch):
            items = [order[place] for place in range(begin, min(begin + batch, count))]
            for number, sample in zip(items, dataset.__getitems__(items), strict=True):
                assert is_right(number, sample), number
        for place in range(0, count, 40):
            assert is_right(order[place], dataset[order[place]])
        found.append("right")
    except BaseException as error:
        found.append(f"{type(error).__name__}: {error}")

threads = [threading.Thread(target=read, args=(thread,)) for thread in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(set(found))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("many")
    numbers = np.arange(NUM_SHARDS * A_SHARD).reshape(NUM_SHARDS, A_SHARD).tolist()
    documents_at(
        unsynced(place / "bytes"),
        [[b"%d " % number * (k + 1) for k, number in enumerate(shard)] for shard in numbers],
        DocumentBytesFormat(),  # read where it lies
        publish=True,
    )
    documents_at(
        unsynced(place / "arrays"),
        [[[number] * (k + 1) for k, number in enumerate(shard)] for shard in numbers],
        DocumentNumpyFormat("<i4"),  # copied
        publish=True,
    )
    spans_at(
        unsynced(place / "spans"),
        [
            [
                {
                    "tokens": np.arange(8 * number, 8 * number + 8),
                    "span_lengths": [3, 5],
                    "payloads": [[shard, k, 0], [shard, k, 1]],
                }
                for k, number in enumerate(numbers[shard])
            ]
            for shard in range(NUM_SHARDS)
        ],
        SpanNumpyFormat("<u2", DocumentJsonFormat()),
        publish=True,
    )
    return place


@pytest.mark.parametrize("batch", [7, 600])
@pytest.mark.parametrize("kind", ["bytes", "arrays", "spans"])
def test_eight_threads_read_right_all_over_400_shards_with_256_files(kind, batch, folders):
    found = subprocess.run(
        [sys.executable, "-c", THREADS, kind, str(folders / kind), str(batch)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "{'right'}\n", "")


def test_a_writer_of_many_shards_keeps_little_memory_of_each(tmp_path):
    num_shards, many, payload = 200, 600, b"xy"
    writer = DocumentStorage(unsynced(tmp_path), DocumentBytesFormat()).sync_writer()
    with writer:
        for shard in range(num_shards):
            writer.append(shard, payload)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for shard in range(num_shards):
                for _ in range(many):
                    writer.append(shard, payload)
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    # Beside the buffers of the files that are open: as Python's integers the offsets alone would be 24 kB a shard.
    assert (kept - MAX_OPEN_FILES * BUFFER_BYTES) / num_shards < 8_000
    assert len(DocumentStorage(tmp_path).dataset()) == num_shards * (many + 1)
