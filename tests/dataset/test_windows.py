"""Windows and reads over any layout of shards, against one NumPy array."""

import asyncio
import pickle
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataset.scenes import U2, Padded, fast_storage_at, ranges, storage_at, write
from headrace.datasets import StreamDataset, StreamStorage
from headrace.errors import ClosedError
from headrace.formats.stream import StreamArrayFormat
from headrace.store import LocalStore, MemoryStore
from headrace.testing import FaultStore


class RangesOnly(MemoryStore):
    """A store without views, as object stores are."""

    def __init__(self):
        super().__init__()
        self.capabilities = self.capabilities._replace(view=False)

    def view(self, path):
        raise AssertionError("this store has no views")


class FewViews(MemoryStore):
    """A store of which a reader may keep only two views."""

    max_views = 2


STORES = {"maps": MemoryStore, "ranges": RangesOnly, "two views": FewViews, "faults": lambda: FaultStore(MemoryStore())}
LAYOUTS = st.lists(st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 9000)), min_size=1, max_size=8)


@given(
    layout=LAYOUTS,
    sequence_length=st.one_of(st.integers(1, 12), st.integers(1, 12_000)),
    stride=st.one_of(st.none(), st.integers(1, 20), st.integers(1, 12_000)),
    extra=st.integers(0, 3),
    store=st.sampled_from(sorted(STORES)),
    data=st.data(),
)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_every_batch_is_the_same_as_slicing_one_array(layout, sequence_length, stride, extra, store, data):
    shards = ranges(*layout)
    whole = np.concatenate(shards)
    storage = write(StreamStorage(STORES[store](), U2), shards)
    dataset = StreamDataset(storage, sequence_length, stride, extra)
    step, length = stride or sequence_length, sequence_length + extra
    expected = [whole[at : at + length] for at in range(0, len(whole) - length + 1, step)]
    assert len(dataset) == len(expected)
    for _ in range(3):
        if expected:
            items = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), max_size=9))
            batch = dataset.__getitems__(items)
            assert len(batch) == len(items)
            for sample, item in zip(batch, items, strict=True):
                np.testing.assert_array_equal(sample, expected[item], strict=True)
            if items:
                np.testing.assert_array_equal(dataset[items[0]], expected[items[0]])
                np.testing.assert_array_equal(batch.stacked(), np.stack([expected[item] for item in items]))
    for bad in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            dataset[bad]


@given(layout=LAYOUTS.filter(any), store=st.sampled_from(sorted(STORES)), data=st.data())
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_every_read_is_the_same_as_indexing_modulo_the_length(layout, store, data):
    shards = ranges(*layout)
    whole = np.concatenate(shards)
    with write(StreamStorage(STORES[store](), U2), shards).sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (len(layout), len(whole))
        for _ in range(4):
            start = data.draw(st.integers(0, len(whole) - 1))
            length = data.draw(st.one_of(st.integers(0, 30), st.integers(0, 3 * len(whole))))
            expected = whole[(start + np.arange(length)) % len(whole)]
            np.testing.assert_array_equal(reader.read(start, length), expected, strict=True)


def test_rows_longer_than_16_kib_and_longer_than_shards_are_whole(tmp_path):
    shards = ranges(9000, 0, 100, 20_000, 3)
    whole = np.concatenate(shards)
    storage = write(fast_storage_at(tmp_path), shards)
    for length in (8191, 8192, 8193, 8500, 25_000, len(whole)):
        dataset = StreamDataset(storage, length, stride=977)
        batch = dataset.__getitems__(np.arange(len(dataset)))
        for item, sample in enumerate(batch):
            np.testing.assert_array_equal(sample, whole[item * 977 : item * 977 + length])


def test_slices_follow_python(tmp_path):
    dataset = StreamDataset(write(storage_at(tmp_path), ranges(30, 11)), 4)
    reference = np.arange(40).reshape(10, 4).tolist()
    for cut in (slice(None), slice(2, 8, 3), slice(None, None, -1), slice(-3, None), slice(5, 5), slice(100, 2, -4)):
        assert [sample.tolist() for sample in dataset[cut]] == reference[cut]
    batch = dataset[2:8]
    assert [sample.tolist() for sample in batch[1:3]] == reference[3:5]
    assert batch[-1].tolist() == reference[7]
    with pytest.raises(IndexError):
        batch[6]


