"""Streams with metadata that GuideLoom 1.1.0 wrote, and what its own readers returned for them."""

import asyncio
import hashlib

import numpy as np
import pytest

from golden.annotated_records import DTYPES, GuideLoomFormat, Recorded, SpansFormat
from golden.recorded import WAYS, data_of, opened_by, orders, visible_files
from headrace import StreamWithMetaStorage, open_storage

NAMES = list(DTYPES)
CASES = [(name, way) for name in NAMES for way in WAYS]
# (sequence_length, stride, extra): inside spans, over records and shards, overlapping, with gaps, all of it
WINDOWS = [(1, None, 0), (2, 1, 0), (4, None, 1), (5, 3, 0), (7, 7, 1), (11, 2, 0), (3, 9, 0), (24, 1, 0)]


@pytest.fixture(scope="module")
def recorded():
    return {name: Recorded(name) for name in NAMES}


def assert_given(sample, window, dtype):
    """The sample is what GuideLoom would give to unpack() for this window, types included."""
    stream, shards, index, payloads = sample
    assert stream.dtype == dtype
    np.testing.assert_array_equal(stream, window.stream, strict=True)
    np.testing.assert_array_equal(shards, np.array(window.shards, np.int64), strict=True)
    np.testing.assert_array_equal(index, np.array(window.index, np.int32), strict=True)
    assert payloads == window.payloads
    assert all(type(payload) is memoryview for payload in payloads)
    assert stream.flags.writeable


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_gives_every_recorded_read(recorded, name):
    golden = recorded[name]
    assert len(golden.expected["reads"]) >= 8
    for number, read in enumerate(golden.expected["reads"]):
        window = golden.window(read["global_index"], read["global_length"])
        assert hashlib.sha256(window.stream.tobytes()).hexdigest() == read["stream_raw_sha256"]
        assert window.shards == read["document_shard"]
        assert window.index == golden.arrays[f"r{number:03d}.document_index"].tolist()
        assert [payload.hex() for payload in window.payloads] == read["document_data_hex"]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_counts_lengths_and_every_recorded_read_are_guidelooms(recorded, name, way):
    golden = recorded[name]
    expected, arrays = golden.expected, golden.arrays
    with opened_by(StreamWithMetaStorage, name, GuideLoomFormat(golden.dtype), way).sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (expected["num_shards"], expected["total_length"])
        assert [reader.length(shard) for shard in range(reader.num_shards)] == expected["shard_lengths"]
        for number, read in enumerate(expected["reads"]):
            stream, shards, index, payloads = reader.read(read["global_index"], read["global_length"])
            assert hashlib.sha256(np.ascontiguousarray(stream)).hexdigest() == read["stream_raw_sha256"]
            np.testing.assert_array_equal(stream, golden.stream_of(number), strict=True)
            np.testing.assert_array_equal(index, arrays[f"r{number:03d}.document_index"], strict=True)
            np.testing.assert_array_equal(shards, arrays[f"r{number:03d}.document_shard"], strict=True)
            assert (shards.dtype, index.dtype) == (read["document_shard_dtype"], read["document_index_dtype"])
            assert [payload.hex() for payload in payloads] == read["document_data_hex"]
            assert all(type(payload).__name__ in read["document_data_types"] for payload in payloads)
            assert stream.flags.writeable


