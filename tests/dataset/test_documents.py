"""Documents over any layout of shards, against a Python list of them."""

import array
import asyncio
import contextlib
import shutil

import numpy as np
import pytest

from dataset.payload_scenes import (
    STORES,
    Marked,
    RangesOnly,
    documents_at,
    unsynced,
)
from headrace.datasets import DocumentStorage, PosixPreadIO, StreamDataset, StreamStorage
from headrace.errors import ClosedError, FieldError
from headrace.formats.documents import DocumentBytesFormat, DocumentNumpyFormat
from headrace.formats.stream import StreamArrayFormat
from headrace.store import MemoryStore

SHARDS = [[b"", b"a", b"bc"], [], [b"def", b"", b"ghij"], [], [b"klmno"]]
FLAT = [document for shard in SHARDS for document in shard]
BYTES = DocumentBytesFormat()


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """SHARDS, not to be changed."""
    return documents_at(unsynced(tmp_path_factory.mktemp("documents")), SHARDS, BYTES)


def numbered(count):
    """Document i is the array [i]; and a stream whose window i is the same."""
    documents = documents_at(MemoryStore(), [[[i] for i in range(count)]], DocumentNumpyFormat("<u2"))
    stream = StreamStorage(MemoryStore(), StreamArrayFormat("<u2"))
    with stream.sync_writer() as writer:
        writer.append(0, range(count))
    return documents.dataset(), StreamDataset(stream, 1)


def outcome(read):
    try:
        got = read()
    except Exception as error:
        return type(error)
    return [int(one[0]) for one in got] if isinstance(got, list) or not hasattr(got, "dtype") else got.tolist()


INTEGERS = [np.int64, np.uint64, np.int8, np.uint8, np.int32]
ODD = [True, np.bool_(True), 1.0, np.float64(1), "1", None, [1], b"1", (1,), np.array(1), np.array([1])]
FAR = [7, -8, 2**62, 2**63, 2**64 - 1, -(2**63) - 1, 2**200, np.uint64(2**64 - 1), np.int64(-(2**63))]


def test_every_number_gives_what_a_list_gives_for_any_kind_of_integer(storage):
    dataset = storage.dataset()
    assert len(dataset) == 7
    for number in range(-7, 7):
        assert dataset[number] == FLAT[number]
        for kind in INTEGERS:
            if number >= 0 or not issubclass(kind, np.unsignedinteger):
                assert dataset[kind(number)] == FLAT[number]


@pytest.mark.parametrize("index", [*ODD, *FAR, 0, -1, np.int8(-7)], ids=repr)
def test_documents_and_windows_take_and_refuse_the_same_numbers(index):
    documents, windows = numbered(7)
    assert outcome(lambda: documents[index]) == outcome(lambda: windows[index])
    several = outcome(lambda: documents.__getitems__([index, index]))
    assert several == outcome(lambda: windows.__getitems__([index, index]))
    if isinstance(index, float | bool | np.bool_ | str | None):
        assert several is TypeError


@pytest.mark.parametrize("index", FAR, ids=repr)
def test_a_number_far_outside_is_an_index_error_that_names_it(storage, index):
    with pytest.raises(IndexError, match=rf"document {int(index)} is outside a dataset of 7 documents"):
        storage.dataset()[index]
    with storage.sync_reader() as reader, pytest.raises(IndexError):
        reader.read(index)
    if -(2**63) <= int(index) < 2**63:
        for items in ([0, index], np.array([0, index])):
            with pytest.raises(IndexError, match=rf"document {int(index)} is outside a dataset of 7 documents"):
                storage.dataset().__getitems__(items)
    with pytest.raises(IndexError, match=rf"document {2**64 - 1} is"):
        storage.dataset().__getitems__(np.array([1, 2**64 - 1], np.uint64))


