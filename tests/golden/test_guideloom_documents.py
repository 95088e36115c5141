"""Documents that GuideLoom 1.1.0 wrote, and what its own readers returned for them."""

import asyncio
import hashlib
import pickle
from itertools import pairwise

import numpy as np
import pytest

from golden.recorded import WAYS, copied, data_of, expected_of, opened_by, orders, visible_files
from headrace import (
    DocumentBytesFormat,
    DocumentDataset,
    DocumentNumpyFormat,
    DocumentPickleFormat,
    DocumentStorage,
    SpanNumpyFormat,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
    UnsafeDataError,
    open_storage,
)
from headrace.errors import CorruptShardError, SchemaMismatchError, UnfinishedDatasetError

RAW, PICKLE = "documents_raw", "documents_pickle"
FORMATS = {RAW: DocumentBytesFormat(), PICKLE: DocumentPickleFormat(allow_pickle=True)}
CASES = [(name, way) for name in FORMATS for way in WAYS]
needs_protocol_4 = pytest.mark.skipif(
    pickle.DEFAULT_PROTOCOL != 4,
    reason=f"GuideLoom pickled with protocol 4, and this Python's default is {pickle.DEFAULT_PROTOCOL}",
)


class Seeing:
    """A custom format that stores what it is given and returns all that unpack() is given."""

    def __init__(self, wrap=bytes):
        self._wrap = wrap

    def pack(self, data):
        return self._wrap(data)

    def unpack(self, encoded_data, shard):
        return encoded_data, shard


def documents_of(name):
    """Every document, from expected.json alone."""
    found = []
    for number, document in enumerate(expected_of(name)["documents"]):
        assert document["global_index"] == number
        if "value" in document:
            found.append(document["value"])
        elif "hex" in document:
            found.append(bytes.fromhex(document["hex"]))
        else:
            found.append(bytes((31 * i + 7 * (i >> 8) + 5) % 256 for i in range(document["bytes"])))
    return found


def shards_of(name):
    return [document["shard"] for document in expected_of(name)["documents"]]


def stored_documents(name):
    """The payloads as bytes, cut out of GuideLoom's files by the offsets in expected.json."""
    found = []
    for shard, offsets in expected_of(name)["index_offsets"].items():
        data = (data_of(name) / f"{int(shard):07d}.out_of_band.bin").read_bytes()
        found += [data[begin:end] for begin, end in pairwise(offsets)]
    return found


def test_the_recorded_documents_are_those_whose_digests_were_recorded():
    documents = expected_of(RAW)["documents"]
    for data, document in zip(documents_of(RAW), documents, strict=True):
        assert (len(data), hashlib.sha256(data).hexdigest()) == (document["bytes"], document["sha256"])
    assert max(map(len, documents_of(RAW))) == 300_001


@pytest.mark.parametrize(("name", "way"), CASES)
def test_counts_lengths_and_every_document_are_guidelooms(name, way):
    expected, documents = expected_of(name), documents_of(name)
    with opened_by(DocumentStorage, name, FORMATS[name], way).sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (expected["num_shards"], expected["total_length"])
        assert [reader.length(shard) for shard in range(reader.num_shards)] == expected["shard_lengths"]
        read = [reader.read(number) for number in range(reader.total_length)]
        assert read == documents
        assert list(map(type, read)) == list(map(type, documents))  # 7 is not True, nor bytes a memoryview
        assert reader.read(np.int64(3)) == documents[3]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_many_documents_come_in_any_order_with_repeats(name, way):
    documents = documents_of(name)
    storage = opened_by(DocumentStorage, name, FORMATS[name], way)
    with storage.sync_reader() as reader, storage.dataset() as dataset:
        assert len(dataset) == len(documents)
        for items in orders(len(documents)):
            wanted = [documents[number] for number in items]
            assert dataset.__getitems__(items) == wanted
            assert dataset.__getitems__(items.tolist()) == wanted
            inside = items % len(documents)  # a reader has no negative numbers
            assert reader.read_many(inside) == wanted
            assert reader.read_many(inside.tolist()) == wanted
        for items in expected_of(RAW)["read_many"] if name == RAW else []:
            assert reader.read_many(np.array(items, np.int64)) == [documents[number] for number in items]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_items_and_slices_are_those_of_a_list(name, way):
    documents = documents_of(name)
    dataset = opened_by(DocumentStorage, name, FORMATS[name], way).dataset()
    assert list(dataset) == documents
    assert [dataset[-number] for number in range(1, len(documents) + 1)] == documents[::-1]
    ends = [None, 0, 2, 5, 8, -1, -3, 500, -500]
    for start in ends:
        for stop in ends:
            for step in (None, 2, -1, -3):
                assert dataset[start:stop:step] == documents[start:stop:step]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_an_async_reader_gives_the_same_documents(name, way):
    documents = documents_of(name)
    storage = opened_by(DocumentStorage, name, FORMATS[name], way)

    async def read():
        async with storage.async_reader() as reader, storage.dataset().async_reader() as dataset:
            one_by_one = await asyncio.gather(*(reader.read(number) for number in range(reader.total_length)))
            many = await reader.read_many(np.arange(len(dataset))[::-1].copy())
            return one_by_one, many, await dataset[-1], await dataset[1:6:2]

    one_by_one, many, last, some = asyncio.run(read())
    assert (one_by_one, many) == (documents, documents[::-1])
    assert (last, some) == (documents[-1], documents[1:6:2])


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_format_is_given_each_payload_with_its_shard(name, way):
    wanted = list(zip(stored_documents(name), shards_of(name), strict=True))
    dataset = opened_by(DocumentStorage, name, Seeing(), way).dataset()
    for items in orders(len(wanted)):
        seen = dataset.__getitems__(items)
        assert [(bytes(data), shard) for data, shard in seen] == [wanted[number] for number in items]
        assert all(type(data) is bytearray for data, _ in seen)
    if name == RAW:
        assert [shard for _, shard in dataset[2:8:2]] == expected_of(name)["dataset_slice_2_8_2_shards"]