@pytest.mark.parametrize("way", WAYS)
def test_every_window_of_a_small_dataset_is_the_references(recorded, way):
    golden = recorded["stream_meta_struct"]
    storage = opened_by(StreamWithMetaStorage, golden.name, GuideLoomFormat(golden.dtype), way)
    with storage.sync_reader() as reader:
        for start in range(golden.total):
            for length in range(2 * golden.total + 4):  # nothing, and more than twice round
                assert_given(reader.read(start, length), golden.window(start, length), golden.dtype)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_spans_are_the_runs_of_the_index_and_windows_go_round_several_times(recorded, name, way):
    golden = recorded[name]
    with opened_by(StreamWithMetaStorage, name, SpansFormat(golden.dtype), way).sync_reader() as reader:
        for start in (0, 1, golden.total // 2, golden.total - 1):
            for length in (0, 1, 13, golden.total, 3 * golden.total + 5):
                stream, span_lengths, payloads = reader.read(start, length)
                window = golden.window(start, length)
                np.testing.assert_array_equal(stream, window.stream, strict=True)
                np.testing.assert_array_equal(span_lengths, window.span_lengths, strict=True)
                assert payloads == window.payloads
                assert stream.flags.writeable


@pytest.mark.parametrize(("name", "way"), CASES)
def test_batches_are_the_windows_read_one_by_one_in_any_order(recorded, name, way):
    golden = recorded[name]
    storage = opened_by(StreamWithMetaStorage, name, GuideLoomFormat(golden.dtype), way)
    for length, stride, extra in WINDOWS:
        dataset = storage.dataset(length, stride, extra)
        step, window_length = stride or length, length + extra
        assert len(dataset) == max(0, (golden.total - window_length) // step + 1)
        windows = [golden.window(item * step, window_length) for item in range(len(dataset))]
        for items in orders(len(dataset)):
            batch, wanted = dataset.__getitems__(items), [windows[item] for item in items]
            assert len(batch) == len(wanted)
            for sample, window in zip(batch, wanted, strict=True):
                assert_given(sample, window, golden.dtype)
            assert batch.elements.shape == (len(wanted), window_length)
            assert batch.elements.flags.writeable
            for row, window in zip(batch.elements, wanted, strict=True):
                np.testing.assert_array_equal(row, window.stream, strict=True)
            np.testing.assert_array_equal(
                batch.row_spans, np.cumsum([0, *(len(window.shards) for window in wanted)]), strict=True
            )
            runs = [window.span_lengths for window in wanted]
            np.testing.assert_array_equal(batch.span_lengths, np.concatenate([np.zeros(0, np.int64), *runs]))
            assert batch.shards.tolist() == [shard for window in wanted for shard in window.shards]
            assert batch.payloads == [payload for window in wanted for payload in window.payloads]
            assert {array.dtype.str for array in (batch.row_spans, batch.span_lengths, batch.shards)} == {"<i8"}


@pytest.mark.parametrize(("name", "way"), CASES)
def test_items_and_slices_are_the_same_windows(recorded, name, way):
    golden = recorded[name]
    with opened_by(StreamWithMetaStorage, name, GuideLoomFormat(golden.dtype), way).dataset(5) as dataset:
        windows = [golden.window(5 * item, 5) for item in range(golden.total // 5)]
        assert len(dataset) == len(windows)
        for sample, window in zip(dataset, windows, strict=True):
            assert_given(sample, window, golden.dtype)
        for cut in (slice(None), slice(1, -1, 2), slice(-2, None), slice(None, None, -1), slice(3, 3)):
            for sample, window in zip(dataset[cut], windows[cut], strict=True):
                assert_given(sample, window, golden.dtype)
        assert_given(dataset[np.int64(2)], windows[2], golden.dtype)
        assert_given(dataset[-1], windows[-1], golden.dtype)
        for item in (len(windows), -len(windows) - 1):
            with pytest.raises(IndexError):
                dataset[item]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_an_async_reader_gives_the_same_windows(recorded, name, way):
    golden = recorded[name]
    storage = opened_by(StreamWithMetaStorage, name, GuideLoomFormat(golden.dtype), way)
    places = [(read["global_index"], read["global_length"]) for read in golden.expected["reads"]]

    async def read():
        async with storage.async_reader() as reader, storage.dataset(4).async_reader() as dataset:
            return await asyncio.gather(*(reader.read(*place) for place in places)), await dataset[-1]

    samples, last = asyncio.run(read())
    for sample, place in zip(samples, places, strict=True):
        assert_given(sample, golden.window(*place), golden.dtype)
    assert_given(last, golden.window(golden.total // 4 * 4 - 4, 4), golden.dtype)


def test_samples_that_are_changed_change_no_file_and_no_other_read(recorded):
    golden = recorded["stream_meta"]
    storage = opened_by(StreamWithMetaStorage, golden.name, GuideLoomFormat(golden.dtype))
    with storage.sync_reader() as reader, storage.dataset(8) as dataset:
        batch = dataset.__getitems__([0, 0])
        for stream, _, _, payloads in (reader.read(0, 8), dataset[0], batch[0]):
            stream[:] = -1
            for payload in payloads:
                payload[:] = bytes(len(payload))
        assert_given(batch[1], golden.window(0, 8), golden.dtype)
        for sample in (reader.read(0, 8), dataset[0]):
            assert_given(sample, golden.window(0, 8), golden.dtype)
    assert visible_files(data_of(golden.name)).keys() == golden.expected["files"].keys()
    for file, data in visible_files(data_of(golden.name)).items():
        assert hashlib.sha256(data).hexdigest() == golden.expected["files"][file]["sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_reads_outside_are_index_errors(recorded, name):
    golden = recorded[name]
    with opened_by(StreamWithMetaStorage, name, GuideLoomFormat(golden.dtype)).sync_reader() as reader:
        for place in ((golden.total, 1), (golden.total, 0), (0, -1), (-1, 1)):
            with pytest.raises(IndexError):
                reader.read(*place)
        for shard in (-1, reader.num_shards):
            with pytest.raises(IndexError):
                reader.length(shard)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("has_payload_files", [False, True])
def test_an_empty_shard_changes_nothing_but_the_shards_numbers(recorded, name, has_payload_files, tmp_path):
    golden = recorded[name]
    for place in range(len(golden.lengths) + 1):
        directory = tmp_path / str(place)
        directory.mkdir()
        for path in data_of(name).iterdir():
            shard, _, suffix = path.name.partition(".")
            target = directory / f"{int(shard) + (int(shard) >= place):07d}.{suffix}"
            target.write_bytes(path.read_bytes())
        (directory / f"{place:07d}.in_band.bin").touch()  # all that a record of size 0 leaves with GuideLoom
        if has_payload_files:
            (directory / f"{place:07d}.out_of_band.bin").touch()
            (directory / f"{place:07d}.out_of_band.index").write_bytes(bytes(8))
        storage = StreamWithMetaStorage(directory, GuideLoomFormat(golden.dtype))
        with storage.sync_reader() as reader, storage.dataset(6, 1) as dataset:
            assert reader.num_shards == len(golden.lengths) + 1
            assert reader.length(place) == 0
            batch = dataset.__getitems__(np.arange(len(dataset)))
            windows = [(batch[start], start, 6) for start in range(len(dataset))]
            windows += [
                (reader.read(start, 2 * golden.total), start, 2 * golden.total) for start in (0, golden.total - 1)
            ]
            for sample, start, length in windows:
                wanted = golden.window(start, length)
                assert_given(
                    sample, wanted._replace(shards=[shard + (shard >= place) for shard in wanted.shards]), golden.dtype
                )
        assert type(open_storage(directory)) is StreamWithMetaStorage
