"""Windows with spans: batches, reads, stores, formats and what is refused."""

import asyncio
import gc
import pickle
import shutil
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from dataset.payload_scenes import (
    STORES,
    Generating,
    RangesOnly,
    SlowSpans,
    counted_spans,
    in_another_process,
    plain,
    shard_spans,
    spans_at,
    unsynced,
    write,
)
from dataset.scenes import open_files_below
from headrace.datasets import (
    MmapIO,
    PosixPreadIO,
    SeekIO,
    SpanBatch,
    StreamDataset,
    StreamReader,
    StreamWithMetaStorage,
)
from headrace.errors import ClosedError, CorruptShardError, SchemaMismatchError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat, DocumentJsonFormat, DocumentNumpyFormat
from headrace.store import LocalStore, MemoryStore

TOKENS = SpanNumpyFormat("<u2")
STRUCT = np.dtype([("tokens", "<u2"), ("mask", "u1"), ("vec", "<f4", (2,))])
# Shards of 7, 0, 0, 5 and 3 elements; payloads are named by shard and number.
SPANS = [[[(3, b"0.0"), (2, b"0.1")], [(2, b"0.2")]], [], [[]], [[(1, b"3.0"), (4, b"")]], [[(3, b"4.0")]]]
SLOW = SlowSpans(SPANS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """SPANS on disk, not to be changed."""
    place = tmp_path_factory.mktemp("annotated")
    spans_at(unsynced(place), counted_spans(SPANS), TOKENS, publish=True)
    return place


def storage_at(place, **options):
    return StreamWithMetaStorage(place, TOKENS, **options)


# One shard has the payload 0 only, and so has the next.


@pytest.mark.parametrize("storage_format", [TOKENS, Generating()])
@pytest.mark.parametrize("lengths", [(3, 3, 3), (1, 0, 2, 0, 0, 3), (5, 4)])
def test_equal_payload_numbers_on_both_sides_of_a_shard_s_end_are_two_spans(storage_format, lengths):
    shards = [[[(length, b"%d" % shard)]] if length else [] for shard, length in enumerate(lengths)]
    slow, total = SlowSpans(shards), sum(lengths)
    expect = slow.window if isinstance(storage_format, Generating) else slow.sample
    storage = spans_at(MemoryStore(), counted_spans(shards), storage_format)
    for length in range(1, total + 1):
        dataset = StreamDataset(storage, length, stride=1)
        expected = [expect(start, length) for start in range(total - length + 1)]
        for order in (slice(None), slice(None, None, -1), slice(None, None, 2)):
            assert [plain(sample) for sample in dataset[order]] == expected[order]
    whole = StreamDataset(storage, total)[:]
    assert [bytes(payload) for payload in whole.payloads] == [b"%d" % k for k, length in enumerate(lengths) if length]
    assert whole.shards.tolist() == [shard for shard, length in enumerate(lengths) if length]


def test_neighbouring_windows_of_a_batch_share_a_payload_but_no_span(place):
    batch = storage_at(place).dataset(1).__getitems__([0, 1, 2, 2, 3])
    assert batch.span_lengths.tolist() == [1] * 5
    assert batch.row_spans.tolist() == [0, 1, 2, 3, 4, 5]
    assert [bytes(payload) for payload in batch.payloads] == [b"0.0"] * 4 + [b"0.1"]
    batch.payloads[0][:] = b"new"
    assert [bytes(payload) for payload in batch.payloads] == [b"new"] + [b"0.0"] * 3 + [b"0.1"]


# The batch.


def test_a_batch_has_what_it_promises(place):
    batch = storage_at(place).dataset(5).__getitems__([1, 0, 1])
    assert isinstance(batch, SpanBatch)
    assert isinstance(batch, Sequence)
    assert len(batch) == 3
    assert batch.elements.tolist() == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert batch.span_lengths.tolist() == [2, 1, 2, 3, 2, 2, 1, 2]
    assert batch.row_spans.tolist() == [0, 3, 5, 8]
    assert batch.shards.tolist() == [0, 3, 3, 0, 0, 0, 3, 3]
    assert [bytes(payload) for payload in batch.payloads] == [
        *(b"0.2", b"3.0", b"", b"0.0", b"0.1", b"0.2", b"3.0", b"")
    ]
    assert batch.document_index.tolist() == [[0, 0, 1, 2, 2], [0, 0, 0, 1, 1], [0, 0, 1, 2, 2]]
    assert [array.dtype for array in (batch.elements, batch.span_lengths, batch.row_spans, batch.shards)] == [
        *(np.uint16, np.int64, np.int64, np.int64)
    ]
    assert batch.document_index.dtype == np.int32


@pytest.mark.parametrize("storage_format", [TOKENS, Generating()])
def test_a_batch_is_a_sequence_of_its_samples(storage_format, place):
    storage = StreamWithMetaStorage(place, storage_format)
    dataset = StreamDataset(storage, 4, stride=2)
    items = [5, 0, 3, 3, -1]
    samples = [plain(dataset[item]) for item in items]
    batch = dataset.__getitems__(items)
    assert [plain(sample) for sample in batch] == samples
    assert [plain(batch[row]) for row in range(-5, 5)] == samples * 2
    assert [plain(batch[np.int64(row)]) for row in (0, 4, -2)] == [samples[0], samples[4], samples[-2]]
    for cut in (slice(None), slice(1, 3), slice(None, None, -2), slice(3, 3), slice(-2, 100)):
        assert [plain(sample) for sample in batch[cut]] == samples[cut]
    for row in (5, -6, 10**30):
        with pytest.raises(IndexError):
            batch[row]
    for row in ("0", 1.0, None):
        with pytest.raises(TypeError):
            batch[row]
    assert [plain(sample) for sample in reversed(batch)] == samples[::-1]


@pytest.mark.parametrize("storage_format", [TOKENS, Generating(), SpanNumpyFormat("<u2", DocumentBytesFormat())])
def test_a_pickled_batch_is_the_same_and_its_own(storage_format, place):
    batch = StreamWithMetaStorage(place, storage_format).dataset(5)[::-1]
    expected = [plain(sample) for sample in batch]
    for copy in (pickle.loads(pickle.dumps(batch)), pickle.loads(pickle.dumps(batch, 5))):
        assert isinstance(copy, SpanBatch)
        assert [plain(sample) for sample in copy] == expected
        for name in ("elements", "span_lengths", "row_spans", "shards", "document_index"):
            np.testing.assert_array_equal(getattr(copy, name), getattr(batch, name), strict=True)
        assert copy.payloads == batch.payloads
        copy.elements[:] = 9
        copy.payloads[0][:] = bytes(len(copy.payloads[0]))
    assert [plain(sample) for sample in batch] == expected


def test_samples_and_payloads_are_writable_and_outlive_dataset_and_files(tmp_path):
    spans_at(unsynced(tmp_path), counted_spans(SPANS), Generating())
    dataset = StreamWithMetaStorage(tmp_path, Generating()).dataset(5)
    with dataset:
        batch, single = dataset[:], dataset[1]
    shutil.rmtree(tmp_path)
    assert [plain(sample) for sample in batch] == [SLOW.window(start, 5) for start in (0, 5, 10)]
    assert plain(single) == SLOW.window(5, 5)
    batch.elements[0] += 1
    stream, _, _, payloads = batch[0]
    stream[0] = 77
    payloads[0][:2] = b"!!"
    assert batch.elements.tolist()[0] == [77, 2, 3, 4, 5]
    assert bytes(batch.payloads[0]) == b"!!0"
    assert [plain(sample) for sample in batch[1:]] == [SLOW.window(start, 5) for start in (5, 10)]


def test_no_item_is_a_batch_of_nothing(place):
    dataset = storage_at(place).dataset(5)
    for batch in (dataset.__getitems__([]), dataset[3:3], dataset.__getitems__(np.zeros(0, np.int64))):
        assert (len(batch), list(batch), batch[:]) == (0, [], [])
        assert batch.elements.shape == (0, 5)
        assert (batch.row_spans.tolist(), batch.span_lengths.tolist(), batch.payloads) == ([0], [], [])
        assert batch.document_index.shape == (0, 5)


def test_fields_of_records_are_kept(tmp_path):
    storage = StreamWithMetaStorage(tmp_path, SpanNumpyFormat(STRUCT, DocumentJsonFormat()))
    vectors = np.arange(14, dtype=np.float32).reshape(7, 2)
    record = {"tokens": range(7), "mask": [1] * 7, "vec": vectors, "span_lengths": [4, 3], "payloads": [{"a": 1}, [2]]}
    write(storage, [[record], [], [record]])
    for read in (storage, StreamWithMetaStorage(tmp_path)):
        batch = read.dataset(5)[:]
        assert batch.elements.dtype == STRUCT
        assert batch[1]["tokens"].tolist() == [5, 6, 0, 1, 2]
        np.testing.assert_array_equal(batch[1]["vec"], vectors[[5, 6, 0, 1, 2]], strict=True)
        assert batch[1]["span_lengths"].tolist() == [2, 3]
        assert batch[1]["payloads"] == [[2], {"a": 1}]
        assert [sample["payloads"] for sample in batch] == [[{"a": 1}, [2]], [[2], {"a": 1}]]


def test_numpy_payloads_are_arrays_of_any_length(tmp_path):
    storage = StreamWithMetaStorage(tmp_path, SpanNumpyFormat("<u4", DocumentNumpyFormat("<i4")))
    write(storage, [[{"tokens": range(6), "span_lengths": [1, 2, 3], "payloads": [[7], [], [8, 9]]}]])
    sample = storage.dataset(5)[0]
    assert [payload.tolist() for payload in sample["payloads"]] == [[7], [], [8, 9]]
    assert sample["payloads"][0].dtype == np.int32


# The reader.


@pytest.mark.parametrize("storage_format", [TOKENS, Generating()])
def test_a_read_wraps_around_and_begins_a_span_where_it_does(storage_format, place):
    expect = SLOW.window if isinstance(storage_format, Generating) else SLOW.sample
    with StreamWithMetaStorage(place, storage_format).sync_reader() as reader:
        assert isinstance(reader, StreamReader)
        assert (reader.num_shards, reader.total_length) == (5, 15)
        assert [reader.length(shard) for shard in range(5)] == [7, 0, 0, 5, 3]
        for start in range(15):
            for length in (*range(8), 14, 15, 16, 31, 47):
                assert plain(reader.read(start, length)) == expect(start, length)
        for start, length in ((15, 1), (-1, 1), (0, -1), (15, 0)):
            with pytest.raises(IndexError):
                reader.read(start, length)
    with pytest.raises(ClosedError, match="not open"):
        reader.read(0, 1)


def test_a_single_span_that_wraps_into_itself_is_a_span_a_turn():
    storage = spans_at(MemoryStore(), [[shard_spans([(3, b"only")])]], Generating())
    with storage.sync_reader() as reader:
        assert plain(reader.read(2, 8)) == (
            [2, 0, 1, 2, 0, 1, 2, 0],
            [0, 0, 0, 0],
            [0, 1, 1, 1, 2, 2, 2, 3],
            [b"only"] * 4,
        )


def test_asynchronous_readers_give_the_same(place):
    async def main():
        async with storage_at(place).async_reader() as reader:
            reads = await asyncio.gather(*(reader.read(at, 9) for at in range(15)))
            assert [plain(read) for read in reads] == [SLOW.sample(at, 9) for at in range(15)]
        async with storage_at(place).dataset(4).async_reader() as dataset:
            assert plain(await dataset[1]) == SLOW.sample(4, 4)

    asyncio.run(main())


# Stores, processes and threads.


def windows_of(storage):
    return [plain(sample) for sample in StreamDataset(storage, 4, stride=1)[::-1]]


EXPECTED = [SLOW.sample(start, 4) for start in reversed(range(12))]


@pytest.mark.parametrize("interface", [None, MmapIO(), PosixPreadIO(), SeekIO()])
def test_every_read_interface_gives_the_same(interface, place):
    assert windows_of(storage_at(place, read_interface=interface)) == EXPECTED
    with storage_at(place, read_interface=interface).sync_reader() as reader:
        assert plain(reader.read(12, 20)) == SLOW.sample(12, 20)


@pytest.mark.parametrize("store", STORES)
def test_every_store_gives_the_same(store):
    assert windows_of(spans_at(STORES[store](), counted_spans(SPANS), TOKENS)) == EXPECTED


def test_an_unmapped_batch_asks_each_file_once():
    store = RangesOnly()
    shards = [[[(4, b"a%d" % k) for k in range(10)]], [[(4, b"b%d" % k) for k in range(10)]]]
    dataset = spans_at(store, counted_spans(shards), TOKENS, publish=True).dataset(4)
    dataset[:]
    store.requests.clear()
    dataset.__getitems__([3, 1, 2, 2, 12, 11, 3])
    assert sorted(store.requests) == [
        ("0000000.in_band.bin", [(4 * 6, 12 * 6)]),
        ("0000000.out_of_band.bin", [(2, 6)]),
        ("0000000.out_of_band.index", [(8, 32)]),
        ("0000001.in_band.bin", [(4 * 6, 8 * 6)]),
        ("0000001.out_of_band.bin", [(2, 4)]),
        ("0000001.out_of_band.index", [(8, 24)]),
    ]


def test_a_dataset_pickles_as_its_configuration(place):
    dataset = StreamDataset(storage_at(place), 4, 2, 1)
    sample = plain(dataset[3])
    raw = pickle.dumps(dataset)
    assert len(raw) < 2000
    copy = pickle.loads(raw)
    assert plain(copy[3]) == sample
    assert copy.settings == dataset.settings == {**dataset.settings, "sequence_length": 4, "stride": 2, "extra": 1}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_the_same_after_this_one_did(method, place):
    dataset = storage_at(place).dataset(5)
    dataset[:]
    got = in_another_process(method, dataset, [2, 0, -2])
    assert [plain(sample) for sample in got] == [SLOW.sample(start, 5) for start in (10, 0, 5)]
    assert plain(dataset[1]) == SLOW.sample(5, 5)


@pytest.mark.parametrize("options", [{}, {"max_open_files": 1}, {"max_open_files": 7}, {"mapped": False}], ids=repr)
def test_threads_read_right_while_maps_come_and_go(options, tmp_path):
    shards = [[[(1 + (shard + k) % 5, b"%d.%d" % (shard, k)) for k in range(6)]] for shard in range(12)]
    slow = SlowSpans(shards)
    spans_at(unsynced(tmp_path), counted_spans(shards), TOKENS, publish=True)
    dataset = StreamWithMetaStorage(LocalStore(tmp_path, **options), TOKENS).dataset(7)
    reference = [slow.sample(7 * k, 7) for k in range(len(slow.elements) // 7)]
    failures = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(30):
            items = draw.integers(-len(reference), len(reference), draw.integers(1, 10))
            if [plain(sample) for sample in dataset.__getitems__(items)] != [reference[item] for item in items]:
                failures.append(items)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    dataset.close()
    gc.collect()
    assert open_files_below(tmp_path) == 0


# Records and formats.


def test_published_or_not_data_and_settings_are_the_same(tmp_path):
    unpublished = spans_at(tmp_path, counted_spans(SPANS), TOKENS)
    settings = unpublished.dataset(4).settings
    unpublished.publish()
    assert unpublished.dataset(4).settings == settings
    assert StreamWithMetaStorage(tmp_path).dataset(4).settings == settings
    other = [*SPANS[:4], [[(3, b"4.1")]]]  # one payload differs
    assert spans_at(MemoryStore(), counted_spans(other), TOKENS).dataset(4).fingerprint != settings["data"]


def test_without_a_format_samples_are_those_of_the_record(place):
    assert windows_of(StreamWithMetaStorage(place)) == EXPECTED


@pytest.mark.parametrize(
    "asked",
    [
        SpanNumpyFormat("<i2"),
        SpanNumpyFormat([("tokens", "<u2")]),
        SpanNumpyFormat("<u2", DocumentJsonFormat()),
        Generating("<u4"),
    ],
    ids=["another type", "columns", "other payloads", "another type of a format of one's own"],
)
def test_elements_or_payloads_of_another_format_are_refused_when_they_are_opened(asked, place):
    with pytest.raises(SchemaMismatchError):
        StreamWithMetaStorage(place, asked).dataset(4).open()
    with pytest.raises(SchemaMismatchError), StreamWithMetaStorage(place, asked).sync_reader():
        pass


def test_a_payload_number_that_the_shard_does_not_have_is_said_of_that_shard(tmp_path):
    storage = spans_at(unsynced(tmp_path), counted_spans(SPANS), TOKENS)
    shutil.rmtree(tmp_path / ".headrace")  # as another program would have left it
    path = tmp_path / "0000003.in_band.bin"
    elements = np.frombuffer(path.read_bytes(), [("index", "<i4"), ("user", "<u2")]).copy()
    for number in (2, -1, 2**31 - 1):
        elements["index"][1] = number
        path.write_bytes(elements.tobytes())
        dataset = storage.dataset(5)
        with pytest.raises(CorruptShardError, match=rf"shard 3: payload {number} was asked for, but there are 2"):
            dataset[1]
        with pytest.raises(CorruptShardError, match="shard 3"):
            dataset[:]
        assert plain(dataset[0]) == SLOW.sample(0, 5)


def test_elements_without_payloads_are_refused_when_they_are_opened(tmp_path):
    storage = spans_at(unsynced(tmp_path), counted_spans(SPANS), TOKENS)
    shutil.rmtree(tmp_path / ".headrace")
    (tmp_path / "0000004.out_of_band.index").write_bytes(bytes(8))
    (tmp_path / "0000004.out_of_band.bin").write_bytes(b"")
    with pytest.raises(CorruptShardError, match="shard 4: has 3 elements but no payload"):
        storage.dataset(5).open()
