"""Records that lie: huge sizes, indexes that wrap, numbers that point nowhere. Each is an error, never a crash.

What might crash runs in a process of its own, whose exit status tells.
"""

import gc
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from dataset.payload_scenes import documents_at, spans_at, unsynced
from dataset.scenes import open_files_below
from headrace.datasets import DocumentStorage, StreamDataset, StreamStorage, StreamWithMetaStorage
from headrace.errors import CorruptShardError, DatasetError, ManifestError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat, DocumentJsonFormat, DocumentNumpyFormat
from headrace.formats.stream import StreamArrayFormat
from headrace.manifest import FileRecord, Manifest, ShardRecord
from headrace.store import MemoryStore

READ_ALL_OVER = """
import sys
from headrace import open_storage
from headrace.errors import CorruptShardError

dataset = open_storage(sys.argv[1]).dataset(1)
count = len(dataset)
assert count == int(sys.argv[2]), count

def refused(read):
    try:
        read()
    except CorruptShardError:
        return
    raise AssertionError("was read")

for item in (0, 1, count // 2, count - 2, count - 1, -1, -2, -count // 2, -count):
    refused(lambda: list(dataset.__getitems__([item])))
    refused(lambda: list(dataset.__getitems__([item] * 3)))
    refused(lambda: dataset[item])
for item in (count, -count - 1, 2**63 - 1, -2**63):
    try:
        list(dataset.__getitems__([item]))
    except IndexError:
        continue
    raise AssertionError(item)
print("refused all")
"""


def run(program, *arguments):
    found = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=100
    )
    assert (found.returncode, found.stderr) == (0, "")  # -11 is a segmentation fault
    return found.stdout.strip()


def recorded(folder, kind, dtype, shards):
    """A manifest with a right fingerprint that says so; files of one byte lie there. (length, {suffix: bytes}) each."""
    records = []
    for number, (length, sizes) in enumerate(shards):
        files = tuple(FileRecord(f"{number:07d}.{suffix}", size, "") for suffix, size in sizes.items())
        records.append(ShardRecord(length, files))
        for file in files:
            (folder / file.name).write_bytes(b"x")
    (folder / "headrace.json").write_bytes(Manifest.of(kind, dtype, records).to_json())


@pytest.mark.parametrize("num_elements", [(1 << 62) - 1, (1 << 62) - 16, (1 << 62) - 4096, 1 << 61, 1 << 48, 2])
def test_a_stream_that_claims_to_be_huge_is_corrupt_and_crashes_nothing(num_elements, tmp_path):
    recorded(tmp_path, "stream", "|u1", [(num_elements, {"in_band.bin": num_elements})])
    assert run(READ_ALL_OVER, tmp_path, num_elements) == "refused all"