@pytest.mark.parametrize("step", [None, 1, 2, 3, 9, -1, -2, -8])
def test_slices_follow_python_s(storage, step):
    dataset = storage.dataset()
    for start in (None, *range(-9, 10)):
        for stop in (None, 0, 3, 7, 100, -1, -4, -100):
            assert dataset[start:stop:step] == FLAT[start:stop:step]
    assert dataset[np.int64(1) : np.uint8(3)] == FLAT[1:3]
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        dataset[::0]
    with pytest.raises(TypeError):
        dataset[1.0:2]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [3],
        [0, 6, 3, 3, 0],
        [-1, 0, -7, 6],
        (5, 5, 5),
        range(6, -1, -1),
        np.array([], np.int64),
        np.array([], np.float64),
        np.array([2, 6, 2], np.uint64),
        np.array([-2, 1], np.int8),
        np.array([4, 0], ">i8"),
        np.arange(7)[::-2],
    ],
    ids=repr,
)
def test_a_batch_comes_in_request_order_with_repeats(storage, items):
    expected = [FLAT[int(item)] for item in items]
    got = storage.dataset().__getitems__(items)
    assert (type(got), got) == (list, expected)
    with storage.sync_reader() as reader:
        if all(int(item) >= 0 for item in items):
            assert reader.read_many(items) == expected
        else:
            with pytest.raises(IndexError):
                reader.read_many(items)


@pytest.mark.parametrize("items", [[1.0], [True], ["1"], [[1]], np.array([[1]]), np.array(1), [None]], ids=repr)
def test_a_batch_of_what_is_no_integer_is_a_type_error(storage, items):
    with pytest.raises(TypeError, match="document numbers must be a list of integers"):
        storage.dataset().__getitems__(items)
    with storage.sync_reader() as reader, pytest.raises(TypeError):
        reader.read_many(items)


def test_a_reader_has_no_negative_numbers(storage):
    with storage.sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (5, 7)
        assert [reader.length(shard) for shard in range(5)] == [3, 0, 3, 0, 1]
        assert [reader.read(number) for number in range(7)] == FLAT
        for use in (
            lambda: reader.read(-1),
            lambda: reader.read(7),
            lambda: reader.read_many([-1]),
            lambda: reader.read_many([0, -7]),
            lambda: reader.read_many(np.array([7])),
            lambda: reader.length(-1),
            lambda: reader.length(5),
        ):
            with pytest.raises(IndexError, match=r"-1|7|5"):
                use()


def test_a_reader_says_when_it_is_not_open_and_opens_again(storage):
    reader = storage.sync_reader()
    uses = (
        lambda: reader.num_shards,
        lambda: reader.total_length,
        lambda: reader.length(0),
        lambda: reader.read(0),
        lambda: reader.read_many([0]),
        lambda: reader.read_many([]),
    )
    for _ in range(2):
        for use in uses:
            with pytest.raises(ClosedError, match="DocumentReader is not open"):
                use()
        with reader:
            assert reader.read(3) == b"def"
            reader.open()
            assert reader.read_many([6, 1]) == [b"klmno", b"a"]
    reader.close()
    reader.close()


def test_asynchronous_readers_give_the_same(storage):
    async def main():
        async with storage.async_reader() as reader:
            assert (reader.total_length, reader.num_shards, reader.length(2)) == (7, 5, 3)
            assert await asyncio.gather(*(reader.read(number) for number in range(7))) == FLAT
            assert await reader.read_many([6, 0, 6]) == [FLAT[6], FLAT[0], FLAT[6]]
            with pytest.raises(IndexError):
                await reader.read(-1)
        with pytest.raises(ClosedError):
            await reader.read(0)
        async with reader:
            assert await reader.read(1) == b"a"
        async with storage.dataset().async_reader() as dataset:
            assert len(dataset) == 7
            assert await dataset[-1] == FLAT[-1]
            assert await dataset[2:5] == FLAT[2:5]
            assert dataset.lengths.tolist() == [len(document) for document in FLAT]

    asyncio.run(main())


# Ranges that one batch asks of an unmapped store.


def asked(shards, items, storage_format=BYTES):
    """(path, [(start, length), ...]) of each request that reading these items makes, once all is open and checked."""
    store = RangesOnly()
    dataset = documents_at(store, shards, storage_format, publish=True).dataset()
    flat = [document for shard in shards for document in shard]
    dataset[:]
    store.requests.clear()
    assert dataset.__getitems__(items) == [flat[item] for item in items]
    return store.requests


@pytest.mark.parametrize("items", [[2, 3, 4], [4, 2, 3], [4, 3, 2], [3, 2, 4, 3, 3, 2], [-6, 3, -7, -8]])
def test_neighbours_in_any_order_are_one_range_of_the_index_and_one_of_the_data(items):
    documents = [bytes([65 + i]) * i for i in range(10)]
    assert sorted(asked([documents], items)) == [
        ("0000000.out_of_band.bin", [(1, 9)]),
        ("0000000.out_of_band.index", [(16, 32)]),
    ]