def test_payloads_that_are_changed_change_no_file_and_no_other_read():
    dataset = opened_by(DocumentStorage, RAW, Seeing()).dataset()
    first, other = dataset[1][0], dataset.__getitems__([1, 3, 1])
    first[:] = b"omega"
    other[0][0][:] = b"ALPHA"
    assert [bytes(data) for data, _ in other] == [b"ALPHA", b"\x00\xff\x00", b"alpha"]
    assert bytes(dataset[1][0]) == b"alpha"


def test_reads_outside_are_index_errors():
    errors = expected_of(RAW)["errors"]
    with opened_by(DocumentStorage, RAW, FORMATS[RAW]).sync_reader() as reader:
        calls = {
            "read(71)": lambda: reader.read(71),
            "read(-1)": lambda: reader.read(-1),
            "read_many([0,71])": lambda: reader.read_many(np.array([0, 71])),
            "read_many([-1])": lambda: reader.read_many(np.array([-1])),
        }
        assert calls.keys() == errors.keys()
        for name, call in calls.items():
            # One answer differs on purpose: GuideLoom documents an IndexError here, too.
            assert errors[name]["error"] == ("AssertionError" if name == "read(-1)" else "IndexError")
            with pytest.raises(IndexError):
                call()
        for shard in (-1, 4):
            with pytest.raises(IndexError, match="4 shards"):
                reader.length(shard)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_lengths_are_the_differences_of_the_recorded_offsets(name, way):
    expected = expected_of(name)
    for shard, offsets in expected["index_offsets"].items():
        stored = np.fromfile(data_of(name) / f"{int(shard):07d}.out_of_band.index", "<i8")
        assert stored.tolist() == offsets
    dataset = opened_by(DocumentStorage, name, FORMATS[name], way).dataset()
    wanted = np.concatenate([np.diff(offsets) for offsets in expected["index_offsets"].values()])
    np.testing.assert_array_equal(dataset.lengths, wanted, strict=True)
    np.testing.assert_array_equal(dataset.shard_lengths, np.array(expected["shard_lengths"]), strict=True)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_payloads_are_arrays_in_a_numpy_format(way):
    documents = documents_of(RAW)
    dataset = opened_by(DocumentStorage, RAW, DocumentNumpyFormat("u1"), way).dataset()
    for items in orders(len(documents)):
        for array, number in zip(dataset.__getitems__(items), items, strict=True):
            np.testing.assert_array_equal(array, np.frombuffer(documents[number], np.uint8), strict=True)
    with pytest.raises(CorruptShardError, match="no whole number of elements of 4 bytes"):
        DocumentDataset(opened_by(DocumentStorage, RAW, DocumentNumpyFormat("<i4"), way)).lengths


def write_like_guideloom(storage, name, documents):
    """Every document by append(), the shards in turn rather than one after another."""
    waiting = {}
    for shard, document in zip(shards_of(name), documents, strict=True):
        waiting.setdefault(shard, []).append(document)
    with storage.sync_writer() as writer:
        while waiting:
            for shard in list(waiting):
                writer.append(shard, waiting[shard].pop(0))
                if not waiting[shard]:
                    del waiting[shard]
        return [writer.length(shard) for shard in range(expected_of(name)["num_shards"])]


def wide(data):
    """The bytes as a memoryview of wider items where they divide: 12 bytes are 3 items, and still 12 bytes."""
    return memoryview(data).cast("I") if data and len(data) % 4 == 0 else memoryview(data)


