"""Many shards of two and three files under `ulimit -n 256`: each case in a process of its own with that limit."""

import subprocess
import sys

import numpy as np
import pytest
import xxhash

from dataset.scenes import DOCUMENTS, SPANS
from headrace.manifest import VERSION, FileRecord, Receipt

LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from headrace.datasets import DocumentStorage, StreamDataset, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat

kind, folder, num_shards = sys.argv[1], sys.argv[2], int(sys.argv[3])

def plain(sample):
    if kind == "documents":
        return sample
    assert sample["span_lengths"].tolist() == [3, 1]
    return sample["tokens"].tolist(), [bytes(payload) for payload in sample["payloads"]]

def expected(number):  # of documents two a shard, of windows one
    if kind == "documents":
        return b"" if number % 2 else b"%07d" % (number // 2)
    return [(4 * number + k) % 65_536 for k in range(4)], [b"%07d" % number, b""]

def make():
    if kind == "documents":
        return DocumentStorage(folder, DocumentBytesFormat()).dataset()
    return StreamDataset(StreamWithMetaStorage(folder, SpanNumpyFormat("<u2")), 4)

tries = []
for _ in range(3):
    dataset = make()
    begin = time.process_time()
    dataset.open()
    tries.append(time.process_time() - begin)
count = num_shards * (2 if kind == "documents" else 1)
assert len(dataset) == count
for items in (
    np.arange(count),
    np.random.default_rng(0).permutation(count)[:3000],
    np.arange(0, count, max(1, count // 300)),
):
    found = [plain(sample) for sample in dataset.__getitems__(items)]
    assert found == [expected(number) for number in items.tolist()]
for number in range(0, count, 7):
    assert plain(dataset[number]) == expected(number)
if kind == "documents":
    assert dataset.lengths.tolist() == [7, 0] * num_shards
else:
    with dataset.storage.sync_reader() as reader:
        whole = reader.read(4, 4 * num_shards)
    assert whole["span_lengths"].tolist() == [3, 1] * num_shards
    payloads = [bytes(payload) for payload in whole["payloads"][::2]]
    assert payloads == [b"%07d" % number for number in [*range(1, num_shards), 0]]
print(min(tries))
"""


def limited(kind, folder, num_shards):
    """Seconds that opening takes, in a process that may have 256 files and reads everything."""
    command = [sys.executable, "-c", LIMITED, kind.kind, folder, str(num_shards)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


def shard_files(kind, shard):
    """The bytes of a shard's files, by name."""
    files = {"out_of_band.bin": b"%07d" % shard, "out_of_band.index": np.array([0, 7, 7], "<i8").tobytes()}
    if kind is SPANS:
        elements = [(int(k == 3), (4 * shard + k) % 65_536) for k in range(4)]
        files["in_band.bin"] = np.array(elements, [("index", "<i4"), ("user", "<u2")]).tobytes()
    return {f"{shard:07d}.{suffix}": raw for suffix, raw in sorted(files.items())}


def write_raw(kind, folder, num_shards):
    folder.mkdir()
    for shard in range(num_shards):
        for name, raw in shard_files(kind, shard).items():
            (folder / name).write_bytes(raw)


def add_receipts(kind, folder, num_shards):
    """As a writer would have: making 10,000 shards one commit at a time would be the whole test."""
    private = folder / ".headrace"
    private.mkdir()
    (private / "generation").write_bytes(b"0\n")
    bytes_schema = {"encoding": "bytes"}
    schema = bytes_schema if kind is DOCUMENTS else {"elements": "<u2", "payloads": bytes_schema}
    for shard in range(num_shards):
        files = tuple(
            FileRecord(name, len(raw), xxhash.xxh3_128_hexdigest(raw)) for name, raw in shard_files(kind, shard).items()
        )
        length = 2 if kind is DOCUMENTS else 4
        receipt = Receipt(VERSION, kind.kind, schema, shard, length, files, "someone", 0)
        (private / f"{shard:07d}.receipt").write_bytes(receipt.to_json())


@pytest.mark.parametrize("num_shards", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
def test_many_shards_open_and_read_everywhere_with_256_files(kind, num_shards, tmp_path):
    folder = tmp_path / "data"
    write_raw(kind, folder, num_shards)
    seconds = {"foreign": limited(kind, folder, num_shards)}
    add_receipts(kind, folder, num_shards)
    seconds["receipts"] = limited(kind, folder, num_shards)
    storage = kind.storage_at(folder)
    storage.publish()
    seconds["published"] = limited(kind, folder, num_shards)
    assert storage.verify() == []
    print(seconds)


WRITER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from headrace.datasets import DocumentStorage, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat
from headrace.store import LocalStore

store = LocalStore(sys.argv[2], fsync=False)
if sys.argv[1] == "documents":
    storage = DocumentStorage(store, DocumentBytesFormat())
    records = lambda shard: [b"%07d" % shard, b""]
else:
    storage = StreamWithMetaStorage(store, SpanNumpyFormat("<u2"))
    records = lambda shard: [
        {"tokens": range(4 * shard, 4 * shard + 3), "span_lengths": [3], "payloads": [b"%07d" % shard]},
        {"tokens": [4 * shard + 3], "span_lengths": [1], "payloads": [b""]},
    ]
with storage.sync_writer() as writer:
    for turn in range(2):
        for shard in range(300):
            writer.append(shard, records(shard)[turn])
storage.publish()
"""


@pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
def test_a_writer_of_300_shards_needs_fewer_than_256_files(kind, tmp_path):
    command = [sys.executable, "-c", WRITER, kind.kind, tmp_path / "data"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    limited(kind, tmp_path / "data", 300)