def test_repeats_of_one_document_cost_one_read_of_it():
    assert sorted(asked([[b"aa", b"bbb", b"c"]], [1] * 50)) == [
        ("0000000.out_of_band.bin", [(2, 3)]),
        ("0000000.out_of_band.index", [(8, 16)]),
    ]


def test_each_run_of_neighbours_is_a_range_of_its_own_and_each_shard_one_request():
    shards = [[b"a", b"b", b"c", b"d", b"e", b"f", b"g"], [], [b"hh", b"ii", b"jj", b"kk"]]
    requests = asked(shards, [5, 1, 10, 0, 7, 4])
    assert len(requests) == 4
    assert dict(requests) == {
        "0000000.out_of_band.index": [(0, 24), (32, 24)],
        "0000000.out_of_band.bin": [(0, 2), (4, 2)],
        "0000002.out_of_band.index": [(0, 16), (24, 16)],
        "0000002.out_of_band.bin": [(0, 2), (6, 2)],
    }


def test_a_batch_of_nothing_and_one_refused_ask_for_nothing():
    assert asked([[b"a", b"b"]], []) == []
    store = RangesOnly()
    dataset = documents_at(store, [[b"a", b"b"]], BYTES).dataset()
    dataset[:]
    store.requests.clear()
    with pytest.raises(IndexError):
        dataset.__getitems__([0, 1, 2])
    assert store.requests == []


def test_lengths_are_read_from_the_indexes_alone_and_once():
    store = RangesOnly()
    dataset = documents_at(store, SHARDS, BYTES, publish=True).dataset()
    assert dataset.lengths.tolist() == [len(document) for document in FLAT]
    assert {path.rpartition(".")[2] for path, _ in store.requests} == {"index"}
    store.requests.clear()
    assert (dataset.lengths.dtype, dataset.lengths.shape) == (np.int64, (7,))
    assert store.requests == []


# Lengths, samples and whose memory they are.


@pytest.mark.parametrize("name", ["lengths", "shard_lengths"])
def test_whoever_writes_to_lengths_changes_nothing_in_the_dataset(name):
    dataset = documents_at(MemoryStore(), SHARDS, BYTES).dataset()
    expected = getattr(dataset, name).tolist()
    with contextlib.suppress(ValueError):  # it may be read-only
        getattr(dataset, name)[:] = 0
    assert getattr(dataset, name).tolist() == expected
    assert dataset[0] == FLAT[0]


@pytest.mark.parametrize("store", STORES)
def test_lengths_are_the_documents_own_in_every_store_and_format(store):
    arrays = [[np.arange(length) for length in lengths] for lengths in ((0, 3, 1), (), (40, 0), (7,))]
    for dtype in ("<u2", "<i8", [("a", "<u2"), ("b", "u1")]):
        shards = arrays if isinstance(dtype, str) else [[np.zeros(len(a), dtype) for a in shard] for shard in arrays]
        dataset = documents_at(STORES[store](), shards, DocumentNumpyFormat(dtype)).dataset()
        assert dataset.lengths.tolist() == [len(document) for document in dataset] == [0, 3, 1, 40, 0, 7]
        assert dataset.shard_lengths.tolist() == [3, 0, 2, 1]
    raw = DocumentStorage(dataset.storage.store, BYTES).dataset()
    assert raw.lengths.tolist() == [len(document) for document in raw] == [0, 9, 3, 120, 0, 21]


def test_a_dataset_without_documents_has_none():
    for shards in ([[]], [[], [], []]):
        dataset = documents_at(MemoryStore(), shards, BYTES).dataset()
        assert (len(dataset), dataset[:], dataset.__getitems__([])) == (0, [], [])
        assert dataset.lengths.tolist() == []
        assert dataset.shard_lengths.tolist() == [0] * len(shards)
        for index in (0, -1):
            with pytest.raises(IndexError, match="outside a dataset of 0 documents"):
                dataset[index]