@pytest.mark.parametrize(
    ("name", "storage_format"),
    [
        (RAW, DocumentBytesFormat()),
        (RAW, Seeing(bytearray)),
        (RAW, Seeing(memoryview)),
        (RAW, Seeing(wide)),  # GuideLoom itself counts its items, and so breaks the index
        pytest.param(PICKLE, DocumentPickleFormat(), marks=needs_protocol_4),
    ],
    ids=["bytes", "bytearray", "memoryview", "wide memoryview", "pickle"],
)
def test_writing_the_same_documents_gives_guidelooms_bytes_and_no_file_more(name, storage_format, tmp_path):
    expected = expected_of(name)
    storage = DocumentStorage(tmp_path / "data", storage_format)
    assert write_like_guideloom(storage, name, documents_of(name)) == expected["shard_lengths"]
    assert visible_files(tmp_path / "data") == visible_files(data_of(name))
    storage.publish()
    written = visible_files(tmp_path / "data")
    assert written == visible_files(data_of(name))
    digests = {file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for file, data in written.items()}
    assert digests == expected["files"]
    assert storage.verify() == []


def test_numpy_documents_of_the_same_bytes_give_guidelooms_bytes(tmp_path):
    arrays = [np.frombuffer(document, np.uint8) for document in documents_of(RAW)]
    write_like_guideloom(DocumentStorage(tmp_path / "data", DocumentNumpyFormat("u1")), RAW, arrays)
    assert visible_files(tmp_path / "data") == visible_files(data_of(RAW))


def test_pickles_are_read_only_with_the_callers_word_and_else_as_bytes():
    documents = stored_documents(PICKLE)
    refusing = DocumentStorage(data_of(PICKLE), DocumentPickleFormat())
    with pytest.raises(UnsafeDataError, match="allow_pickle=True"):
        refusing.dataset()[0]
    with refusing.sync_reader() as reader, pytest.raises(UnsafeDataError, match="allow_pickle=True"):
        reader.read_many([4])
    assert len(refusing.dataset()) == len(documents)  # what needs no unpickling works
    assert DocumentStorage(data_of(PICKLE), DocumentBytesFormat()).dataset()[:] == documents
    assert DocumentStorage(data_of(PICKLE)).dataset()[:] == documents  # nothing is recorded: bytes


@pytest.mark.parametrize("name", FORMATS)
def test_a_foreign_directory_says_what_cannot_be_checked(name):
    storage = opened_by(DocumentStorage, name, FORMATS[name])
    described = storage.dataset().describe()
    assert (described["kind"], described["published"]) == ("documents", False)
    assert {"element type", "digests", "whether all shards are there"} <= set(described["unchecked"])
    assert described["num_samples"] == expected_of(name)["total_length"]
    assert described["fingerprint"].startswith("sizes:")
    assert storage.verify() == []


@pytest.mark.parametrize("name", FORMATS)
def test_documents_are_refused_as_any_other_kind(name):
    stream = [("tokens", "<i4")]
    with pytest.raises(SchemaMismatchError, match=r"in_band\.bin"):
        StreamStorage(data_of(name), StreamNumpyFormat(np.dtype(stream))).sync_reader().open()
    with pytest.raises(SchemaMismatchError, match=r"in_band\.bin"):
        StreamWithMetaStorage(data_of(name), SpanNumpyFormat(stream)).sync_reader().open()
    assert type(open_storage(data_of(name))) is DocumentStorage


@pytest.mark.parametrize("lost", range(4))
def test_a_directory_with_a_gap_is_refused(lost, tmp_path):
    directory = copied(RAW, tmp_path / "data")
    for suffix in ("bin", "index"):
        (directory / f"{lost:07d}.out_of_band.{suffix}").unlink()
    if lost == 3:  # nothing tells that it ever was
        assert len(DocumentStorage(directory).dataset()) == 6
        return
    with pytest.raises(UnfinishedDatasetError, match=f"shards {lost} of 0 to 3 are missing"):
        DocumentStorage(directory).sync_reader().open()


@pytest.mark.parametrize("suffix", ["bin", "index"])
@pytest.mark.parametrize("shard", range(4))
def test_a_shard_with_one_of_its_two_files_is_refused(shard, suffix, tmp_path):
    directory = copied(RAW, tmp_path / "data")
    (directory / f"{shard:07d}.out_of_band.{suffix}").unlink()
    with pytest.raises(SchemaMismatchError, match=f"shard {shard} stores files"):
        DocumentStorage(directory).dataset().open()


@pytest.mark.parametrize("suffix", ["bin", "index"])
@pytest.mark.parametrize("shard", [0, 1, 3])  # shard 2 is an empty document: without it the rest is a whole shard
def test_a_shard_that_a_killed_writer_cut_anywhere_is_refused_when_it_is_opened(shard, suffix, tmp_path):
    directory = copied(RAW, tmp_path / "data")
    path = directory / f"{shard:07d}.out_of_band.{suffix}"
    whole = path.read_bytes()
    for cut in range(0, len(whole), max(1, len(whole) // 300)):
        # An index may end where a document does; that it does not cover the data is how the cut shows.
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptShardError, match=f"shard {shard}"):
            DocumentStorage(directory).dataset().open()
