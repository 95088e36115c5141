"""Documents and spans at the edges of size and number: long, huge, empty, none, millions."""

import mmap
import subprocess
import sys

import numpy as np
import pytest

from dataset.scenes import DOCUMENTS, SPANS
from headrace.datasets import (
    DocumentStorage,
    MmapIO,
    PosixPreadIO,
    SeekIO,
    StreamWithMetaStorage,
)
from headrace.errors import NoDatasetError, UnfinishedDatasetError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat, DocumentNumpyFormat
from headrace.store import LocalStore

INTERFACES = [MmapIO(), PosixPreadIO(), SeekIO()]
EVERY_INTERFACE = pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: type(interface).__name__)
LONG = [65_535, 65_536, 0, 65_537, 70_000, 1]
HUGE = (1 << 31) + 4096 + 7  # bytes; past what one read or write call moves, and past int32


def tokens_from(start, length):
    return (np.arange(start, start + length) % 65_521).astype("<u2")


@EVERY_INTERFACE
def test_documents_longer_than_16_bits_can_count_come_back(interface, tmp_path):
    storage = DocumentStorage(LocalStore(tmp_path, fsync=False), DocumentNumpyFormat("<u2"))
    starts = np.cumsum([0, *LONG])
    with storage.sync_writer() as writer:
        for shard in range(2):
            for start, length in zip(starts[:-1].tolist(), LONG, strict=True):
                writer.append(shard, tokens_from(start + shard, length))
    dataset = DocumentStorage(tmp_path, None, interface).dataset()
    assert dataset.lengths.tolist() == LONG * 2
    for documents in (dataset[:], [dataset[number] for number in range(12)]):
        for number, document in enumerate(documents):
            expected = tokens_from(int(starts[number % 6]) + number // 6, LONG[number % 6])
            assert np.array_equal(document, expected)
    assert storage.verify() == []


@pytest.mark.parametrize("records", [1, len(LONG) - 1], ids=["in one record", "in a record each"])
@EVERY_INTERFACE
def test_spans_longer_than_16_bits_can_count_come_back(records, interface, tmp_path):
    lengths = [length for length in LONG if length]
    total = sum(lengths)
    storage = StreamWithMetaStorage(LocalStore(tmp_path, fsync=False), SpanNumpyFormat("<u2"))
    with storage.sync_writer() as writer:
        begin = 0
        for part in np.array_split(np.arange(len(lengths)), records):
            count = sum(lengths[number] for number in part)
            payloads = [b"%d" % number for number in part]
            spans = {"span_lengths": [lengths[number] for number in part], "payloads": payloads}
            writer.append(0, {"tokens": tokens_from(begin, count), **spans})
            begin += count
    reader = StreamWithMetaStorage(tmp_path, None, interface).sync_reader()
    with reader:
        whole = reader.read(0, total)
        assert whole["span_lengths"].tolist() == lengths
        assert np.array_equal(whole["tokens"], tokens_from(0, total))
        assert [bytes(payload) for payload in whole["payloads"]] == [b"%d" % k for k in range(len(lengths))]
        across = reader.read(65_534, 65_540)
        assert across["span_lengths"].tolist() == [1, 65_536, 3]
        assert np.array_equal(across["tokens"], tokens_from(65_534, 65_540))


EMPTY = {
    "first": [[b"", b"a", b"bc"]],
    "last": [[b"a", b"bc", b""]],
    "in the middle": [[b"a", b"", b"bc"]],
    "alone": [[b""]],
    "alone in the middle shard": [[b"a"], [b""], [b"bc"]],
    "last of a shard and first of the next": [[b"a", b""], [b"", b"bc"]],
    "everywhere": [[b"", b"", b""], [b""] * 20],
    "around a shard without documents": [[b"a", b""], [], [b"", b"bc"]],
}


@pytest.mark.parametrize("publish", [True, False])
@pytest.mark.parametrize("name", EMPTY)
@EVERY_INTERFACE
def test_empty_documents_are_documents(name, publish, interface, tmp_path):
    storage = DocumentStorage(LocalStore(tmp_path, fsync=False), DocumentBytesFormat())
    with storage.sync_writer() as writer:
        for shard, documents in enumerate(EMPTY[name]):
            writer.start(shard)
            for document in documents:
                writer.append(shard, document)
    if publish:
        storage.publish()
    whole = [document for shard in EMPTY[name] for document in shard]
    dataset = DocumentStorage(tmp_path, None, interface).dataset()
    assert dataset[:] == whole
    assert [dataset[number] for number in range(len(dataset))] == whole
    assert dataset.__getitems__(np.arange(len(whole)).repeat(20)) == [copy for one in whole for copy in [one] * 20]
    assert dataset.lengths.tolist() == list(map(len, whole))
    assert dataset.shard_lengths.tolist() == list(map(len, EMPTY[name]))
    assert storage.verify() == []


@pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
def test_a_writer_without_shards_leaves_nothing_that_opens_and_publish_says_so(kind, tmp_path):
    storage = kind.write(tmp_path / "none", [])
    for call in (storage.publish, kind.dataset(storage).open):
        with pytest.raises((NoDatasetError, UnfinishedDatasetError), match="no shard has been committed"):
            call()


@pytest.mark.parametrize("publish", [True, False])
@pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
@EVERY_INTERFACE
def test_shards_of_nothing_are_a_dataset_of_nothing(kind, publish, interface, tmp_path):
    written = kind.write(tmp_path, [[], []], publish=publish)
    storage = kind.storage_at(tmp_path, interface)
    dataset = kind.dataset(storage)
    assert len(dataset) == 0
    assert list(dataset[:]) == list(dataset.__getitems__([])) == []
    assert dataset.shard_lengths.tolist() == [0, 0]
    for number in (0, -1, 1):
        with pytest.raises(IndexError, match="outside a dataset of 0"):
            dataset[number]
    with storage.sync_reader() as reader:
        assert (reader.num_shards, reader.total_length, reader.length(1)) == (2, 0, 0)
    assert written.verify() == []


class Ends:
    """Samples are length, first and last bytes of a document, which is not copied for it."""

    reads_in_place = True

    def pack(self, data):
        return data

    def unpack(self, encoded_data, shard):
        return len(encoded_data), bytes(encoded_data[:4]), bytes(encoded_data[-4:])


class CopiedEnds(Ends):
    """The same of a copy that Headrace makes."""

    reads_in_place = False


def huge_file(path):
    """A sparse file that holds "abc", a document of HUGE bytes, and "xyz"."""
    with path.open("wb") as file:
        file.write(b"abchead")
        file.truncate(3 + HUGE - 4)
        file.seek(0, 2)
        file.write(b"tailxyz")


HUGE_ENDS = [(3, b"abc", b"abc"), (HUGE, b"head", b"tail"), (3, b"xyz", b"xyz")]


@pytest.mark.slow
@EVERY_INTERFACE
def test_a_document_over_2_gib_is_read_whole(interface, tmp_path):
    data, index = tmp_path / "0000000.out_of_band.bin", tmp_path / "0000000.out_of_band.index"
    huge_file(data)
    index.write_bytes(np.array([0, 3, 3 + HUGE, 6 + HUGE], "<i8").tobytes())
    try:
        dataset = DocumentStorage(tmp_path, Ends(), interface).dataset()
        assert [dataset[number] for number in range(3)] == HUGE_ENDS
        assert dataset[:] == HUGE_ENDS
        assert dataset.lengths.tolist() == [3, HUGE, 3]
        with dataset.storage.sync_reader() as reader:
            assert reader.read(1) == HUGE_ENDS[1]
            assert reader.read_many([2, 1, 0] * 4)[3:6] == HUGE_ENDS[::-1]
    finally:
        data.unlink()


@pytest.mark.slow
def test_a_document_over_2_gib_is_copied_whole_and_written_whole(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "data"
    huge_file(source)
    storage = DocumentStorage(LocalStore(folder, fsync=False), CopiedEnds())
    try:
        with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            with storage.sync_writer() as writer:
                for begin, end in ((0, 3), (3, 3 + HUGE), (3 + HUGE, 6 + HUGE)):
                    writer.append(0, view[begin:end])
            view.release()
        source.unlink()
        storage.publish()
        dataset = storage.dataset()
        assert dataset[1] == HUGE_ENDS[1]
        assert dataset.__getitems__([0, 2] * 5 + [1])[9:] == [HUGE_ENDS[2], HUGE_ENDS[1]]
        assert (folder / "0000000.out_of_band.bin").stat().st_size == HUGE + 6
        assert storage.verify() == []
    finally:
        source.unlink(missing_ok=True)
        (folder / "0000000.out_of_band.bin").unlink(missing_ok=True)


MILLIONS = """
import sys, time
import numpy as np
from headrace.datasets import DocumentStorage, PosixPreadIO
from headrace.formats.documents import DocumentNumpyFormat
from headrace.store import LocalStore

def anonymous_mib():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

folder, count = sys.argv[1], int(sys.argv[2])
tokens = np.arange(20 + 65_536, dtype=np.uint32).astype("<u2")
storage = DocumentStorage(LocalStore(folder, fsync=False), DocumentNumpyFormat("<u2"))
def document(number):
    return tokens[number % 65_536 : number % 65_536 + 20]

begin, before, most = time.perf_counter(), anonymous_mib(), 0
with storage.sync_writer() as writer:
    for number in range(count):
        writer.append(0, document(number))
        if number % 100_000 == 0:
            most = max(most, anonymous_mib() - before)
most = max(most, anonymous_mib() - before)
print("written", round(time.perf_counter() - begin, 1), "s", round(most, 1), "MiB")
assert most < 32, most

for interface in (None, PosixPreadIO()):
    before = anonymous_mib()
    dataset = DocumentStorage(folder, None, interface).dataset()
    begin = time.perf_counter()
    assert len(dataset) == count
    opened = time.perf_counter() - begin
    assert anonymous_mib() - before < 8
    draw = np.random.default_rng(0).integers(0, count, 20_000)
    begin = time.perf_counter()
    for part in np.array_split(draw, 20):
        for number, found in zip(part.tolist(), dataset.__getitems__(part), strict=True):
            assert np.array_equal(found, document(number))
    for number in (0, count // 2, count - 1):
        assert np.array_equal(dataset[number], document(number))
    read = time.perf_counter() - begin
    assert anonymous_mib() - before < 32
    begin = time.perf_counter()
    lengths = dataset.lengths
    seconds = time.perf_counter() - begin
    assert lengths.shape == (count,) and (lengths == 20).all()
    grown = anonymous_mib() - before
    assert grown < 32 + 2 * lengths.nbytes / 2**20, grown  # the answer, and no more than once the index
    print("opened", round(opened, 3), "read", round(read, 2), "lengths", round(seconds, 3), "grown", round(grown))
    dataset.close()
"""


@pytest.mark.slow
def test_five_million_documents_of_20_tokens_need_little_memory_to_write_open_and_read(tmp_path):
    command = [sys.executable, "-c", MILLIONS, tmp_path / "data", "5000000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    for path in (tmp_path / "data").glob("0*"):
        path.unlink()