@pytest.mark.parametrize("interface", [None, PosixPreadIO()])
def test_samples_are_writable_own_their_memory_and_outlive_dataset_and_files(interface, tmp_path):
    documents_at(unsynced(tmp_path), [[[1, 2, 3], [4]], [[5, 6]]], DocumentNumpyFormat("<i4"))
    dataset = DocumentStorage(tmp_path, read_interface=interface).dataset()
    first, same, last = dataset.__getitems__([0, 0, 2])
    single = dataset[0]
    first[:] = 99
    assert (same.tolist(), single.tolist(), dataset[0].tolist()) == ([1, 2, 3], [1, 2, 3], [1, 2, 3])
    dataset.close()
    shutil.rmtree(tmp_path)
    last += 1
    assert (first.tolist(), last.tolist(), single.tolist()) == ([99] * 3, [6, 7], [1, 2, 3])


def test_a_format_of_ones_own_gets_writable_memory_of_exactly_its_payload_and_the_shard(tmp_path):
    dataset = documents_at(tmp_path, SHARDS, Marked()).dataset()
    got = dataset[:]
    assert [(bytes(data), shard) for data, shard in got] == [
        (document, shard) for shard, documents in enumerate(SHARDS) for document in documents
    ]
    for data, _ in got:
        assert type(data) is bytearray  # as GuideLoom's reader gives it: json.loads() and decode() take it
    got[3][0][:] = b"xyz"
    assert [bytes(data) for data, _ in got] == [b"xyz" if document == b"def" else document for document in FLAT]
    assert bytes(dataset[3][0]) == b"def"
    with DocumentStorage(tmp_path, Marked()).sync_reader() as reader:
        assert type(reader.read(3)[0]) is bytearray


PAYLOADS = {
    "bytes": b"\0\1\2",
    "bytearray": bytearray(b"\0\1\2\3"),
    "nothing": bytearray(),
    "words": memoryview(array.array("i", [1, -2, 3])),
    "doubles": memoryview(array.array("d", [0.5])),
    "signed bytes": memoryview(array.array("b", [-1, 1])),
    "a matrix": memoryview(np.arange(12, dtype=np.int32).reshape(3, 4)),
    "an empty matrix": memoryview(np.zeros((0, 4), np.int64)),
    "records": memoryview(np.zeros(2, [("a", "<u2"), ("b", "<f8")])),
    "read-only": memoryview(b"read-only"),
    "a part": memoryview(b"0123456789")[2:5],
}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads_of_any_item_size_are_stored_as_their_bytes_and_shift_nothing(payload, tmp_path):
    data = PAYLOADS[payload]
    for storage_format in (BYTES, Marked()):
        storage = documents_at(tmp_path / type(storage_format).__name__, [[b"before", data, b"hello"]], storage_format)
        raw = DocumentStorage(storage.store, BYTES).dataset()
        assert raw[:] == [b"before", bytes(data), b"hello"]
        assert raw.lengths.tolist() == [6, len(bytes(data)), 5]
        assert storage.verify() == []


def test_a_payload_may_be_changed_after_it_was_appended(tmp_path):
    storage = DocumentStorage(tmp_path, BYTES)
    buffer = bytearray(b"first")
    large = bytearray(3 << 20)
    with storage.sync_writer() as writer:
        writer.append(0, buffer)
        buffer[:] = b"second one"
        writer.append(0, buffer)
        writer.append(0, large)
        large[:] = b"x"
        buffer.clear()
        assert writer.length(0) == 3
    dataset = storage.dataset()
    assert dataset[:2] == [b"first", b"second one"]
    assert dataset.lengths.tolist() == [5, 10, 3 << 20]
    assert dataset[2] == bytes(3 << 20)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("text", "pack.. returned str, not bytes, bytearray or a memoryview"),
        (None, "pack.. returned NoneType"),
        (np.zeros(3), "pack.. returned ndarray"),
        (memoryview(b"0123456789")[::2], "memoryview that is not contiguous"),
    ],
)
def test_what_is_no_buffer_is_refused_and_leaves_nothing_behind(bad, problem, tmp_path):
    storage = DocumentStorage(tmp_path, Marked())
    with storage.sync_writer() as writer:
        writer.append(0, b"one")
        with pytest.raises(FieldError, match=rf"the record after 1 documents of shard 0.*{problem}"):
            writer.append(0, bad)
        writer.append(0, b"two")
    assert DocumentStorage(tmp_path, BYTES).dataset()[:] == [b"one", b"two"]