@pytest.mark.parametrize("index", [1.0, "1", None, [1], np.float64(1)])
def test_what_is_no_integer_is_refused_as_an_index(index, tmp_path):
    dataset = StreamDataset(write(storage_at(tmp_path), ranges(30)), 4)
    with pytest.raises(TypeError):
        dataset[index]
    with pytest.raises(TypeError):
        dataset.__getitems__([index])


FAR = [7, -8, 2**62, 2**63, -(2**63) - 1, 2**70, np.uint64(2**64 - 1), np.int64(-(2**63))]
# Times the 8 bytes of a window, and added to the mark of "not mapped", these wrap around to small addresses.
WRAPPING = [2**59 + 100, 2**59 - 2**61 + 100]


@pytest.mark.parametrize("layout", [(30,), (15, 15)])
@pytest.mark.parametrize("index", [*FAR, *WRAPPING])
def test_any_number_outside_is_an_index_error(index, layout, tmp_path):
    dataset = StreamDataset(write(storage_at(tmp_path), ranges(*layout)), 4)
    dataset[:]  # mapped, so that the fast path answers
    with pytest.raises(IndexError, match="outside a dataset of 7 windows"):
        dataset[index]
    if -(2**63) <= int(index) < 2**63:
        with pytest.raises(IndexError):
            dataset.__getitems__(np.array([0, index]))


def test_integers_of_any_width_are_taken(tmp_path):
    dataset = StreamDataset(write(storage_at(tmp_path), ranges(30)), 4)
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        assert dataset[dtype(3)].tolist() == [12, 13, 14, 15]
        assert dataset.__getitems__(np.array([3, 0], dtype))[0].tolist() == [12, 13, 14, 15]
    assert len(dataset.__getitems__([])) == 0
    with storage_at(tmp_path).sync_reader() as reader:
        assert reader.read(np.int64(2), np.uint8(2)).tolist() == [2, 3]
        with pytest.raises(TypeError):
            reader.read(1.5, 2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0,), ValueError), ((-1,), ValueError), ((2.0,), TypeError), ((True,), TypeError), ((4, 0), ValueError)],
)
def test_window_settings_are_checked(arguments, error, tmp_path):
    with pytest.raises(error):
        StreamDataset(storage_at(tmp_path), *arguments)


def test_a_window_longer_than_the_data_gives_an_empty_dataset(tmp_path):
    storage = write(storage_at(tmp_path), ranges(3, 4))
    assert len(StreamDataset(storage, 8)) == 0
    assert len(StreamDataset(storage, 7)) == 1
    assert len(StreamDataset(storage, 7, extra=1)) == 0
    assert list(StreamDataset(storage, 8)[:]) == []


def test_a_dataset_of_empty_shards_has_no_windows(tmp_path):
    storage = write(storage_at(tmp_path), ranges(0, 0))
    assert len(StreamDataset(storage, 1)) == 0
    with storage.sync_reader() as reader, pytest.raises(IndexError, match="outside a stream of 0 elements"):
        reader.read(0, 0)


def test_custom_formats_are_given_the_pieces_of_each_window(tmp_path):
    storage = StreamStorage(tmp_path, Padded())
    with storage.sync_writer() as writer:
        for shard, count in enumerate((3, 0, 4)):
            writer.start(shard)
            writer.append(shard, {"a": np.zeros(count, np.uint8), "b": np.arange(count) + 10 * shard})
    assert (tmp_path / "0000000.in_band.bin").stat().st_size == 24
    with storage.sync_reader() as reader:
        assert reader.read(2, 3) == ([2, 20, 21], [1, 0, 2], [0, 1, 2])
        assert reader.read(6, 2) == ([23, 0], [1, 1], [2, 0])
    dataset = StreamDataset(storage, 3)
    assert list(dataset.__getitems__([1, 0])) == [([20, 21, 22], [3], [2]), ([0, 1, 2], [3], [0])]
    assert dataset[-1] == ([20, 21, 22], [3], [2])
    with pytest.raises(IndexError):
        dataset[2]