@pytest.mark.parametrize("num_elements", [((1 << 62) - 4096) // 6, ((1 << 62) - 64) // 6, (1 << 48) // 6, 2])
def test_a_stream_with_metadata_that_claims_to_be_huge_is_corrupt_and_crashes_nothing(num_elements, tmp_path):
    sizes = {"in_band.bin": 6 * num_elements, "out_of_band.bin": 1, "out_of_band.index": 16}
    recorded(tmp_path, "annotated", {"elements": "<u2", "payloads": None}, [(num_elements, sizes)])
    assert run(READ_ALL_OVER, tmp_path, num_elements) == "refused all"


@pytest.mark.parametrize("sizes", [[1 << 60] * 3, [1 << 61, 5, 1 << 60], [3, (1 << 62) - 4096], [(1 << 62) - 99, 0, 3]])
def test_a_huge_claim_beside_others_is_corrupt_and_crashes_nothing(sizes, tmp_path):
    recorded(tmp_path, "stream", "|u1", [(size, {"in_band.bin": size}) for size in sizes])
    assert run(READ_ALL_OVER, tmp_path, sum(sizes)) == "refused all"


@pytest.mark.parametrize("size", [(1 << 62) + 1, 1 << 63, 1 << 64])
def test_sizes_that_no_dataset_can_have_are_refused_as_the_manifest_is_read(size, tmp_path):
    recorded(tmp_path, "stream", "|u1", [(size, {"in_band.bin": size})])
    with pytest.raises(ManifestError):
        len(StreamDataset(StreamStorage(tmp_path), 1))


def plain_stream():
    storage = StreamStorage(MemoryStore(), StreamArrayFormat("<u2"))
    with storage.sync_writer() as writer:
        writer.append(0, range(9))
    return storage


def with_metadata():
    record = {"tokens": range(9), "span_lengths": [4, 5], "payloads": [b"a", b"b"]}
    return spans_at(MemoryStore(), [[record]], SpanNumpyFormat("<u2"))


STREAMS = {"plain": (plain_stream, 2), "with metadata": (with_metadata, 6)}


@pytest.mark.parametrize("kind", STREAMS)
def test_windows_too_large_for_memory_are_a_value_error_and_the_largest_one_is_not(kind):
    make, item_bytes = STREAMS[kind]
    storage = make()
    most = ((1 << 31) - 1) // item_bytes
    for length in (most - 1, most):
        assert len(storage.dataset(length)[:]) == 0
    for length in (most + 1, 1 << 31, 1 << 32, 1 << 61, 1 << 62):
        with pytest.raises(ValueError, match="too large; a window has at most 2147483647 bytes"):
            len(storage.dataset(length)[:])
    with pytest.raises(ValueError, match="too large"):
        len(storage.dataset(1, extra=1 << 40)[:])


@pytest.mark.parametrize("kind", STREAMS)
def test_strides_of_any_size_give_the_first_window_or_a_value_error(kind):
    make, item_bytes = STREAMS[kind]
    storage = make()
    for stride in (9, 1 << 31, 1 << 48, (1 << 62) // item_bytes - 1):
        assert len(storage.dataset(3, stride)[:]) == 1
        assert len(storage.dataset(3, stride)[0]) > 0
    for stride in ((1 << 62) // item_bytes + 1, 1 << 62, (1 << 63) - 1):
        with pytest.raises(ValueError, match="too large"):
            len(storage.dataset(3, stride)[:])


def foreign(folder, offsets, data=b"abc", elements=None, dtype="<u2", shard=0):
    """Files as another program would leave them. elements are (payload number, token)."""
    (folder / f"{shard:07d}.out_of_band.bin").write_bytes(data)
    (folder / f"{shard:07d}.out_of_band.index").write_bytes(np.array(offsets, "<i8").tobytes())
    if elements is not None:
        raw = np.array(elements, [("index", "<i4"), ("user", dtype)]).tobytes()
        (folder / f"{shard:07d}.in_band.bin").write_bytes(raw)


@pytest.mark.parametrize(
    ("offsets", "payload"),
    [
        # Differences that wrap: as int64 none of them is negative.
        ([0, 1 << 62, (1 << 63) - 1, 5 - (1 << 63), 10 - (1 << 63), 0, 3], 2),
        ([0, (1 << 63) - 1, -2, 3], 1),
        ([0, 2, 1, 3], 1),
    ],
)
def test_lengths_of_an_index_whose_differences_wrap_are_refused(offsets, payload, tmp_path):
    foreign(tmp_path, offsets)
    for storage_format in (DocumentBytesFormat(), DocumentNumpyFormat("|u1")):
        storage = DocumentStorage(tmp_path, storage_format)
        with pytest.raises(CorruptShardError, match=rf"payload {payload} is bytes"):
            storage.dataset().lengths
    assert [damage.problem for damage in storage.verify()] == [
        f"has offsets that go down, first behind payload {payload}"
    ]


def problems(storage):
    return [(damage.shard, damage.file, damage.problem) for damage in storage.verify()]


@pytest.mark.parametrize("where", ["foreign", "recorded"])
@pytest.mark.parametrize("number", [2, 9999, (1 << 31) - 1, -1, -(1 << 31)])
def test_verify_lists_elements_that_point_at_no_payload_wherever_they_are(where, number, tmp_path):
    numbers = np.zeros(200_000, np.int32)  # more than are looked at in one go
    numbers[100_000:] = 1
    numbers[-1] = number
    elements = np.rec.fromarrays([numbers, np.zeros(len(numbers), "<u2")])
    foreign(tmp_path, [0, 1, 3], elements=[(0, 7), (1, 8)])
    foreign(tmp_path, [0, 1, 3], elements=elements.tolist(), shard=1)
    if where == "recorded":
        record_what_is_there(tmp_path, "annotated", {"elements": "<u2", "payloads": None}, [2, len(numbers)])
    formats = [SpanNumpyFormat("<u2")] if where == "foreign" else [SpanNumpyFormat("<u2"), None]
    for storage_format in formats:
        storage = StreamWithMetaStorage(tmp_path, storage_format)
        problem = "points at payloads {} to {}, but there are 2".format(*sorted([1, number]))
        assert problems(storage) == [(1, "0000001.in_band.bin", problem)]
        with pytest.raises(CorruptShardError, match="shard 1"):
            list(storage.dataset(1).__getitems__([-1]))
    if where == "foreign":
        assert StreamWithMetaStorage(tmp_path).verify() == []  # nothing says how large an element is


def record_what_is_there(folder, kind, dtype, lengths):
    """A manifest with digests of the files as they are, and these lengths."""
    records = []
    for number, length in enumerate(lengths):
        files = [
            FileRecord(path.name, len(raw), xxhash.xxh3_128_hexdigest(raw))
            for path in sorted(folder.glob(f"{number:07d}.*"))
            for raw in [path.read_bytes()]
        ]
        records.append(ShardRecord(length, tuple(files)))
    (folder / "headrace.json").write_bytes(Manifest.of(kind, dtype, records).to_json())


@pytest.mark.parametrize("where", ["foreign", "recorded"])
@pytest.mark.parametrize("kind", STREAMS)
def test_verify_lists_files_that_end_in_the_middle_of_an_element(kind, where, tmp_path):
    if kind == "plain":
        (tmp_path / "0000000.in_band.bin").write_bytes(b"1234567")
        storage, dtype, size = StreamStorage(tmp_path, StreamArrayFormat("<u2")), "<u2", 2
    else:
        foreign(tmp_path, [0, 3], elements=[(0, 1), (0, 2)])
        path = tmp_path / "0000000.in_band.bin"
        path.write_bytes(path.read_bytes()[:-1])
        storage, size = StreamWithMetaStorage(tmp_path, SpanNumpyFormat("<u2")), 6
        dtype = {"elements": "<u2", "payloads": None}
    claimed = ""
    if where == "recorded":
        record_what_is_there(tmp_path, storage.kind, dtype, [1])
        claimed = " for 1 elements"
    num_bytes = (tmp_path / "0000000.in_band.bin").stat().st_size
    problem = f"has {num_bytes} bytes{claimed}, and an element has {size}"
    assert problems(storage) == [(0, "0000000.in_band.bin", problem)]
    with pytest.raises(CorruptShardError, match=problem):
        len(storage.dataset(1))


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("length", [1, 3])
def test_verify_lists_lengths_that_are_not_those_of_the_files(kind, length, tmp_path):
    if kind == "plain":
        (tmp_path / "0000000.in_band.bin").write_bytes(b"1234")
        storage, dtype = StreamStorage(tmp_path), "<u2"
    else:
        foreign(tmp_path, [0, 3], elements=[(0, 1), (0, 2)])
        storage, dtype = StreamWithMetaStorage(tmp_path), {"elements": "<u2", "payloads": None}
    record_what_is_there(tmp_path, storage.kind, dtype, [length])
    assert [found[:2] for found in problems(storage)] == [(0, "0000000.in_band.bin")]
    assert f"for {length} elements" in problems(storage)[0][2]
    with pytest.raises(CorruptShardError, match=f"for {length} elements"):
        len(storage.dataset(1))
    record_what_is_there(tmp_path, storage.kind, dtype, [2])
    assert problems(storage) == []


@pytest.mark.parametrize("length", [1, 5, 1 << 40])
def test_verify_lists_an_index_of_more_or_fewer_documents_than_are_recorded(length, tmp_path):
    storage = documents_at(unsynced(tmp_path), [[[1], [2]]], DocumentJsonFormat())
    record_what_is_there(tmp_path, "documents", {"encoding": "json"}, [length])
    problem = f"has 24 bytes for {length} documents; it needs {8 * length + 8}"
    assert problems(storage) == [(0, "0000000.out_of_band.index", problem)]
    with pytest.raises(CorruptShardError, match=str(8 * length + 8)):
        len(storage.dataset())
    record_what_is_there(tmp_path, "documents", {"encoding": "json"}, [2])
    assert problems(storage) == []


def test_verify_finds_nothing_wrong_with_good_files_of_another_program(tmp_path):
    foreign(tmp_path, [0, 1, 3], elements=[(0, 7), (1, 8), (1, 9)])
    foreign(tmp_path, [0, 3], elements=[(0, 7)], shard=1)
    (tmp_path / "0000002.in_band.bin").write_bytes(b"")
    assert problems(StreamWithMetaStorage(tmp_path, SpanNumpyFormat("<u2"))) == []


def a_dataset(kind, place):
    """Three documents or windows."""
    if kind == "documents":
        return documents_at(place, [[b"a", b"bc"], [b"d"]], DocumentBytesFormat()).dataset()
    if kind == "with metadata":
        record = {"tokens": range(9), "span_lengths": [4, 5], "payloads": [b"a", b"b"]}
        return spans_at(place, [[record]], SpanNumpyFormat("<u2")).dataset(3)
    storage = StreamStorage(place, StreamArrayFormat("<u2"))
    with storage.sync_writer() as writer:
        writer.append(0, range(9))
    return storage.dataset(3)


@pytest.mark.parametrize("kind", ["documents", *STREAMS])
@pytest.mark.parametrize(
    "number", [3, -4, -10, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 63, -(1 << 63) - 1, 1 << 64, -(1 << 64), 10**30]
)
def test_numbers_outside_are_index_errors_in_lists_too_and_named_as_they_were_given(kind, number):
    dataset = a_dataset(kind, MemoryStore())
    nearest = max(-(1 << 63), min(number, (1 << 63) - 1))  # as close as 64 bits come
    for items in ([number], [0, number], [number, -1, 2], [number] * 20):
        with pytest.raises(IndexError, match=rf" ({number}|{nearest}) is outside a dataset of 3 "):
            list(dataset.__getitems__(items))
    with pytest.raises(IndexError, match=rf"{number}|{nearest}"):
        dataset[number]
    assert len(list(dataset.__getitems__([0, -1]))) == 2


@pytest.mark.parametrize("kind", ["documents", *STREAMS])
@pytest.mark.parametrize("error", ["outside", "damaged", "missing"])
def test_closing_after_an_error_lets_go_of_every_file(kind, error, tmp_path):
    dataset = a_dataset(kind, unsynced(tmp_path))
    assert len(list(dataset[:])) == 3
    for path in tmp_path.glob("0*.bin") if error != "outside" else []:
        if error == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes() + b"more")
    failing = a_reader_of(dataset)
    for read in (lambda: failing[99 if error == "outside" else 0], lambda: failing.__getitems__([99, 0])):
        with pytest.raises((IndexError, DatasetError)):
            read()
    for opened in (failing, dataset):
        opened.close()
        opened.close()
    gc.collect()
    assert open_files_below(tmp_path) == 0
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


def a_reader_of(dataset):
    """The same data, not opened yet."""
    return pickle.loads(pickle.dumps(dataset))