def test_a_batch_and_its_samples_are_writable_and_its_own(tmp_path):
    dataset = StreamDataset(write(storage_at(tmp_path), ranges(30)), 4)
    batch = dataset.__getitems__([1, 1])
    batch[0][:] = 99
    assert batch[1].tolist() == [4, 5, 6, 7]
    assert dataset[1].tolist() == [4, 5, 6, 7]
    assert batch.stacked()[0].tolist() == [99] * 4
    with storage_at(tmp_path).sync_reader() as reader:
        sample = reader.read(0, 4)
        sample[:] = 7
        assert reader.read(0, 4).tolist() == [0, 1, 2, 3]


def test_a_dataset_pickles_as_its_configuration(tmp_path):
    dataset = StreamDataset(write(storage_at(tmp_path), ranges(30)), 4, 2, 1)
    sample = dataset[3].tolist()
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 2000
    assert copy[3].tolist() == sample
    assert copy.settings == dataset.settings
    assert copy.settings["stride"] == 2
    assert "sequence_length=4" in repr(copy)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset[:]))[3], dataset[3])


def test_a_closed_reader_says_so_and_a_closed_dataset_opens_again(tmp_path):
    storage = write(storage_at(tmp_path), ranges(30))
    reader = storage.sync_reader()
    for use in (
        lambda: reader.num_shards,
        lambda: reader.total_length,
        lambda: reader.read(0, 1),
        lambda: reader.length(0),
    ):
        with pytest.raises(ClosedError):
            use()
    with StreamDataset(storage, 4) as dataset:
        assert dataset[0].tolist() == [0, 1, 2, 3]
    assert dataset[0].tolist() == [0, 1, 2, 3]
    dataset.close()
    dataset.close()


def test_asynchronous_readers_give_the_same(tmp_path):
    storage = write(storage_at(tmp_path), ranges(30, 5))

    async def main():
        async with storage.async_reader() as reader:
            assert reader.total_length == 35
            reads = await asyncio.gather(*(reader.read(at, 4) for at in range(20)))
            assert [read.tolist() for read in reads] == [list(range(at, at + 4)) for at in range(20)]
        async with StreamDataset(storage, 4).async_reader() as dataset:
            assert len(dataset) == 8
            assert (await dataset[7]).tolist() == [28, 29, 30, 31]
            with pytest.raises(IndexError):
                await dataset[8]

    asyncio.run(main())


@pytest.mark.parametrize("limit", [1, 4])
def test_threads_read_right_while_maps_come_and_go(limit, tmp_path):
    shards = ranges(*[50] * 40)
    write(fast_storage_at(tmp_path), shards, publish=True)
    dataset = StreamDataset(StreamStorage(LocalStore(tmp_path, max_open_files=limit), U2), 7)
    reference = np.arange(2000 // 7 * 7, dtype=np.uint16).reshape(-1, 7)
    failures = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(150):
            items = draw.integers(-len(reference), len(reference), draw.integers(1, 12))
            if not np.array_equal(dataset.__getitems__(items).stacked(), reference[items]):
                failures.append(items)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_plain_array_format_and_a_store_can_be_passed_for_reading(tmp_path):
    write(storage_at(tmp_path), ranges(30))
    other = StreamStorage(tmp_path / "elsewhere", StreamArrayFormat("<u2"), LocalStore(tmp_path))
    assert StreamDataset(other, 4)[1].tolist() == [4, 5, 6, 7]
    with pytest.raises(TypeError, match="must be a Store"):
        StreamStorage(tmp_path, U2, "mmap")


@given(
    layout=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    sequence_length=st.integers(1, 12),
    stride=st.none() | st.integers(1, 40),
    extra=st.integers(0, 3),
)
@settings(deadline=None, max_examples=60)
def test_each_window_is_counted_in_the_shard_where_it_begins(layout, sequence_length, stride, extra):
    storage = write(StreamStorage(MemoryStore(), U2), ranges(*layout))
    dataset = StreamDataset(storage, sequence_length, stride, extra)
    ends = np.cumsum(layout)
    homes = np.searchsorted(ends, np.arange(len(dataset)) * dataset.stride, side="right")
    assert dataset.shard_items.tolist() == np.bincount(homes, minlength=len(layout)).tolist()
    assert dataset.shard_items.sum() == len(dataset)
